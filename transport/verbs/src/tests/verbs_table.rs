//! The table of verbs in the README, against the sources.

use std::fs;
use std::path::Path;

#[test]
fn each_row_has_its_method_and_its_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = fs::read_to_string(root.join("README.md")).unwrap();
    let mut sources = String::new();
    read(&root.join("src"), &mut sources);
    // The tests on devices are not in the packaged crate.
    let tests = ["verbs_operations", "verbs_datagrams"];
    let texts = tests.map(|name| fs::read_to_string(root.join(format!("../tests/{name}.rs"))));
    let on_device: Option<String> = texts.into_iter().map(Result::ok).collect();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let mut count = 0;
    for row in rows {
        count += 1;
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let [_, verb, method, test, soft_roce, _] = cells[..] else {
            panic!("a row of another form: {row}");
        };
        let (verb, method, test) = (subject(verb), quoted(method), quoted(test));
        let (owner, call) = method.split_once("::").unwrap_or_else(|| panic!("{row}"));
        assert!(sources.contains(&format!(" {owner}")), "no {owner}: {row}");
        let is_there = ["fn", "unsafe fn"].iter().any(|kind| {
            let starts = |end| sources.contains(&format!("pub {kind} {call}{end}"));
            starts("(") || starts("<")
        });
        assert!(is_there, "no {method}: {row}");
        assert!(
            sources.contains(&format!("fn {test}()")),
            "no {test}: {row}"
        );
        assert!(test.contains(verb), "{test} does not name {verb}");
        if let (true, Some(on_device)) = (soft_roce.starts_with('`'), &on_device) {
            let test = quoted(soft_roce);
            assert!(
                on_device.contains(&format!("fn {test}()")),
                "no {test}: {row}"
            );
        }
    }
    assert!(count >= 25, "{count} rows");
}

/// Returns the word in parentheses, or the verb without its prefix.
fn subject(cell: &str) -> &str {
    match cell.split_once('(') {
        Some((_, rest)) => rest.trim_end_matches(')'),
        None => quoted(cell).trim_start_matches("ibv_"),
    }
}

fn quoted(cell: &str) -> &str {
    cell.trim_start_matches('`').split('`').next().unwrap_or("")
}

fn read(path: &Path, into: &mut String) {
    if path.is_dir() {
        let entries = fs::read_dir(path).unwrap();
        entries.for_each(|entry| read(&entry.unwrap().path(), into));
    } else {
        into.push_str(&fs::read_to_string(path).unwrap());
    }
}
