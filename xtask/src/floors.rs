//! The direction of dependencies: each crate, and each folder of the transport, knows those below
//! it and none above.
//!
//! Cargo refuses circles of crates, but not a new arrow that points up, and nothing checks the
//! folders of one crate. So both are tests here. What stands on channels is crates that know the
//! core alone, so the compiler holds it to what is public there.

mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use crate::workspace;

    /// The published crates from the bottom up: folder, and the crates that each may know.
    const CRATES: &[(&str, &[&str])] = &[
        ("transport/base", &[]),
        ("transport/protocol", &["ibex-base"]),
        ("transport/ring", &["ibex-base", "ibex-protocol"]),
        ("transport/tls", &["ibex-base"]),
        ("transport/verbs", &["ibex-base"]),
        (
            "transport",
            &["ibex-base", "ibex-protocol", "ibex-ring", "ibex-verbs"],
        ),
        ("codec/derive", &[]),
        ("codec", &["ibex-derive"]),
        ("bootstrap", &["ibex-base"]),
        (
            "core",
            &[
                "ibex-base",
                "ibex-bootstrap",
                "ibex-codec",
                "ibex-protocol",
                "ibex-ring",
                "ibex-tls",
                "ibex-transport",
                "ibex-verbs",
            ],
        ),
        ("services/inspect", &["ibex-core"]),
        ("services/io", &["ibex-core"]),
        ("services/peers", &["ibex-core"]),
        ("services/calls", &["ibex-core", "ibex-peers"]),
        ("services/log", &["ibex-calls", "ibex-core", "ibex-peers"]),
        (
            "",
            &[
                "ibex-calls",
                "ibex-codec",
                "ibex-core",
                "ibex-inspect",
                "ibex-io",
                "ibex-log",
                "ibex-peers",
            ],
        ),
    ];

    /// The folders of `transport/src` from the bottom up.
    const FOLDERS: &[&str] = &[
        "clock",
        "counter",
        "histogram",
        "shared_memory",
        "rdma",
        "session",
        "wire",
        "node",
        "endpoint",
        "connection",
        "engine",
        "runtime",
        "channel",
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
                let Some(name) = dependency(&section, line) else {
                    continue;
                };
                if !allowed.contains(&name) {
                    broken.push(format!("{}:{}: {line}", path.display(), number + 1));
                }
            }
        }
        assert!(broken.is_empty(), "\n{}", broken.join("\n"));
    }

    #[test]
    fn every_crate_and_folder_has_a_floor() {
        let root = workspace::root();
        let published = workspace::published(root).expect("the workspace is there");
        let crates = CRATES.iter().map(|(folder, _)| *folder);
        assert_eq!(
            published
                .iter()
                .map(String::as_str)
                .collect::<BTreeSet<_>>(),
            crates.collect::<BTreeSet<_>>()
        );

        let entries = fs::read_dir(root.join("transport/src")).expect("the folder can be read");
        let paths = entries.map(|entry| entry.expect("an entry can be read").path());
        let names = paths.filter(|path| !sources(path).is_empty()).map(|path| {
            let name = path.file_stem().expect("it has a name");
            name.to_string_lossy().into_owned()
        });
        let folders = FOLDERS.iter().map(|name| (*name).to_owned());
        assert_eq!(
            names.filter(|name| name != "lib").collect::<BTreeSet<_>>(),
            folders.collect::<BTreeSet<_>>()
        );
    }

    /// A program that depends on ibex builds neither RDMA nor TLS's cryptography unless it asks for
    /// them.
    #[test]
    fn the_default_features_need_few_crates() {
        let tree = Command::new(env!("CARGO"))
            .args(["tree", "--locked", "--offline", "--edges", "normal"])
            .args(["--package", "ibex", "--prefix", "none", "--format", "{p}"])
            .current_dir(workspace::root())
            .output()
            .expect("cargo runs");
        assert!(tree.status.success(), "{tree:?}");
        let tree = String::from_utf8(tree.stdout).expect("names are text");
        // `name v1.2.3`, before a path or a mark of a crate that was listed already.
        let crates = tree.lines().filter_map(|line| line.split(" (").next());
        let (ours, others): (BTreeSet<_>, BTreeSet<_>) =
            crates.partition(|name| name.starts_with("ibex"));
        let is_there = |name: &str| ours.iter().chain(&others).any(|one| one.starts_with(name));
        assert!(is_there("ibex-transport "), "{ours:?}");
        for absent in ["ibex-tls ", "ibex-verbs ", "rustls"] {
            assert!(!is_there(absent), "{tree}");
        }
        assert!(others.len() <= 52, "{} crates: {others:?}", others.len());
    }

    /// Returns the crate of this workspace that a line of a manifest names as a dependency, other
    /// than of tests alone.
    fn dependency<'a>(section: &str, line: &'a str) -> Option<&'a str> {
        let is_other = section.contains("dev-") || section.starts_with("[workspace");
        if !section.contains("dependencies") || is_other {
            return None;
        }
        let name = match line.split_once("package = \"") {
            Some((_, name)) => name,
            None => line
                .split_once("dependencies.")
                .map_or(line, |(_, name)| name),
        };
        let name = name.split(['.', ' ', '=', '"', ']']).next()?;
        name.starts_with("ibex-").then_some(name)
    }

    #[test]
    fn a_dependency_is_found_however_it_is_written() {
        for (section, line) in [
            ("[dependencies]", "ibex-ring.workspace = true"),
            (
                "[dependencies]",
                "ring = { package = \"ibex-ring\", path = \"ring\" }",
            ),
            (
                "[target.'cfg(loom)'.dependencies]",
                "ibex-ring = { path = \"ring\" }",
            ),
            ("[dependencies.ibex-ring]", "[dependencies.ibex-ring]"),
        ] {
            assert_eq!(dependency(section, line), Some("ibex-ring"), "{line}");
        }
        assert_eq!(
            dependency("[dev-dependencies]", "ibex-ring.workspace = true"),
            None
        );
        assert_eq!(dependency("[features]", "ibex-ring = []"), None);
    }

    #[test]
    fn each_folder_of_the_transport_knows_only_those_below_it() {
        let mut broken = Vec::new();
        for (floor, from) in FOLDERS.iter().enumerate() {
            let above = &FOLDERS[floor + 1..];
            let source = workspace::root().join("transport/src");
            let paths = [source.join(from), source.join(from).with_extension("rs")];
            let there = paths.iter().filter(|path| path.exists());
            for (path, text) in there.flat_map(|path| sources(path)) {
                let place = path.strip_prefix(&source).expect("it lies there");
                for (line, name) in named(&from_the_root(&text, place)) {
                    if above.contains(&name.as_str()) {
                        broken.push(format!("{}:{line} knows `{name}`", path.display()));
                    }
                }
            }
        }
        assert!(broken.is_empty(), "\n{}", broken.join("\n"));
    }

    /// A reader may begin at any module and go down. A module's name at the crate's root counts as
    /// the module.
    #[test]
    fn no_crate_has_modules_that_know_each_other_in_a_circle() {
        let mut circles = Vec::new();
        for (folder, _) in CRATES {
            let source = workspace::root().join(folder).join("src");
            let library = fs::read_to_string(source.join("lib.rs")).expect("a library");
            let homes = homes(&library);
            let mut knows = BTreeMap::<String, BTreeSet<String>>::new();
            for (path, text) in sources(&source) {
                let top = path.strip_prefix(&source).expect("it lies there");
                let top = Path::new(top.iter().next().expect("a name"));
                let top = top.with_extension("").display().to_string();
                let text = from_the_root(&text, path.strip_prefix(&source).expect("it lies there"));
                let known = named(&text).into_iter();
                let known = known.map(|(_, name)| homes.get(&name).cloned().unwrap_or(name));
                knows.entry(top).or_default().extend(known);
            }
            knows.remove("lib");
            // A module that knows only those that were taken away is taken away; circles stay.
            loop {
                let names = knows.keys().cloned().collect::<BTreeSet<_>>();
                let is_free = |(name, known): &(&String, &BTreeSet<String>)| {
                    known.iter().all(|one| one == *name || !names.contains(one))
                };
                let free: Vec<_> = knows
                    .iter()
                    .filter(is_free)
                    .map(|(n, _)| n.clone())
                    .collect();
                if free.is_empty() {
                    break;
                }
                knows.retain(|name, _| !free.contains(name));
            }
            if !knows.is_empty() {
                let names = knows.keys().map(String::as_str).collect::<Vec<_>>();
                circles.push(format!(
                    "{folder}: in or above a circle: {}",
                    names.join(", ")
                ));
            }
        }
        assert!(circles.is_empty(), "\n{}", circles.join("\n"));
    }

    #[test]
    fn names_at_the_root_lead_to_their_modules() {
        let library = "mod ring;\npub use ring::{Ring, reader::Reader};\n\
                       pub use crate::slot::Slot;\npub use other_crate::X;\n";
        let homes = homes(library);
        assert_eq!(homes["Ring"], "ring");
        assert_eq!(homes["Reader"], "ring");
        assert_eq!(homes["Slot"], "slot");
        assert_eq!(homes["X"], "other_crate");
    }

    /// Returns the modules from which the names at a crate's root come.
    fn homes(library: &str) -> BTreeMap<String, String> {
        let code = library
            .lines()
            .map(|line| line.split("//").next().unwrap_or_default());
        let code = code.collect::<Vec<_>>().join(" ");
        let mut homes = BTreeMap::new();
        for path in code.split("use ").skip(1) {
            for leaf in leaves(path) {
                let leaf = leaf.trim_start_matches("self::");
                let leaf = leaf.trim_start_matches("crate::");
                let home = leaf.split("::").next().unwrap_or_default().to_owned();
                let name = leaf.rsplit("::").next().unwrap_or_default().to_owned();
                homes.insert(name, home);
            }
        }
        homes
    }

    #[test]
    fn modules_that_a_file_names_are_found_with_their_lines() {
        let text = "use crate::{\n    below::{One, other::Two},\n    above::Three,\n};\n\
                    // crate::comment\nfn f() -> crate::inline::Four {}\n";
        let expected = [(2, "below"), (3, "above"), (6, "inline")];
        let expected = expected.map(|(line, name)| (line, name.to_owned()));
        assert_eq!(named(text), expected);
    }

    /// Returns the modules of its crate's root that a file names by `crate::`, each with the line.
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

    #[test]
    fn a_path_by_super_that_reaches_the_root_begins_there() {
        let of = |path: &str, text: &str| from_the_root(text, Path::new(path));
        assert_eq!(of("error.rs", "use super::{a, b};"), "use crate::{a, b};");
        assert_eq!(of("error/mod.rs", "use super::a;"), "use crate::a;");
        assert_eq!(of("error/kind.rs", "use super::a;"), "use super::a;");
        assert_eq!(of("error/kind.rs", "use super::super::a;"), "use crate::a;");
    }

    /// Returns the text of a module with `crate::` where its paths reach the root by `super::`.
    fn from_the_root(text: &str, path: &Path) -> String {
        let is_folder = path.ends_with("mod.rs");
        let depth = path.iter().count() - usize::from(is_folder);
        text.replace(&"super::".repeat(depth), "crate::")
    }

    /// Returns the sources in this folder with their paths, without those of tests.
    fn sources(path: &Path) -> Vec<(PathBuf, String)> {
        if path.is_dir() {
            let entries = fs::read_dir(path).expect("the folder can be read");
            let paths = entries.map(|entry| entry.expect("an entry can be read").path());
            return paths.flat_map(|path| sources(&path)).collect();
        }
        let is_test = path.iter().any(|part| {
            let part = part.to_string_lossy();
            part == "tests" || part.ends_with("tests.rs") || part == "models.rs"
        });
        if is_test || path.extension().is_none_or(|extension| extension != "rs") {
            return Vec::new();
        }
        let text = fs::read_to_string(path).expect("the file can be read");
        let ends = [
            "#[cfg(test)]\nmod tests {",
            "#[cfg(all(test, loom))]\nmod models {",
        ];
        let ends = ends.iter().filter_map(|end| text.find(end));
        let code = &text[..ends.min().unwrap_or(text.len())];
        vec![(path.to_path_buf(), code.to_owned())]
    }

    /// Returns the paths of a tree of paths at the beginning of a text.
    fn leaves(text: &str) -> Vec<String> {
        let end = text.find(|letter| !is_of_name(letter) && letter != ':');
        let (path, rest) = text.split_at(end.unwrap_or(text.len()));
        let Some(group) = rest.strip_prefix('{').filter(|_| path.ends_with("::")) else {
            return vec![path.trim_end_matches(':').to_owned()];
        };
        let (mut depth, mut start, mut found) = (0, 0, Vec::new());
        for (place, letter) in group.char_indices() {
            if depth == 0 && matches!(letter, ',' | '}') {
                let branch = group[start..place].trim();
                let below = leaves(branch).into_iter().filter(|leaf| !leaf.is_empty());
                found.extend(below.map(|leaf| match &*leaf {
                    "self" => path.trim_end_matches(':').to_owned(),
                    _ => format!("{path}{leaf}"),
                }));
                start = place + 1;
            }
            match letter {
                '}' if depth == 0 => break,
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
        }
        found
    }

    fn is_of_name(letter: char) -> bool {
        letter.is_alphanumeric() || letter == '_'
    }
}
