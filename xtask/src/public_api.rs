//! The recorded list of the crate ibex's public names.
//!
//! `docs/public-api.txt` has each path with its kind, including hidden ones, so that a change of
//! the surface shows in a diff. The list comes from rustdoc's JSON. Its format belongs to the
//! compiler, so the list is compared only under the compiler that its first line names.

mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;
    use std::process::Command;

    use serde_json::Value;

    use crate::{rustdoc, workspace};

    #[test]
    #[ignore = "`cargo xtask release-check` runs it, since it documents every crate once more"]
    fn the_public_names_are_those_that_are_recorded() {
        let recorded_at = workspace::root().join("docs/public-api.txt");
        let recorded = fs::read_to_string(&recorded_at).expect("docs/public-api.txt");
        let (compiler, recorded) = recorded.split_once('\n').expect("a first line");
        let here = output(Command::new("rustc").arg("--version"));
        let version = here.split(' ').nth(1).unwrap_or_default();
        if compiler != format!("# rustc {version}") {
            println!("not compared: the list is of \"{compiler}\", and this is {here}");
            return;
        }
        let found = names(&documented());
        let found: String = found.iter().map(|name| format!("{name}\n")).collect();
        if found == recorded {
            return;
        }
        let written = workspace::target().join("public-api.txt");
        fs::write(&written, format!("{compiler}\n{found}")).expect("the list is written");
        let (old, new): (BTreeSet<_>, BTreeSet<_>) =
            (recorded.lines().collect(), found.lines().collect());
        panic!(
            "the public names have changed; new: {:?}; gone: {:?}; if that is meant, copy {} to \
             docs/public-api.txt and say in CHANGELOG.md what a user has to do",
            new.difference(&old).collect::<Vec<_>>(),
            old.difference(&new).collect::<Vec<_>>(),
            written.display()
        );
    }

    /// Returns rustdoc's descriptions of the front and of the crates that it re-exports, by name.
    fn documented() -> BTreeMap<String, Value> {
        let target = workspace::target();
        let mut doc = Command::new(env!("CARGO"));
        doc.current_dir(workspace::root())
            .env("RUSTDOC", rustdoc::unstable().expect("a script"))
            .env(
                "RUSTDOCFLAGS",
                "-Z unstable-options --output-format json --document-hidden-items",
            )
            .args(["doc", "--quiet", "--no-deps", "--lib", "--all-features"])
            .args(CRATES.iter().map(|name| format!("-p{name}")));
        output(&mut doc);
        let described = CRATES.iter().map(|name| {
            let name = name.replace('-', "_");
            let json = fs::read(target.join(format!("doc/{name}.json")));
            let json = json.expect("rustdoc's description");
            (name, serde_json::from_slice(&json).expect("JSON"))
        });
        described.collect()
    }

    fn output(command: &mut Command) -> String {
        let output = command.output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{command:?}: {said}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Returns the kind and path of every item that can be named, in order of the paths.
    fn names(crates: &BTreeMap<String, Value>) -> Vec<String> {
        let mut found = BTreeSet::new();
        let front = &crates["ibex"];
        walk(crates, front, &front["root"], "ibex", &mut found);
        found
            .into_iter()
            .map(|(path, kind)| format!("{path} ({kind})"))
            .collect()
    }

    fn walk(
        crates: &BTreeMap<String, Value>,
        crate_: &Value,
        module: &Value,
        path: &str,
        found: &mut BTreeSet<(String, String)>,
    ) {
        let item = |id: &Value| &crate_["index"][id.to_string()];
        let items = item(module)["inner"]["module"]["items"].as_array();
        for id in items.expect("a module has items") {
            let (what, inner) = (item(id), &item(id)["inner"]);
            if what["visibility"] != "public" {
                continue;
            }
            let reexport = &inner["use"];
            let (name, id) = match reexport.is_null() {
                true => (&what["name"], id),
                false => (&reexport["name"], &reexport["id"]),
            };
            let path = format!("{path}::{}", name.as_str().expect("a name"));
            // The JSON describes an item of another crate by its kind and path alone.
            let summary = &crate_["paths"][id.to_string()];
            let inner_kind = || inner.as_object().and_then(|inner| inner.keys().next());
            let kind = summary["kind"].as_str();
            let kind = kind.or_else(|| inner_kind().map(String::as_str));
            found.insert((path.clone(), kind.expect("a kind").to_owned()));
            if !item(id)["inner"]["module"].is_null() {
                walk(crates, crate_, id, &path, found);
            } else if kind == Some("module")
                && let Some(other) = summary["path"][0]
                    .as_str()
                    .and_then(|name| crates.get(name))
            {
                let there = other["paths"].as_object().expect("paths").iter();
                let mut there = there.filter(|(_, one)| one["path"] == summary["path"]);
                let (id, _) = there.next().expect("the module is described");
                let id = serde_json::from_str(id).expect("a number");
                walk(crates, other, &id, &path, found);
            }
        }
    }

    /// The front, and the crates whose modules it re-exports.
    const CRATES: &[&str] = &[
        "ibex",
        "ibex-calls",
        "ibex-core",
        "ibex-inspect",
        "ibex-io",
        "ibex-log",
        "ibex-peers",
    ];
}
