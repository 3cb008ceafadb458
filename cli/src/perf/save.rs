//! The files of a run: rows, distributions, plots.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use ibex_harness::Error;
use ibex_harness::histogram::Distribution;
use ibex_harness::row::bytes;
use ibex_measurement::by_size;
use ibex_measurement::chart::{Axis, Chart, Series, Unit};

use super::Kept;

/// Writes all files of a run into a folder, which is made if it does not exist. The plots have the
/// note below their titles.
pub(crate) fn write(folder: &Path, kept: &[Kept], note: &str) -> Result<(), Error> {
    let write = || -> io::Result<()> {
        fs::create_dir_all(folder)?;
        let rows: Vec<_> = kept.iter().map(|kept| &kept.row).collect();
        fs::write(folder.join("rows.json"), serde_json::to_vec_pretty(&rows)?)?;
        for Kept { row, distribution } in kept {
            if let Some(distribution) = distribution {
                let name = row.fabric.to_lowercase().replace(' ', "-");
                let file = format!("{name}-{}.hgrm", row.size);
                fs::write(folder.join(file), percentiles(distribution))?;
            }
        }
        for (name, chart) in charts(kept, note) {
            if !chart.series.is_empty() {
                fs::write(folder.join(format!("{name}.svg")), chart.to_string())?;
            }
        }
        Ok(())
    };
    write().map_err(|error| Error::subject(format!("--save {}: {error}", folder.display())))
}

/// Returns times in nanoseconds as HdrHistogram prints them (`outputPercentileDistribution`), which
/// its plotter reads: <https://hdrhistogram.github.io/HdrHistogram/plotFiles.html>.
fn percentiles(distribution: &Distribution) -> String {
    let steps: Vec<_> = distribution.steps().collect();
    let total = steps.last().map_or(0, |(_, count)| *count);
    let mut text = "       Value     Percentile TotalCount 1/(1-Percentile)\n\n".to_owned();
    let (mut sum, mut squares, mut before) = (0.0, 0.0, 0);
    for &(ns, count) in &steps {
        let here = (count - before) as f64;
        (sum, squares, before) = (sum + ns * here, squares + ns * ns * here, count);
        let share = count as f64 / total as f64;
        let inverse = match count == total {
            true => "inf".to_owned(),
            false => format!("{:.2}", 1.0 / (1.0 - share)),
        };
        let _ = writeln!(text, "{ns:12.3} {share:2.12} {count:10} {inverse:>14}");
    }
    let mean = sum / total as f64;
    let deviation = (squares / total as f64 - mean * mean).max(0.0).sqrt();
    let max = distribution.max();
    let _ = writeln!(
        text,
        "#[Mean    = {mean:12.3}, StdDeviation   = {deviation:12.3}]"
    );
    let _ = writeln!(text, "#[Max     = {max:12.3}, Total count    = {total:12}]");
    text
}

fn charts(kept: &[Kept], note: &str) -> [(&'static str, Chart); 3] {
    let with_times = kept.iter().filter_map(|kept| {
        let distribution = kept.distribution.as_ref()?;
        let total = distribution.steps().last()?.1;
        // A tenth of a nine apart, up to the nine that still has a message beyond it.
        let most = ((total as f64).log10() * 10.0) as u32;
        let points = (0..=most).map(|tenths| {
            let nines = f64::from(tenths) / 10.0;
            (nines, distribution.at(1.0 - 10.0_f64.powf(-nines)))
        });
        Some(Series {
            name: format!("{} {}", kept.row.fabric, bytes(kept.row.size as f64)),
            points: points.collect(),
            is_limit: false,
        })
    });
    let by_percentile = Chart {
        title: "One way, by percentile",
        note: note.to_owned(),
        x: Axis::Nines,
        y: Unit::Nanoseconds,
        series: with_times.collect(),
    };
    let rows: Vec<_> = kept.iter().map(|kept| &kept.row).collect();
    [
        ("latency_by_percentile", by_percentile),
        ("latency_by_size", by_size::latency(&rows, note)),
        ("bandwidth_by_size", by_size::bandwidth(&rows, note)),
    ]
}
