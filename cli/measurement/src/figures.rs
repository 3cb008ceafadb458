//! The pictures of README.md and BENCHMARKS.md, which show the tables of these pages and recorded
//! rows of `ibex perf`.

use std::fs;
use std::path::Path;

use ibex_harness::Error;
use ibex_harness::row::Row;

use crate::by_size;
use crate::ratios::{RatioRow, Ratios};

/// Returns the pictures of the repository at `root`, each with its path.
///
/// # Errors
/// A page or the recorded rows cannot be read, or README.md has a row that BENCHMARKS.md has not.
pub fn pictures(root: &Path) -> Result<Vec<(&'static str, String)>, Error> {
    let read = |path: &str| {
        let text = fs::read_to_string(root.join(path));
        text.map_err(|error| Error::subject(format!("{path}: {error}")))
    };
    let benchmarks = RatioRow::read(&read("BENCHMARKS.md")?);
    // With their aims, which only BENCHMARKS.md has.
    let short = RatioRow::read(&read("README.md")?).into_iter().map(|row| {
        let known = benchmarks.iter().find(|known| known.name == row.name);
        let missing = || Error::subject(format!("BENCHMARKS.md has no row {}", row.name));
        known.cloned().ok_or_else(missing)
    });
    let readme = Ratios {
        title: "ibex beside loops written by hand",
        note: "on the same memory, socket or queue pair and the same cores; BENCHMARKS.md has machine, commit and command",
        rows: short.collect::<Result<_, _>>()?,
    };
    let limits = Ratios {
        title: "ibex beside its limits and other programs",
        note: "cargo bench --bench pingpong, cargo xtask bench --vm; machines and commits are below the table",
        rows: benchmarks,
    };
    let rows = serde_json::from_str::<Vec<Row>>(&read(BY_SIZE)?);
    let rows = rows.map_err(|error| Error::subject(format!("{BY_SIZE}: {error}")))?;
    let rows: Vec<_> = rows.iter().collect();
    let note = "ibex perf --sweep; BENCHMARKS.md has machine and commit";
    Ok(vec![
        ("docs/figures/readme.svg", readme.to_string()),
        ("docs/figures/limits.svg", limits.to_string()),
        (
            "docs/figures/latency_by_size.svg",
            by_size::latency(&rows, note).to_string(),
        ),
        (
            "docs/figures/bandwidth_by_size.svg",
            by_size::bandwidth(&rows, note).to_string(),
        ),
    ])
}

/// The rows that `ibex perf --sweep --json` prints.
const BY_SIZE: &str = "docs/figures/by_size.json";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pictures_show_the_present_tables() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for (path, picture) in pictures(&root).expect("the figures can be read") {
            let there = fs::read_to_string(root.join(path)).unwrap_or_default();
            assert!(
                there == picture,
                "{path} is of other figures; `cargo xtask bench --plots` draws it again"
            );
        }
    }
}
