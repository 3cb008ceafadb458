use super::*;

const PAGE: &str = "\
text
| | ibex | limit | ratio | aim | commit |
|---|---|---|---|---|---|
| TCP, 64 B, throughput | 1 GiB/s | 2 GiB/s | 0.50 [0.40 .. 0.60] | ≥ 0.2 | `1111111` |
| TCP, 1 MiB, throughput | 3 GiB/s | 3 GiB/s | 1.00 [0.90 .. 1.10] | ≥ 0.8 | `1111111` |
| emulated RDMA, 64 B | 9 | 8 | 1.12 | | `3333333` |

<!-- commits: `cargo xtask bench --write` writes these lines -->
- `1111111`, 2026-01-01: a machine
- `3333333`, 2026-01-03: a guest
<!-- end of commits -->

docs/figures/by_size.json

<!-- commits: `cargo xtask bench --write` writes these lines -->
- `1111111`, 2026-01-01: a machine
<!-- end of commits -->
more
";
const SHORT: &str = "\
| TCP, 64 B, throughput | 1 GiB/s | 2 GiB/s | 0.50 [0.40 .. 0.60] | `1111111` |
";

fn run(measured: &str, has_sweep: bool) -> Run {
    Run {
        commit: "2222222".to_owned(),
        machine: "2026-01-02: another".to_owned(),
        has_sweep,
        rows: measured_rows(measured),
    }
}

#[test]
fn measured_rows_are_written_and_others_keep_their_commit() {
    let measured = "| | ibex | limit | ratio | aim |\n|---|---|---|---|---|\n\
                    | TCP, 64 B, throughput | 5 GiB/s | 2 GiB/s | 2.50 [2.40 .. 2.60] | ≥ 0.2 |\n\
                    | TCP, 1 MiB, throughput | 4 GiB/s | 4 GiB/s | 1.00 [1 .. 1] | ≥ 0.8 | far cores |";
    let page = run(measured, true).written_into(PAGE);
    let of_tcp = "| TCP, 64 B, throughput | 5 GiB/s | 2 GiB/s | 2.50 [2.40 .. 2.60] |";
    let expected = PAGE
        .replace(
            "| 1 GiB/s | 2 GiB/s | 0.50 [0.40 .. 0.60] |",
            "| 5 GiB/s | 2 GiB/s | 2.50 [2.40 .. 2.60] |",
        )
        .replace(
            "| 3 GiB/s | 3 GiB/s | 1.00 [0.90 .. 1.10] | ≥ 0.8 | `1111111` |",
            "| 4 GiB/s | 4 GiB/s | 1.00 [1 .. 1] | ≥ 0.8 | `2222222`, far cores |",
        )
        .replace(
            "1111111`, 2026-01-01: a machine",
            "2222222`, 2026-01-02: another",
        )
        .replace("1111111", "2222222");
    assert_eq!(page, expected);
    let short = run(measured, true).written_into(SHORT);
    assert_eq!(short, format!("{of_tcp} `2222222` |\n"));
}

#[test]
fn a_run_of_some_rows_keeps_what_the_others_were_measured_on() {
    let measured = "| TCP, 64 B, throughput | 5 GiB/s | 2 GiB/s | 2.50 [2 .. 3] | ≥ 0.2 |";
    let page = run(measured, false).written_into(PAGE);
    let lines: Vec<_> = page.lines().filter(|line| line.starts_with("- ")).collect();
    let of_rows = [
        "- `2222222`, 2026-01-02: another",
        "- `1111111`, 2026-01-01: a machine",
    ];
    let expected = [
        of_rows[0],
        of_rows[1],
        "- `3333333`, 2026-01-03: a guest",
        of_rows[1],
    ];
    assert_eq!(lines, expected);
    assert_eq!(run("", false).written_into(PAGE), PAGE);
}

#[test]
fn pages_that_differ_are_named_with_the_row() {
    assert_eq!(disagreements(PAGE, &[("x.md", SHORT)]), [""; 0]);
    let changes = [
        ("1 GiB/s", "7 GiB/s"),
        ("1111111", "2222222"),
        ("TCP", "tcp"),
    ];
    for (from, to) in changes {
        let other = SHORT.replacen(from, to, 1);
        let found = disagreements(PAGE, &[("x.md", &other)]);
        assert!(
            found.len() == 1 && found[0].starts_with("x.md and "),
            "{found:?}"
        );
    }
}

#[test]
fn a_sweep_of_another_machine_is_found() {
    let line = |rate| {
        format!(
            r#"{{"fabric":"tcp","mode":"stream","size":64,"one_way_ns":null,"bytes_per_s":{rate},"raw_bytes_per_s":1.0}},"#
        )
    };
    assert_eq!(far_from_the_sweep(PAGE, &line("1173741824.5")), [""; 0]);
    assert_eq!(far_from_the_sweep(PAGE, &line("3173741824.5")).len(), 1);
}

#[test]
fn each_figure_has_its_commit_and_its_folders() {
    let labels = commits(PAGE);
    assert_eq!(labels.len(), 4);
    assert_eq!(labels[3], (BY_SIZE.to_owned(), "1111111".to_owned()));
    assert_eq!(
        folders("emulated RDMA, 64 B"),
        Some(&["transport/verbs/src"][..])
    );
    assert_eq!(folders(BY_SIZE), Some(&["transport/tls/src"][..]));
    assert_eq!(folders("sockets"), None);
}

#[test]
fn the_documents_have_the_same_figures() {
    let others = [README, MEASUREMENTS].map(|page| (page, read(page).unwrap()));
    let others = others.each_ref().map(|(page, text)| (*page, text.as_str()));
    assert_eq!(disagreements(&read(BENCHMARKS).unwrap(), &others), [""; 0]);
}

/// Every table with a column `commit` has a commit in each row, and under it what it was measured
/// on.
#[test]
fn each_commit_of_a_table_stands_under_it() {
    for page in PAGES {
        let text = read(page).unwrap();
        for part in text
            .split_inclusive(END)
            .filter(|part| part.contains(BEGIN))
        {
            let (tables, lines) = part.split_once(BEGIN).unwrap();
            for (label, commit) in commits(tables) {
                assert!(lines.contains(&commit), "{page}: {commit} of {label}");
            }
        }
        let tables = text.split("| commit |\n").skip(1);
        for line in tables.flat_map(|table| {
            table
                .lines()
                .skip(1)
                .take_while(|line| line.starts_with('|'))
        }) {
            assert!(
                commit_in(cells(line).last().unwrap()).is_some(),
                "{page}: {line}"
            );
        }
    }
}
