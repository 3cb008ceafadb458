//! The guide as pages for readers of the repository, in `docs/guide`.
//!
//! The pages in `src/guide` belong to rustdoc: they link to types and methods, and the programs in
//! them have lines that rustdoc hides. A viewer of Markdown would show dead links and those lines,
//! so the rendered pages have neither.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::workspace;

/// Writes the pages. Removes those that have no source any more.
pub(crate) fn write() -> Result<(), Failure> {
    let folder = workspace::root().join(RENDERED);
    let write = || {
        let pages = pages()?;
        fs::create_dir_all(&folder)?;
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            if !pages.contains_key(&*entry.file_name().to_string_lossy()) {
                fs::remove_file(entry.path())?;
            }
        }
        pages
            .iter()
            .try_for_each(|(name, page)| fs::write(folder.join(name), page))
    };
    write().map_err(|error| Failure::new(format!("{RENDERED}: {error}")))
}

/// Fails if a page is not what its source renders to, or if a link in a page of the repository
/// leads to no file.
pub(crate) fn check() -> Result<(), Failure> {
    let unreadable = |error| Failure::new(format!("the pages cannot be read: {error}"));
    let pages = pages().map_err(unreadable)?;
    let folder = workspace::root().join(RENDERED);
    let old = |(name, page): &(&String, &String)| {
        fs::read_to_string(folder.join(name)).ok().as_ref() != Some(page)
    };
    let mut wrong: Vec<_> = pages
        .iter()
        .filter(old)
        .map(|(name, _)| format!("{RENDERED}/{name} is out of date: `cargo xtask guide` writes it"))
        .collect();
    wrong.extend(dead_links(workspace::root()).map_err(unreadable)?);
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(Failure::new(wrong.join("; ")))
    }
}

/// Returns the rendered pages by their file names.
fn pages() -> io::Result<BTreeMap<String, String>> {
    let entries = fs::read_dir(workspace::root().join(SOURCES))?;
    let pages = entries.map(|entry| {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let page = rendered(&name, &fs::read_to_string(entry.path())?);
        Ok((name, page))
    });
    pages.collect()
}

/// Renders a page: without hidden lines of programs, and with the text of links to items.
fn rendered(name: &str, source: &str) -> String {
    let mut page =
        format!("<!-- `cargo xtask guide` writes this page from {SOURCES}/{name}. -->\n\n");
    let mut is_program = false;
    for line in source.lines() {
        let is_fence = line.trim_start().starts_with("```");
        is_program ^= is_fence;
        if is_program && (line == "#" || line.starts_with("# ")) {
            continue;
        }
        page += line;
        page += "\n";
    }
    without_item_links(&page)
}

/// Replaces each link to an item of a crate by the link's text.
fn without_item_links(page: &str) -> String {
    let mut left = page.to_owned();
    for target in ["](crate::", "](std::"] {
        while let Some(at) = left.find(target) {
            let opens = left[..at].rfind('[').expect("a link begins");
            let ends = at + left[at..].find(')').expect("a link ends");
            let text = left[opens + 1..at].to_owned();
            left.replace_range(opens..=ends, &text);
        }
    }
    left
}

/// Returns the links between files of the repository that lead to no file.
fn dead_links(root: &Path) -> io::Result<Vec<String>> {
    let mut pages = Vec::new();
    find_pages(root, &mut pages)?;
    let mut dead = Vec::new();
    for path in pages {
        let text = fs::read_to_string(&path)?;
        let folder = path.parent().expect("a file lies in a folder");
        for target in targets(&text) {
            let file = target.split('#').next().unwrap_or_default();
            if !file.is_empty() && !folder.join(file).exists() {
                let page = path.strip_prefix(root).unwrap_or(&path).display();
                dead.push(format!("{page}: {target} leads to no file"));
            }
        }
    }
    Ok(dead)
}

/// Returns what the links of a page name in this repository.
fn targets(page: &str) -> Vec<&str> {
    let inline = page
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split([')', ' ']).next());
    let defined = page.lines().filter_map(|line| {
        let (_, target) = line.strip_prefix('[')?.split_once("]: ")?;
        Some(target)
    });
    let is_file = |target: &&str| !target.contains(':') && !target.contains('<');
    inline.chain(defined).filter(is_file).collect()
}

fn find_pages(folder: &Path, pages: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_left_out = name == "target" || name == ".git";
        if entry.file_type()?.is_dir() {
            if !is_left_out {
                find_pages(&entry.path(), pages)?;
            }
        } else if entry.path().extension().is_some_and(|kind| kind == "md") {
            pages.push(entry.path());
        }
    }
    Ok(())
}

const SOURCES: &str = "src/guide";
const RENDERED: &str = "docs/guide";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_keeps_texts_and_links_to_pages_alone() {
        let source = "Make a [`Node`](crate::Node), see [memory]\nand [`Kind`](std::io::ErrorKind).\n\
                      # Heading\n```rust\n# fn main() {\n#[test]\nlet a = 1;\n# }\n```\n\
                      [memory]: memory.md\n";
        let page = rendered("a.md", source);
        let (_, page) = page.split_once("-->\n\n").expect("a first line");
        assert_eq!(
            page,
            "Make a `Node`, see [memory]\nand `Kind`.\n\
             # Heading\n```rust\n#[test]\nlet a = 1;\n```\n[memory]: memory.md\n"
        );
    }

    /// A link to an item becomes its text, which code beside it would run into.
    #[test]
    fn no_code_touches_a_link_to_an_item() {
        for entry in fs::read_dir(workspace::root().join(SOURCES)).unwrap() {
            let path = entry.unwrap().path();
            let page = fs::read_to_string(&path).unwrap();
            for (at, _) in page
                .match_indices("](crate::")
                .chain(page.match_indices("](std::"))
            {
                let opens = page[..at].rfind('[').unwrap();
                let ends = at + page[at..].find(')').unwrap();
                let around = [
                    page[..opens].chars().last(),
                    page[ends + 1..].chars().next(),
                ];
                let link = &page[opens..=ends];
                assert!(!around.contains(&Some('`')), "{path:?}: {link}");
            }
        }
    }

    #[test]
    fn links_to_files_are_found() {
        let page = "[a](b.md#c) [d](https://e) ![f](g.svg \"h\")\n[i]: j.md\n[k](#l)\n";
        assert_eq!(targets(page), ["b.md#c", "g.svg", "#l", "j.md"]);
    }
}
