//! The links between the pages of the repository.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::workspace;

/// Fails if a link in a page of the repository leads to no file.
pub(crate) fn check() -> Result<(), Failure> {
    let dead = dead_links(workspace::root())
        .map_err(|error| Failure::new(format!("the pages cannot be read: {error}")))?;
    if dead.is_empty() {
        Ok(())
    } else {
        Err(Failure::new(dead.join("; ")))
    }
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

/// Returns what the links of a page name in this repository. A link with a colon is an address, or
/// leads to an item of a crate, which rustdoc checks.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_link_leads_to_a_file() {
        let checked = check();
        assert!(checked.is_ok(), "{checked:?}");
    }

    #[test]
    fn links_to_files_are_found() {
        let page = "[a](b.md#c) [d](https://e) ![f](g.svg \"h\")\n[i]: j.md\n[k](#l)\n";
        assert_eq!(targets(page), ["b.md#c", "g.svg", "#l", "j.md"]);
    }
}
