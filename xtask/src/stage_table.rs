//! The table of stages in CONTRIBUTING.md, whose times are those of a whole run.

use std::fmt::Write as _;
use std::fs;
use std::thread;

use crate::failure::Failure;
use crate::report::Report;
use crate::stage::Stage;
use crate::workspace;

/// The page.
const PAGE: &str = "CONTRIBUTING.md";
/// The lines between which the table stands.
const BEGIN: &str = "<!-- stages: `./test --write` writes this table -->\n";
const END: &str = "<!-- end of stages -->\n";
/// The time of a stage that no run has written yet.
const UNKNOWN: &str = "–";

/// Writes the times of a whole run into the page.
pub(crate) fn write(lists: &[&[Stage]], report: &Report) -> Result<(), Failure> {
    let page = read()?;
    let [before, _, after] = parts(&page)?;
    let seconds = |name: &str| {
        let row = report.rows.iter().find(|row| row.name == name);
        row.map_or(UNKNOWN.to_string(), |row| {
            format!("{:.0} s", row.taken.as_secs_f64())
        })
    };
    let mut table = table(lists, seconds);
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let minutes = report.taken.as_secs_f64() / 60.0;
    let _ = writeln!(
        table,
        "| all, in two lists side by side | {minutes:.0} min on {cores} cores | |"
    );
    let page_path = workspace::root().join(PAGE);
    fs::write(page_path, format!("{before}{BEGIN}{table}{END}{after}"))
        .map_err(|error| Failure::new(format!("{PAGE}: {error}")))
}

/// Returns the table with a time for each stage.
fn table(lists: &[&[Stage]], time: impl Fn(&str) -> String) -> String {
    let mut table = String::from("| stage | took | shows |\n|---|---|---|\n");
    for stage in lists.iter().copied().flatten() {
        let (name, about) = (stage.name, stage.about);
        let mark = if stage.quick { "\\*" } else { "" };
        let took = time(name);
        let _ = writeln!(table, "| `{name}`{mark} | {took} | {about} |");
    }
    table
}

fn read() -> Result<String, Failure> {
    fs::read_to_string(workspace::root().join(PAGE))
        .map_err(|error| Failure::new(format!("{PAGE}: {error}")))
}

/// Returns what stands before the table, the table, and what stands behind it.
fn parts(page: &str) -> Result<[&str; 3], Failure> {
    let found = page.split_once(BEGIN).and_then(|(before, rest)| {
        let (table, after) = rest.split_once(END)?;
        Some([before, table, after])
    });
    found.ok_or_else(|| Failure::new(format!("{PAGE} has no table of stages")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stages::STAGES;

    /// The times differ with each run; everything else is that of the code.
    #[test]
    fn the_page_names_each_stage_and_what_it_shows() {
        let page = read().unwrap();
        let [_, written, _] = parts(&page).unwrap();
        let took = |name: &str| {
            let start = format!("| `{name}`");
            let line = written.lines().find(|line| line.starts_with(&start));
            let time = line.and_then(|line| line.split(" | ").nth(1));
            time.unwrap_or(UNKNOWN).to_string()
        };
        let expected = table(STAGES, took);
        let (head, all) = written.rsplit_once("| all").unwrap();
        assert_eq!(head, expected, "`./test --write` writes it");
        assert!(all.ends_with(" |\n"), "{all}");
    }
}
