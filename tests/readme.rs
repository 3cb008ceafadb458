//! The documentation's programs are parts of examples, which run. The README shows the program that
//! `cargo run -p quickstart` runs, in the order message, primary, replica. The guide's page
//! on updates shows a part of the newer of the two releases in `rolling_upgrade`. In the examples
//! the parts stand between markers. The blocks begin with the imports that they use, and both are
//! compiled with this crate's documentation.
#![forbid(unsafe_code)]

const README: &str = include_str!("../README.md");
const UPDATING: &str = include_str!("../src/guide/updating.md");
const QUICKSTART: &str = include_str!("../examples/quickstart/main.rs");
const NEW_RELEASE: &str = include_str!("../examples/rolling_upgrade/new.rs");

#[test]
fn the_readme_shows_the_quickstart() {
    let expected: Vec<String> = ["message", "primary", "replica"]
        .into_iter()
        .flat_map(|name| part(QUICKSTART, name))
        .collect();
    assert!(
        shown(README).ends_with(&expected),
        "README.md and examples/quickstart/main.rs differ"
    );
}

#[test]
fn the_guide_shows_an_update() {
    let expected: Vec<String> = ["types", "versions"]
        .into_iter()
        .flat_map(|name| part(NEW_RELEASE, name))
        .collect();
    assert!(
        shown(UPDATING).ends_with(&expected),
        "src/guide/updating.md and examples/rolling_upgrade/new.rs differ"
    );
}

/// Returns the lines of a page's only Rust block, without indentation and empty lines.
fn shown(page: &str) -> Vec<String> {
    let (_, block) = page.split_once("```rust\n").expect("there is a Rust block");
    let (block, rest) = block.split_once("\n```").expect("the block ends");
    assert!(!rest.contains("```rust"), "a page has one Rust block");
    bare(block.lines())
}

/// Returns the lines between an example's two markers of this name.
fn part(example: &str, name: &str) -> Vec<String> {
    let marker = format!("// [{name}]");
    let mut marks = example
        .lines()
        .enumerate()
        .filter(|(_, line)| line.trim() == marker);
    let (Some((from, _)), Some((to, _)), None) = (marks.next(), marks.next(), marks.next()) else {
        panic!("the example has two lines \"{marker}\"");
    };
    bare(example.lines().take(to).skip(from + 1))
}

fn bare<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    lines
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect()
}
