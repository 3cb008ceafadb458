//! The README's code is that of examples, which run: the first block is the program that
//! `cargo run --example quickstart` runs, in the order message, primary, replica; the second is
//! a part of the newer of the two releases in `rolling_upgrade`. The parts stand between
//! markers. Before them a block has what it uses: as they are shown, both are compiled with
//! this crate's documentation.
#![forbid(unsafe_code)]

const README: &str = include_str!("../README.md");
const QUICKSTART: &str = include_str!("../examples/quickstart/main.rs");
const NEW_RELEASE: &str = include_str!("../examples/rolling_upgrade/new.rs");

#[test]
fn the_readme_shows_the_quickstart() {
    let expected: Vec<String> = ["message", "primary", "replica"]
        .into_iter()
        .flat_map(|name| part(QUICKSTART, name))
        .collect();
    assert!(
        shown()[0].ends_with(&expected),
        "README.md and examples/quickstart/main.rs differ"
    );
}

#[test]
fn the_readme_shows_an_update() {
    let expected: Vec<String> = ["types", "versions"]
        .into_iter()
        .flat_map(|name| part(NEW_RELEASE, name))
        .collect();
    assert!(
        shown()[1].ends_with(&expected),
        "README.md and examples/rolling_upgrade/new.rs differ"
    );
}

/// The lines of the README's two Rust blocks, without indentation and empty lines.
fn shown() -> [Vec<String>; 2] {
    let blocks = README.split("```rust\n").skip(1).map(|block| {
        let (block, _) = block.split_once("\n```").expect("the block ends");
        bare(block.lines())
    });
    let blocks: Vec<_> = blocks.collect();
    blocks.try_into().expect("the README has two Rust blocks")
}

/// The lines between an example's two markers of this name.
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
