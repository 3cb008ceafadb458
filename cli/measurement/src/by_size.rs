//! Latency and bandwidth against the size of a message, of ibex and what it is compared to.

use ibex_harness::job::Mode;
use ibex_harness::row::Row;

use crate::chart::{Axis, Chart, Series, Unit};

/// Returns the chart of one-way times, with a note below its title.
pub fn latency(rows: &[&Row], note: &str) -> Chart {
    let p50 = |row: &Row| row.one_way_ns.map(|times| times.p50 as f64);
    let raw_p50 = |row: &Row| row.raw_one_way_ns_p50.map(|ns| ns as f64);
    Chart {
        title: "Latency: one way, median, by size of a message",
        note: note.to_owned(),
        x: Axis::Bytes,
        y: Unit::Nanoseconds,
        series: by_size(rows, p50, raw_p50),
    }
}

/// Returns the chart of rates, with a note below its title.
pub fn bandwidth(rows: &[&Row], note: &str) -> Chart {
    let rate = |row: &Row| (row.mode == Mode::Stream).then_some(row.bytes_per_s);
    let raw_rate = |row: &Row| row.raw_bytes_per_s.filter(|_| row.mode == Mode::Stream);
    Chart {
        title: "Bandwidth: payload per second of a stream, by size of a message",
        note: note.to_owned(),
        x: Axis::Bytes,
        y: Unit::BytesPerSecond,
        series: by_size(rows, rate, raw_rate),
    }
}

/// Returns a line for each fabric and each limit that has more than one size.
fn by_size(
    rows: &[&Row],
    ours: impl Fn(&Row) -> Option<f64>,
    limit: impl Fn(&Row) -> Option<f64>,
) -> Vec<Series> {
    let mut series: Vec<Series> = Vec::new();
    for row in rows.iter().filter(|row| row.size > 0) {
        let both = [(ours(row), ""), (limit(row), " limit")];
        for (figure, suffix) in both {
            let name = format!("{}{suffix}", row.fabric);
            let Some(figure) = figure else { continue };
            let point = (row.size as f64, figure);
            match series.iter_mut().find(|series| series.name == name) {
                Some(series) => series.points.push(point),
                None => series.push(Series {
                    name,
                    points: vec![point],
                    is_limit: !suffix.is_empty(),
                }),
            }
        }
    }
    series.retain(|series| series.points.len() > 1);
    for line in &mut series {
        line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    series
}
