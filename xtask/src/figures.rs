//! The figures on README.md and BENCHMARKS.md: `cargo xtask bench --write` measures them and writes
//! them into the pages, and `cargo xtask release-check` fails if they are of older code.
//!
//! A table of figures has a last column `commit`, the commit that a row was measured at. A row's
//! label is its key: the benchmarks print rows with the labels of BENCHMARKS.md, and README.md has
//! some of these rows. Under each table, between two markers, stands a line for each of its commits,
//! with the date and the machine.

use std::collections::BTreeMap;
use std::fs;
use std::thread;

use crate::failure::Failure;
use crate::step::Step;
use crate::watchdog::Watchdog;
use crate::workspace;

const BENCHMARKS: &str = "BENCHMARKS.md";
const README: &str = "README.md";
/// The pages with tables of figures; the first has all rows.
const PAGES: [&str; 2] = [BENCHMARKS, README];
/// A page of older figures, of which none may be a row of those pages with other figures.
const MEASUREMENTS: &str = "docs/measurements.md";
/// The rows that the pictures against size show.
const BY_SIZE: &str = "docs/figures/by_size.json";
/// The lines between which the commits of a table stand.
const BEGIN: &str = "<!-- commits: `cargo xtask bench --write` writes these lines -->\n";
const END: &str = "<!-- end of commits -->\n";
/// The last cell of a row that was measured between far cores.
const FAR: &str = "far cores";

/// The folders through which a message passes, whatever carries it.
const OF_ALL: &[&str] = &[
    "codec/src",
    "core/src",
    "transport/base/src",
    "transport/protocol/src",
    "transport/ring/src",
    "transport/src",
];
/// The word of a label that names what carries the messages, with the folders that it has beside
/// those. A handshake (`bootstrap`) carries none.
const CARRIERS: &[(&str, &[&str])] = &[
    ("shm", &[]),
    ("shared memory", &[]),
    ("tcp", &[]),
    ("tls", &["transport/tls/src"]),
    ("rdma", &["transport/verbs/src"]),
    (BY_SIZE, &["transport/tls/src"]),
];
/// Files that are no part of a measured program.
const EXCEPT: &[&str] = &[":(exclude,glob)**/tests/**", ":(exclude,glob)**/tests.rs"];

/// Measures the rows of this machine, or those whose names hold `row`, and writes them into the
/// pages.
pub(crate) fn measure(row: Option<&str>, watchdog: &Watchdog) -> Result<(), Failure> {
    let changed = output("git diff --name-only HEAD", watchdog)?;
    let is_code = |file: &&str| {
        ![".md", ".svg", ".json"]
            .iter()
            .any(|end| file.ends_with(end))
    };
    if let Some(file) = changed.lines().find(is_code) {
        return Err(Failure::new(format!(
            "{file} is not committed, so no commit names the code that would be measured"
        )));
    }
    let program = Step::of_line("cargo bench -p ibex-benches --bench pingpong").aside();
    let program = program.build_program(watchdog)?;
    let pingpong = Step::new(&program).arg("--markdown").args(row);
    let mut measured = measured_by(&pingpong, watchdog)?;
    let mut sweep = String::new();
    if row.is_none() {
        let sealed = Step::of_line("cargo bench -p ibex-benches --bench sealed");
        measured += &measured_by(&sealed, watchdog)?;
        let perf = Step::of_line("cargo run --release -p ibex-cli -- perf --sweep --json");
        sweep = measured_by(&perf, watchdog)?;
    }
    let run = Run {
        commit: output("git rev-parse --short=8 HEAD", watchdog)?,
        machine: machine(watchdog)?,
        has_sweep: !sweep.is_empty(),
        rows: measured_rows(&measured),
    };
    for page in PAGES {
        write(page, &run.written_into(&read(page)?))?;
    }
    let benchmarks = read(BENCHMARKS)?;
    for row in &run.rows {
        if !self::rows(&benchmarks).any(|known| known[0] == row[0]) {
            println!("{BENCHMARKS} has no row {}", row[0]);
        }
    }
    if run.has_sweep {
        let rows = sweep.trim_end().replace('\n', ",\n");
        write(BY_SIZE, &format!("[\n{rows}\n]\n"))?;
    }
    draw(watchdog)
}

/// Draws the pictures of the pages again.
pub(crate) fn draw(watchdog: &Watchdog) -> Result<(), Failure> {
    Step::of_line("cargo run -p ibex-measurement --example plots").run(watchdog)
}

