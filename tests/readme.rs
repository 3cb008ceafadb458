//! The program on the README's first screen is the one that `cargo run --example
//! quickstart` runs: the parts of the example between its markers, in the order message,
//! primary, replica, each of the last two below a comment with its name.
#![forbid(unsafe_code)]

const README: &str = include_str!("../README.md");
const EXAMPLE: &str = include_str!("../examples/quickstart/main.rs");

#[test]
fn the_readme_shows_the_quickstart() {
    let mut expected = part("message");
    for name in ["primary", "replica"] {
        expected.push(format!("// {name}"));
        expected.extend(part(name));
    }
    assert_eq!(
        shown(),
        expected,
        "README.md and examples/quickstart/main.rs differ"
    );
}

/// The lines of the README's Rust block, without indentation and empty lines.
fn shown() -> Vec<String> {
    let mut blocks = README.split("```rust\n").skip(1);
    let block = blocks.next().expect("the README has a Rust block");
    assert!(blocks.next().is_none(), "the README has one Rust block");
    let (block, _) = block.split_once("\n```").expect("the block ends");
    bare(block.lines())
}

/// The lines between the example's two markers of this name.
fn part(name: &str) -> Vec<String> {
    let marker = format!("// [{name}]");
    let mut marks = EXAMPLE
        .lines()
        .enumerate()
        .filter(|(_, line)| line.trim() == marker);
    let (Some((from, _)), Some((to, _)), None) = (marks.next(), marks.next(), marks.next()) else {
        panic!("the example has two lines \"{marker}\"");
    };
    bare(EXAMPLE.lines().take(to).skip(from + 1))
}

fn bare<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    lines
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect()
}
