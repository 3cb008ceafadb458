//! The table of folders in ARCHITECTURE.md, with the lines of code of each.

use std::fs;

use super::census::Census;
use crate::failure::Failure;
use crate::workspace;

/// The page, relative to the root.
const PAGE: &str = "ARCHITECTURE.md";

/// Returns the cells of a line of the page, if it is a row of the table:
/// `` | `FOLDER` | LINES | TEXT | ``.
fn row(line: &str) -> Option<[&str; 3]> {
    let cells: Vec<_> = line.split('|').map(str::trim).collect();
    let ["", folder, lines, text, ""] = cells[..] else {
        return None;
    };
    let folder = folder.strip_prefix('`')?.strip_suffix('`')?;
    let is_source = folder.contains("src/") && folder.ends_with('/');
    is_source.then_some([folder, lines, text])
}

/// Writes the numbers of the page's table anew.
///
/// # Errors
/// The page cannot be read or written.
pub(super) fn write(census: &Census) -> Result<(), Failure> {
    let page: String = page()?
        .lines()
        .map(|line| match row(line) {
            None => format!("{line}\n"),
            Some([folder, _, text]) => {
                let lines = in_hundreds(census.code_in(folder));
                format!("| `{folder}` | {lines} | {text} |\n")
            }
        })
        .collect();
    fs::write(workspace::root().join(PAGE), page)
        .map_err(|error| Failure::new(format!("{PAGE}: {error}")))
}

fn page() -> Result<String, Failure> {
    fs::read_to_string(workspace::root().join(PAGE))
        .map_err(|error| Failure::new(format!("{PAGE}: {error}")))
}

/// Returns a number as text, rounded to hundreds.
fn in_hundreds(number: usize) -> String {
    let hundreds = (number + 50) / 100;
    match hundreds / 10 {
        0 => format!("{hundreds}00"),
        thousands => format!("{thousands},{}00", hundreds % 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers may lag behind by a fifth: `cargo xtask house --write` renews them.
    #[test]
    fn the_page_has_the_size_of_each_crate() {
        let census = Census::of(workspace::root()).expect("a census");
        let page = page().expect("the page");
        let rows: Vec<_> = page.lines().filter_map(row).collect();
        for folder in census.code.keys() {
            let folder = format!("{folder}/src/");
            let folder = folder.trim_start_matches('/');
            assert!(
                rows.iter().any(|[shown, ..]| *shown == folder),
                "{PAGE} has no row for {folder}"
            );
        }
        for [folder, shown, _] in rows {
            let now = census.code_in(folder);
            let shown: usize = shown.replace(',', "").parse().expect("a number");
            assert!(
                shown.abs_diff(now) <= 100 + now / 5,
                "{PAGE}: {folder} has {now} lines and not {shown}"
            );
        }
    }

    #[test]
    fn numbers_are_rounded() {
        assert_eq!(in_hundreds(77), "100");
        assert_eq!(in_hundreds(12_049), "12,000");
    }
}
