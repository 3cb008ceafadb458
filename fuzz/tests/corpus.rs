//! The corpus matches the code: every file takes its parser to the accept state, and equals the
//! output of the present code.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use ibex_fuzz::{TARGETS, Target, corpus_directory};

/// Returns the files of a directory by name.
fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{directory:?}: {error}"));
    entries
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_string();
            (name, fs::read(path).unwrap())
        })
        .collect()
}

#[test]
fn every_file_is_accepted_by_the_parser_it_selects() {
    for target in TARGETS {
        let files = files(&corpus_directory().join(target.name));
        assert!(!files.is_empty(), "{}: no seeds", target.name);
        for (name, input) in files {
            let (&selector, bytes) = input.split_first().expect("a selector");
            let selected = Target::by_selector(selector).map(|target| target.name);
            assert_eq!(selected, Some(target.name), "{name}");
            assert!(
                (target.accepts)(bytes),
                "{}/{name} is not accepted",
                target.name
            );
        }
    }
}

#[test]
fn the_files_are_the_seeds() {
    for target in TARGETS {
        let seeds: BTreeMap<_, _> = (target.seeds)()
            .into_iter()
            .map(|seed| (seed.name.to_string(), target.input(&seed.bytes)))
            .collect();
        let files = files(&corpus_directory().join(target.name));
        assert!(
            seeds == files,
            "fuzz/corpus/{} is not what the code makes: `cargo xtask corpus` writes it anew",
            target.name
        );
    }
}

/// A parser that accepts anything would pass the tests above.
#[test]
fn a_seed_cut_short_or_garbled_is_not_accepted() {
    for target in TARGETS {
        for seed in (target.seeds)() {
            let cut = &seed.bytes[..seed.bytes.len() - 1];
            assert!(
                !(target.accepts)(cut),
                "{}/{} cut short",
                target.name,
                seed.name
            );
            let garbled: Vec<u8> = seed.bytes.iter().map(|byte| !byte).collect();
            assert!(
                !(target.accepts)(&garbled),
                "{}/{} garbled",
                target.name,
                seed.name
            );
        }
    }
}
