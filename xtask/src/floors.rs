//! The direction of dependencies: each crate, and each folder of the transport, knows those below
//! it and none above.
//!
//! Cargo refuses circles of crates, but not a new arrow that points up, and nothing checks the
//! folders of one crate. So both are tests here. A third one checks that what stands on channels
//! uses channels as a program does.

mod tests {
    use std::collections::BTreeSet;
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
            &[
                "ibex-base",
                "ibex-protocol",
                "ibex-ring",
                "ibex-tls",
                "ibex-verbs",
            ],
        ),
        ("codec/derive", &[]),
        ("codec", &["ibex-derive"]),
        ("bootstrap", &["ibex-base", "ibex-tls"]),
        (
            "",
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

    /// The folders of the facade that use channels as a program does.
    const ROOF: &[&str] = &["calls", "io", "log", "peers"];

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
        assert!(!is_there("ibex-verbs ") && !is_there("rustls"), "{tree}");
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
            let folder = workspace::root().join("transport/src").join(from);
            for (path, text) in sources(&folder) {
                for (line, name) in named(&text) {
                    if above.contains(&name.as_str()) {
                        broken.push(format!("{}:{line} knows `{name}`", path.display()));
                    }
                }
            }
        }
        assert!(broken.is_empty(), "\n{}", broken.join("\n"));
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

    /// Returns the sources in this folder with their paths, without those of tests.
    fn sources(path: &Path) -> Vec<(PathBuf, String)> {
        if path.is_dir() {
            let entries = fs::read_dir(path).expect("the folder can be read");
            let paths = entries.map(|entry| entry.expect("an entry can be read").path());
            return paths.flat_map(|path| sources(&path)).collect();
        }
        let is_test = path
            .iter()
            .any(|part| part == "tests" || part.to_string_lossy().ends_with("tests.rs"));
        if is_test || path.extension().is_none_or(|extension| extension != "rs") {
            return Vec::new();
        }
        let text = fs::read_to_string(path).expect("the file can be read");
        let code = text.split("#[cfg(test)]\nmod tests {").next();
        vec![(path.to_path_buf(), code.unwrap_or_default().to_owned())]
    }

    /// What stands on channels proves that their public API suffices. `xtask/roof.txt` has what it
    /// uses beside that API, and becomes shorter only.
    #[test]
    fn the_roof_stands_on_public_names() {
        let root = workspace::root();
        let library = fs::read_to_string(root.join("src/lib.rs")).expect("the library is there");
        let public = public_names(&library);
        let hidden = hidden_members(&root.join("src"));
        let mut used = BTreeSet::new();
        for folder in ROOF {
            for (_, text) in sources(&root.join("src").join(folder)) {
                let code = without_comments(&text);
                let ours = paths(&code, "crate").into_iter().filter(|path| {
                    let name = path.split("::").nth(1).unwrap_or_default();
                    !public.contains(name) && name != *folder
                });
                let others = CRATES.iter().flat_map(|(_, below)| below.iter());
                let others = others.filter(|name| !matches!(**name, "ibex-codec" | "ibex-derive"));
                let others = others.collect::<BTreeSet<_>>().into_iter();
                let others = others.flat_map(|name| paths(&code, &name.replace('-', "_")));
                let members = members(&code).filter(|name| hidden.contains(*name));
                let members = members.map(|name| format!(".{name}"));
                let found = ours.chain(others).chain(members);
                used.extend(found.map(|name| format!("{folder} {name}")));
            }
        }
        let listed = fs::read_to_string(root.join("xtask/roof.txt")).expect("the list is there");
        let listed = listed.lines().filter(|line| !line.starts_with('#'));
        let listed = listed.map(str::to_owned).collect::<BTreeSet<_>>();
        let new = used.difference(&listed).collect::<Vec<_>>();
        assert!(
            new.is_empty(),
            "these folders use what no program can; use the public API, or make it suffice: {new:#?}"
        );
        let gone = listed.difference(&used).collect::<Vec<_>>();
        assert!(
            gone.is_empty(),
            "not used any more, take it from the list: {gone:#?}"
        );
    }

    #[test]
    fn paths_and_members_are_found_however_they_are_written() {
        let code =
            "use crate::{\n    One, deep::{self, Two},\n};\nfn f() -> crate::Three { a.b().c }";
        let expected = [
            "crate::One",
            "crate::deep",
            "crate::deep::Two",
            "crate::Three",
        ];
        assert_eq!(paths(code, "crate"), expected);
        assert_eq!(members(code).collect::<Vec<_>>(), ["b", "c"]);
        let library = "mod message;\npub mod io;\nmod node;\npub use ibex_codec::{Raw, message};\n\
                       pub use node::Node;\n";
        let public = ["Node", "Raw", "io"].map(str::to_owned);
        assert_eq!(public_names(library), BTreeSet::from(public));
    }

    /// Returns the names that a program reaches in the library's root.
    fn public_names(library: &str) -> BTreeSet<String> {
        let code = without_comments(library);
        let (mut public, mut private) = (BTreeSet::new(), BTreeSet::new());
        for statement in code.split(';').map(str::trim) {
            let statement = statement.rsplit("\n\n").next().unwrap_or_default();
            let statement = statement.rsplit(']').next().unwrap_or_default().trim();
            if let Some(path) = statement.strip_prefix("pub use ") {
                let name = |leaf: &String| leaf.rsplit([':', ' ']).next().map(str::to_owned);
                public.extend(leaves(path).iter().filter_map(name));
            } else if let Some(name) = statement.strip_prefix("pub mod ") {
                public.insert(name.to_owned());
            } else if let Some(name) = statement.strip_prefix("mod ") {
                private.insert(name.to_owned());
            }
        }
        &public - &private
    }

    /// Returns the methods that the facade keeps to itself, outside of the roof, and the fields by
    /// which it reaches the transport.
    fn hidden_members(facade: &Path) -> BTreeSet<String> {
        let is_roof = |path: &Path| {
            ROOF.iter()
                .any(|folder| path.starts_with(facade.join(folder)))
        };
        let declared = |code: &str, before: &str| -> BTreeSet<String> {
            let first = |rest: &str| {
                rest.split(|letter| !is_of_name(letter))
                    .next()
                    .map(str::to_owned)
            };
            code.split(before).skip(1).filter_map(first).collect()
        };
        let mut hidden = BTreeSet::from(["handle", "runtime"].map(str::to_owned));
        // Another type may have such a method for everyone, or the roof for itself.
        let mut others = BTreeSet::new();
        for (path, text) in sources(facade) {
            let code = without_comments(&text);
            others.extend(declared(&code, "pub fn "));
            match is_roof(&path) {
                true => others.extend(declared(&code, "fn ")),
                false => hidden.extend(declared(&code, "pub(crate) fn ")),
            }
        }
        &hidden - &others
    }

    /// Returns the names behind dots.
    fn members(code: &str) -> impl Iterator<Item = &str> {
        let names = code.split('.').skip(1);
        names.filter_map(|rest| rest.split(|letter| !is_of_name(letter)).next())
    }

    /// Returns the paths that begin with this name, those in braces one by one.
    fn paths(code: &str, root: &str) -> Vec<String> {
        let root = format!("{root}::");
        let begins = |place: &usize| !code[..*place].ends_with(is_of_name);
        let places = code.match_indices(&root).map(|(place, _)| place);
        places
            .filter(begins)
            .flat_map(|place| leaves(&code[place..]))
            .collect()
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

    fn without_comments(text: &str) -> String {
        let code = text
            .lines()
            .map(|line| line.split("//").next().unwrap_or_default());
        code.collect::<Vec<_>>().join("\n")
    }
}
