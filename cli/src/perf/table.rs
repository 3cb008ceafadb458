//! Rows as people read them: two tables, of times and of rates, in 100 columns.

use ibex_harness::job::Mode;
use ibex_harness::row::{Row, bytes, count, duration};

use super::options::PerfOptions;
use super::place::Place;

/// The explanation of the columns, below the last row.
pub(crate) const FOOTING: &str = "
Times are one way, half a round trip; rates are per direction. The limit is the same work without a
library, in turn with ibex on the same cores. Its p50 or rate is shown, and how many times as long
ibex takes, or which share of the rate it has. `plain TCP` and `TLS` (rustls) are blocking sockets.";

/// The table that is being printed.
#[derive(Default)]
pub(crate) struct Table {
    last: Option<Mode>,
}

/// Returns the line above the tables.
pub(crate) fn opening(options: &PerfOptions, place: &Place) -> String {
    let (driver, codec) = (options.driver().name(), options.codec.name());
    let cores = place.cores(options.pairs());
    let between = match place {
        Place::Here { .. } => "two processes of this machine".to_owned(),
        Place::There { to, .. } => format!("this process and {to}"),
    };
    format!("between {between}; driver {driver}, codec {codec}, cores {cores:?}")
}

impl Table {
    /// Returns the line of a row, below a heading if the last row was of another kind.
    pub(crate) fn lines(&mut self, row: &Row) -> String {
        let heading = match (self.last.replace(row.mode) == Some(row.mode), row.mode) {
            (true, _) => "",
            (false, Mode::Latency) => LATENCY,
            (false, Mode::Stream) => STREAM,
        };
        let mut text = format!("{heading}{:10} {:>8}", row.fabric, bytes(row.size as f64));
        let limit = match row.mode {
            Mode::Latency => row.raw_one_way_ns_p50.map(duration),
            Mode::Stream => row.raw_bytes_per_s.map(rate),
        };
        let limit = limit.unwrap_or("-".to_owned());
        let ratio = row
            .ratio
            .map_or("-".to_owned(), |ratio| format!("{ratio:.2} x"));
        let messages = count(row.msgs_per_s);
        if let Some(times) = row.one_way_ns {
            for time in [times.p50, times.p90, times.p99, times.p999, times.max] {
                text += &format!(" {:>8}", duration(time));
            }
            text += &format!(" {messages:>9} {limit:>9} {ratio:>8}");
        } else {
            let rate = rate(row.bytes_per_s);
            text += &format!(" {messages:>10} {rate:>12} {limit:>12} {ratio:>8}");
        }
        if let Some(pairs) = &row.pairs {
            text += &format!("\n  {pairs}");
        }
        if !row.is_sound() {
            text += &format!("\n  data: {}", row.data_check);
        }
        text
    }
}

fn rate(bytes_per_s: f64) -> String {
    format!("{}/s", bytes(bytes_per_s))
}

const LATENCY: &str = "
ratio: the time of ibex in multiples of the limit's; lower is better
one way        size      p50      p90      p99    p99.9      max    msgs/s     limit    ratio
";
const STREAM: &str = "
ratio: the rate of ibex in multiples of the limit's; higher is better
stream         size     msgs/s         rate        limit    ratio
";

#[cfg(test)]
mod tests {
    use ibex_harness::regime::Regime;
    use ibex_harness::row::OneWay;

    use super::*;

    fn row(mode: Mode) -> Row {
        let times = OneWay {
            p5: 58,
            p50: 61,
            p90: 70,
            p99: 100,
            p999: 200,
            max: 5_000_000,
        };
        Row {
            fabric: "plain TCP".to_owned(),
            driver: "caller".to_owned(),
            codec: "raw".to_owned(),
            mode,
            size: 64,
            iters: 1000,
            rate_per_s: None,
            one_way_ns: (mode == Mode::Latency).then_some(times),
            msgs_per_s: 8e6,
            bytes_per_s: 512e6,
            raw_one_way_ns_p50: Some(40),
            raw_bytes_per_s: Some(512e6),
            regime: Some(Regime::Near),
            cores: vec![0, 1],
            bytes_touched: true,
            data_check: "ok".to_owned(),
            pairs: None,
            ratio: Some(1.534),
        }
    }

    #[test]
    fn columns_stand_below_their_headings_and_end_before_the_hundredth() {
        let mut table = Table::default();
        let mut text = table.lines(&row(Mode::Latency));
        text += &table.lines(&row(Mode::Stream));
        let stream = table.lines(&row(Mode::Stream));
        assert_eq!(stream.lines().count(), 1, "{stream}");
        let lines: Vec<_> = text.lines().collect();
        assert!(
            lines.iter().all(|line| line.chars().count() <= 100),
            "{text}"
        );
        assert!(
            lines[3].contains("61 ns") && lines[3].ends_with("1.53 x"),
            "{text}"
        );
        assert_eq!(lines[2].len(), lines[3].len(), "{text}");
        assert!(lines[1].ends_with("lower is better"), "{text}");
        assert!(
            text.contains("the rate of ibex") && text.contains("higher is better"),
            "{text}"
        );
        assert!(stream.contains("488 MiB/s"), "{stream}");
    }

    #[test]
    fn damage_is_told_below_the_row() {
        let damaged = Row {
            data_check: "failed: 1 damaged".to_owned(),
            ..row(Mode::Stream)
        };
        let text = Table::default().lines(&damaged);
        assert!(text.ends_with("data: failed: 1 damaged"), "{text}");
    }
}
