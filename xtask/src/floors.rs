//! The direction of dependencies: each crate, and each folder of the transport, knows those below
//! it and none above.
//!
//! Cargo refuses circles of crates, but not a new arrow that the floors do not have; between the
//! folders of one crate nobody refuses anything. So both are tests here.

mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    use crate::workspace;

    /// The published crates from the bottom up: folder, and the crates that each may know.
    const CRATES: &[(&str, &[&str])] = &[
        ("transport/base", &[]),
        ("transport/protocol", &[]),
        ("transport/ring", &["ibex-base", "ibex-protocol"]),
        ("transport/verbs", &["ibex-base"]),
        (
            "transport",
            &["ibex-base", "ibex-protocol", "ibex-ring", "ibex-verbs"],
        ),
        ("codec/derive", &[]),
        ("codec", &["ibex-derive"]),
        ("bootstrap", &[]),
        (
            "",
            &[
                "ibex-base",
                "ibex-bootstrap",
                "ibex-codec",
                "ibex-protocol",
                "ibex-ring",
                "ibex-transport",
                "ibex-verbs",
            ],
        ),
    ];

    /// The folders of `transport/src` from the bottom up.
    const FOLDERS: &[&str] = &[
        "clock",
        "session",
        "shared_memory",
        "stream",
        "rdma",
        "node",
        "endpoint",
        "connection",
        "engine",
        "runtime",
        "channel",
    ];

    /// Arrows that still lead up, each from a folder to one above it. One that is cut leaves this
    /// list; none joins it.
    const UNCUT: &[(&str, &str)] = &[
        ("session", "shared_memory"),
        ("session", "rdma"),
        ("session", "endpoint"),
        ("session", "engine"),
        ("session", "runtime"),
        ("connection", "runtime"),
        ("engine", "runtime"),
    ];

    #[test]
    fn each_crate_knows_only_those_below_it() {
        let mut broken = Vec::new();
        for (folder, allowed) in CRATES {
            let path = workspace::root().join(folder).join("Cargo.toml");
            let text = fs::read_to_string(&path).expect("the crate is there");
            let mut section = String::new();
            for (number, line) in text.lines().enumerate() {
                if line.starts_with('[') {
                    section = line.to_owned();
                }
                let is_arrow = section == "[dependencies]" && line.starts_with("ibex-");
                let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
                if is_arrow && !allowed.contains(&name) {
                    broken.push(format!("{}:{}: {line}", path.display(), number + 1));
                }
            }
        }
        assert!(broken.is_empty(), "\n{}", broken.join("\n"));
    }

    #[test]
    fn each_folder_of_the_transport_knows_only_those_below_it() {
        let (mut found, mut broken) = (BTreeSet::new(), Vec::new());
        for (floor, from) in FOLDERS.iter().enumerate() {
            let above = &FOLDERS[floor + 1..];
            let folder = workspace::root().join("transport/src").join(from);
            for (path, text) in sources(&folder) {
                for (line, name) in named(&text) {
                    let Some(to) = above.iter().find(|to| **to == name) else {
                        continue;
                    };
                    found.insert((*from, *to));
                    if !UNCUT.contains(&(*from, *to)) {
                        broken.push(format!("{}:{line} knows `{to}`", path.display()));
                    }
                }
            }
        }
        assert!(broken.is_empty(), "\n{}", broken.join("\n"));
        let cut = UNCUT.iter().filter(|arrow| !found.contains(*arrow));
        let cut = cut.collect::<Vec<_>>();
        assert!(cut.is_empty(), "cut, so no longer in the list: {cut:?}");
    }

    #[test]
    fn what_a_file_names_is_found_with_its_line() {
        let text = "use crate::{\n    below::{One, other::Two},\n    above::Three,\n};\n\
                    // crate::comment\nfn f() -> crate::inline::Four {}\n";
        let expected = [(2, "below"), (3, "above"), (6, "inline")];
        let expected = expected.map(|(line, name)| (line, name.to_owned()));
        assert_eq!(named(text), expected);
    }

    /// Modules of its crate's root that a file names by `crate::`, each with the line.
    fn named(text: &str) -> Vec<(usize, String)> {
        let code = text
            .lines()
            .map(|line| line.split("//").next().unwrap_or(""));
        let code = code.collect::<Vec<_>>().join("\n");
        let mut named = Vec::new();
        for (place, before) in code.match_indices("crate::") {
            let start = place + before.len();
            let mut line = 1 + code[..start].matches('\n').count();
            let (mut depth, mut is_start, mut name) = (0, true, String::new());
            for letter in code[start..].chars().chain([' ']) {
                if is_start && (letter.is_alphanumeric() || letter == '_') {
                    name.push(letter);
                    continue;
                }
                if !name.is_empty() {
                    named.push((line, std::mem::take(&mut name)));
                    is_start = false;
                }
                match letter {
                    '\n' => line += 1,
                    '{' => depth += 1,
                    '}' => depth -= 1,
                    ',' if depth == 1 => is_start = true,
                    _ => {}
                }
                if depth == 0 {
                    break;
                }
            }
        }
        named
    }

    /// The sources in this folder with their paths, without those of tests.
    fn sources(path: &Path) -> Vec<(PathBuf, String)> {
        if path.is_dir() {
            let entries = fs::read_dir(path).expect("the folder can be read");
            let paths = entries.map(|entry| entry.expect("an entry can be read").path());
            return paths.flat_map(|path| sources(&path)).collect();
        }
        let is_test = path
            .iter()
            .any(|part| part == "tests" || part == "tests.rs");
        if is_test || path.extension().is_none_or(|extension| extension != "rs") {
            return Vec::new();
        }
        let text = fs::read_to_string(path).expect("the file can be read");
        let code = text.split("#[cfg(test)]\nmod tests {").next();
        vec![(path.to_path_buf(), code.unwrap_or_default().to_owned())]
    }
}