/// The stage of `cargo xtask release-check`: each figure is of the present code, and the documents
/// agree.
pub(crate) fn check(watchdog: &Watchdog) -> Result<(), Failure> {
    let benchmarks = read(BENCHMARKS)?;
    let others = [
        (README, &*read(README)?),
        (MEASUREMENTS, &*read(MEASUREMENTS)?),
    ];
    let mut found = disagreements(&benchmarks, &others);
    found.extend(far_from_the_sweep(&benchmarks, &read(BY_SIZE)?));
    let mut labels_of = BTreeMap::<_, Vec<_>>::new();
    for page in PAGES {
        for (label, commit) in commits(&read(page)?) {
            if let Some(folders) = folders(&label) {
                let labels = labels_of.entry((commit, folders)).or_default();
                labels.push(format!("  {page}: {label}"));
            }
        }
    }
    for ((commit, folders), labels) in labels_of {
        let newest = Step::of_line("git log -1 --format=%h")
            .args([&format!("{commit}..HEAD"), "--"])
            .args(OF_ALL.iter().chain(folders).chain(EXCEPT).copied())
            .capture(watchdog)?;
        let newest = match (newest.status.success(), newest.stdout.trim()) {
            (false, _) => "nobody has that commit".to_owned(),
            (true, "") => continue,
            (true, newest) => format!("{newest} changed their code"),
        };
        found.push(format!(
            "rows of {commit}, but {newest}:\n{}",
            labels.join("\n")
        ));
    }
    match found.is_empty() {
        true => Ok(()),
        false => Err(Failure::new(format!(
            "{}\n`cargo xtask bench --write` measures the rows of shared memory, TCP and TLS; the text \
             beside the other tables names their commands",
            found.join("\n")
        ))),
    }
}

/// A run of the benchmarks.
struct Run {
    commit: String,
    /// The date and the machine.
    machine: String,
    /// Set if it measured [`BY_SIZE`].
    has_sweep: bool,
    /// The cells of the measured rows.
    rows: Vec<Vec<String>>,
}

impl Run {
    /// Returns a page with the measured rows in its tables, and with the commits under them.
    fn written_into(&self, page: &str) -> String {
        let mut written = String::new();
        for part in page.split_inclusive(END) {
            let (tables, commits) = part.split_once(BEGIN).unwrap_or((part, ""));
            let lines = tables.split_inclusive('\n');
            let tables: String = lines.map(|line| self.line(line)).collect();
            written += &tables;
            if commits.is_empty() {
                continue;
            }
            let is_of = |commit: &str| match tables.contains(BY_SIZE) {
                true => self.has_sweep == (commit == self.commit),
                false => rows(&tables).any(|row| commit_in(&row[row.len() - 1]) == Some(commit)),
            };
            written += BEGIN;
            if is_of(&self.commit) {
                written += &format!("- `{}`, {}\n", self.commit, self.machine);
            }
            let others = commits.split_inclusive('\n').filter(|line| {
                let commit = commit_in(line).filter(|commit| *commit != self.commit);
                commit.is_some_and(is_of)
            });
            written.extend(others);
            written += END;
        }
        written
    }

    /// Returns a page's line, with this run's figures if it is a row that was measured.
    fn line(&self, line: &str) -> String {
        let there = cells(line);
        let measured = self.rows.iter().find(|row| row[0] == there[0]);
        let Some(row) = measured.filter(|row| row.len() >= there.len() - 1) else {
            return line.to_owned();
        };
        // The table may have fewer columns than the row; its last is the commit.
        let figures = row[..there.len() - 1].join(" | ");
        let far = row.last().filter(|cell| *cell == FAR);
        let far = far.map_or(String::new(), |far| format!(", {far}"));
        format!("| {figures} | `{}`{far} |\n", self.commit)
    }
}

/// Returns the rows of `others` that have other figures or another commit than the row of
/// `benchmarks` with the same label, and those with a commit that are not in `benchmarks`.
fn disagreements(benchmarks: &str, others: &[(&str, &str)]) -> Vec<String> {
    let mut found = Vec::new();
    for (page, text) in others {
        for row in text.lines().filter(|line| line.starts_with('|')).map(cells) {
            let (last, figures) = row.split_last().expect("a line has a cell");
            let mut alike = rows(benchmarks)
                .filter(|known| known[0] == row[0])
                .peekable();
            let is_known = alike.peek().is_some();
            let agrees =
                |known: Vec<String>| known.last() == Some(last) && known.starts_with(figures);
            if !alike.any(agrees) && (is_known || commit_in(last).is_some()) {
                found.push(format!(
                    "{page} and {BENCHMARKS} differ in the row: {}",
                    row[0]
                ));
            }
        }
    }
    found
}

/// Returns the rows whose figure is more than twice or less than half of what the sweep found for the
/// same messages, so that these are not of one machine.
fn far_from_the_sweep(benchmarks: &str, sweep: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (label, figure) in sweep.lines().filter_map(of_sweep) {
        let row = rows(benchmarks).find(|row| row[0] == label);
        let Some((row, there)) = row.and_then(|row| Some((quantity(&row[1])?, row[1].clone())))
        else {
            continue;
        };
        if !(0.5..=2.0).contains(&(figure / row)) {
            found.push(format!(
                "{BENCHMARKS} says {there} for {label}, {BY_SIZE} {figure:.0} ns or bytes/s"
            ));
        }
    }
    found
}

/// Returns the label that a line of [`BY_SIZE`] has in the tables, and its nanoseconds or bytes per
/// second.
fn of_sweep(line: &str) -> Option<(String, f64)> {
    let field = |name: &str| {
        let (_, value) = line.split_once(&format!("\"{name}\":"))?;
        Some(value.split([',', '}']).next()?.trim_matches('"'))
    };
    let carrier = match field("fabric")? {
        "shm" => "shared memory",
        "tcp" => "TCP",
        _ => return None,
    };
    let size = match field("size")? {
        "64" => "64 B",
        "1048576" => "1 MiB",
        _ => return None,
    };
    let (kind, figure) = match field("mode")? {
        "latency" => ("one-way latency", field("p50")?),
        _ => ("throughput", field("bytes_per_s")?),
    };
    Some((format!("{carrier}, {size}, {kind}"), figure.parse().ok()?))
}

/// Returns the nanoseconds or bytes per second of a figure such as `6.0 µs`.
fn quantity(figure: &str) -> Option<f64> {
    let (value, unit) = figure.split_once(' ')?;
    let unit = match unit {
        "ns" => 1.0,
        "µs" => 1e3,
        "MiB/s" => 1024.0 * 1024.0,
        "GiB/s" => 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    Some(value.parse::<f64>().ok()? * unit)
}

/// Returns the label and the commit of each figure of a page.
fn commits(page: &str) -> Vec<(String, String)> {
    let of_row = |row: Vec<String>| Some((row[0].clone(), commit_in(row.last()?)?.to_owned()));
    let mut commits: Vec<_> = rows(page).filter_map(of_row).collect();
    let sweep = page
        .split_once(BY_SIZE)
        .and_then(|(_, rest)| rest.split_once(BEGIN));
    let sweep = sweep.and_then(|(_, lines)| commit_in(lines));
    commits.extend(sweep.map(|commit| (BY_SIZE.to_owned(), commit.to_owned())));
    commits
}

/// Returns the folders of a row's carrier beside [`OF_ALL`]; `None` for a row of no carrier, such as
/// one of plain sockets.
fn folders(label: &str) -> Option<&'static [&'static str]> {
    let label = label.to_lowercase();
    let carrier = CARRIERS.iter().find(|(name, _)| label.contains(name));
    carrier.map(|(_, folders)| *folders)
}

/// Returns the cells of the rows with a commit.
fn rows(page: &str) -> impl Iterator<Item = Vec<String>> {
    let rows = page.lines().filter(|line| line.starts_with('|')).map(cells);
    rows.filter(|row| row.last().is_some_and(|last| commit_in(last).is_some()))
}

/// Returns the cells of the rows that benchmarks have printed, without a table's head.
fn measured_rows(printed: &str) -> Vec<Vec<String>> {
    let rows = printed.lines().map(cells);
    let is_row = |row: &Vec<String>| row.len() > 1 && row[0].starts_with(char::is_alphabetic);
    rows.filter(is_row).collect()
}

/// Returns the cells of a table's line, the whole line if it is none.
fn cells(line: &str) -> Vec<String> {
    let line = line.trim_end();
    let cells = line
        .strip_prefix('|')
        .and_then(|line| line.strip_suffix('|'));
    cells
        .unwrap_or(line)
        .split('|')
        .map(|cell| cell.trim().to_owned())
        .collect()
}

/// Returns the commit with which a cell, or a line under a table, begins.
fn commit_in(text: &str) -> Option<&str> {
    let (commit, _) = text
        .trim_start_matches("- ")
        .strip_prefix('`')?
        .split_once('`')?;
    let is_hash = commit.len() >= 7 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hash.then_some(commit)
}

/// Returns the date and what this machine is.
fn machine(watchdog: &Watchdog) -> Result<String, Failure> {
    let date = output("date --utc +%F", watchdog)?;
    let kernel = output("uname -r", watchdog)?;
    let compiler = output("rustc --version", watchdog)?;
    let two = |version: &str| version.split('.').take(2).collect::<Vec<_>>().join(".");
    let info = read("/proc/cpuinfo")?;
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("an unknown processor", |(_, model)| model);
    let place = if info.contains(" hypervisor") {
        " in a virtual machine"
    } else {
        ""
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let (kernel, compiler) = (two(&kernel), two(compiler.trim_start_matches("rustc ")));
    Ok(format!(
        "{date}: {cores} cores of {model}{place}, Linux {kernel}, rustc {compiler}"
    ))
}

fn output(line: &str, watchdog: &Watchdog) -> Result<String, Failure> {
    measured_by(&Step::of_line(line), watchdog).map(|output| output.trim().to_owned())
}

fn measured_by(step: &Step, watchdog: &Watchdog) -> Result<String, Failure> {
    let output = step.capture(watchdog)?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(Failure::new(format!("`{step}` failed: {}", output.status))),
    }
}

fn read(path: &str) -> Result<String, Failure> {
    fs::read_to_string(workspace::root().join(path))
        .map_err(|error| Failure::new(format!("{path}: {error}")))
}

fn write(path: &str, text: &str) -> Result<(), Failure> {
    fs::write(workspace::root().join(path), text)
        .map_err(|error| Failure::new(format!("{path}: {error}")))
}

#[cfg(test)]
mod tests;
