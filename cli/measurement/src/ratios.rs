//! The tables of README.md and BENCHMARKS.md as pictures: how fast ibex is, as a multiple of what
//! each row compares it to.

use std::fmt;

use crate::chart::{COLOURS, escaped, write_head};

/// A picture of rows that compare ibex with something else.
pub struct Ratios {
    /// The line above the picture.
    pub title: &'static str,
    /// The line below the title: machine, commit, command.
    pub note: &'static str,
    /// The rows, from the top.
    pub rows: Vec<RatioRow>,
}

/// A row of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct RatioRow {
    /// What was measured.
    pub name: String,
    /// The figures of ibex and of what it is compared to, with units.
    pub figures: [String; 2],
    /// The lowest, median and highest speed of ibex, as multiples of the other's.
    speeds: [f64; 3],
    /// The least median speed that is aimed at.
    aim: Option<f64>,
}

impl RatioRow {
    /// Reads the rows of the tables of a page that have a ratio with its spread, such as `1.17 ×
    /// [1.10 .. 1.29]`. The sign says that less is better; a speed is then the inverse.
    pub fn read(page: &str) -> Vec<Self> {
        page.lines().filter_map(Self::of_line).collect()
    }

    fn of_line(line: &str) -> Option<Self> {
        let cells: Vec<_> = line.strip_prefix('|')?.split('|').map(str::trim).collect();
        let [name, ibex, other, ratio, rest @ ..] = &cells[..] else {
            return None;
        };
        let (median, spread) = ratio.split_once('[')?;
        let (low, high) = spread.strip_suffix(']')?.split_once(" .. ")?;
        let is_time = median.contains('×');
        let speed = |text: &str| {
            let letters = text.chars();
            let digits = letters.filter(|letter| letter.is_ascii_digit() || *letter == '.');
            let ratio: f64 = digits.collect::<String>().parse().ok()?;
            Some(if is_time { 1.0 / ratio } else { ratio })
        };
        let [low, high] = [speed(low)?, speed(high)?];
        Some(Self {
            name: name.replace('`', ""),
            figures: [ibex, other].map(|figure| (*figure).to_owned()),
            speeds: [low.min(high), speed(median)?, high.max(low)],
            aim: rest.first().and_then(|aim| speed(aim)),
        })
    }
}

impl fmt::Display for Ratios {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<_> = self.rows.iter().map(|row| lines(&row.name)).collect();
        let content: f64 = lines.iter().map(|lines| row_height(lines.len())).sum();
        let bottom = TOP + content;
        write_head(f, [WIDTH, bottom + 88.0], self.title, self.note)?;
        let all = || {
            self.rows
                .iter()
                .flat_map(|row| row.speeds.into_iter().chain(row.aim))
        };
        let low = all().fold(-1.0, |low: f64, speed| low.min(speed.log2().floor()));
        let high = all().fold(1.0, |high: f64, speed| high.max(speed.log2().ceil()));
        let x = |speed: f64| LEFT + (speed.log2() - low) / (high - low) * (RIGHT - LEFT);
        for power in low as i32..=high as i32 {
            let at = x(f64::from(power).exp2());
            let class = if power == 0 { "o" } else { "g" };
            writeln!(f, r#"<path class="{class}" d="M{at:.1} {TOP}V{bottom}"/>"#)?;
            let label = match power {
                ..0 => format!("1/{}", 1 << -power),
                _ => format!("{}", 1 << power),
            };
            let below = bottom + 20.0;
            writeln!(
                f,
                r#"<text x="{at:.1}" y="{below}" text-anchor="middle">{label}</text>"#
            )?;
        }
        let (ibex, other) = (RIGHT + 90.0, RIGHT + 194.0);
        let above = TOP - 8.0;
        writeln!(
            f,
            r#"<text class="n" x="{ibex}" y="{above}" text-anchor="end">ibex</text>"#
        )?;
        writeln!(
            f,
            r#"<text class="n" x="{other}" y="{above}" text-anchor="end">beside</text>"#
        )?;
        let mut top = TOP;
        for (row, lines) in self.rows.iter().zip(&lines) {
            let height = row_height(lines.len());
            let middle = top + height / 2.0;
            for (place, line) in lines.iter().enumerate() {
                let at = middle + 4.0 + 15.0 * (place as f64 - (lines.len() - 1) as f64 / 2.0);
                writeln!(f, r#"<text x="24" y="{at:.1}">{}</text>"#, escaped(line))?;
            }
            let colour = colour(&row.name);
            let [low, median, high] = row.speeds.map(x);
            writeln!(
                f,
                r#"<path d="M{low:.1} {middle}H{high:.1}" stroke="{colour}" stroke-width="5" stroke-linecap="round" opacity="0.4"/>"#
            )?;
            if let Some(aim) = row.aim.map(x) {
                let from = middle - 8.0;
                writeln!(
                    f,
                    r#"<path class="o" stroke-width="2" d="M{aim:.1} {from}v16"/>"#
                )?;
            }
            writeln!(
                f,
                r#"<circle cx="{median:.1}" cy="{middle}" r="5" fill="{colour}"/>"#
            )?;
            for (figure, at) in row.figures.iter().zip([ibex, other]) {
                // `24 MiB/s of one session`: the row's name says of what.
                let figure = figure.split(" of ").next().unwrap_or(figure);
                let (figure, down) = (escaped(figure), middle + 4.0);
                writeln!(
                    f,
                    r#"<text x="{at}" y="{down}" text-anchor="end">{figure}</text>"#
                )?;
            }
            top += height;
        }
        let aims = match self.rows.iter().any(|row| row.aim.is_some()) {
            true => "Upright strokes are the least speeds that we aim at.",
            false => "",
        };
        for (line, at) in [(LEGEND, bottom + 50.0), (aims, bottom + 68.0)] {
            writeln!(f, r#"<text class="n" x="24" y="{at}">{line}</text>"#)?;
        }
        f.write_str("</svg>\n")
    }
}

/// Returns a name in lines that fit beside the picture.
fn lines(name: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in name.split(' ') {
        let last = lines.last_mut().expect("there is a line");
        if !last.is_empty() && last.len() + word.len() > MOST_LETTERS {
            lines.push(word.to_owned());
        } else {
            let space = if last.is_empty() { "" } else { " " };
            *last += &format!("{space}{word}");
        }
    }
    lines
}

fn row_height(lines: usize) -> f64 {
    11.0 + 15.0 * lines as f64
}

fn colour(name: &str) -> &'static str {
    match name.split([',', ' ']).next() {
        Some("shm" | "shared") => COLOURS[0],
        Some("tcp" | "TCP") => COLOURS[1],
        _ => COLOURS[2],
    }
}

const LEGEND: &str = "Speed of ibex as a multiple of the other's: right is faster. Dots are medians, \
                      bars the lowest to the highest of all pairs of runs.";
const WIDTH: f64 = 960.0;
const LEFT: f64 = 410.0;
const RIGHT: f64 = 730.0;
const TOP: f64 = 84.0;
const MOST_LETTERS: usize = 56;

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
| | ibex | limit | ratio | aim |
|---|---|---|---|---|
| shm, `a` | 2 ns | 1 ns | **2.00 ×** [1.60 .. 4.00] | ≤ 1.25 × |
| tcp | 1 GiB/s | 2 GiB/s | 0.50 [0.40 .. 0.80] | ≥ 0.2 |
| other | 1 | 2 | 3 |
";

    #[test]
    fn more_is_faster_for_times_and_for_rates() {
        let rows = RatioRow::read(PAGE);
        let speeds: Vec<_> = rows.iter().map(|row| (row.speeds, row.aim)).collect();
        let expected = [
            ([0.25, 0.5, 0.625], Some(0.8)),
            ([0.4, 0.5, 0.8], Some(0.2)),
        ];
        assert_eq!(speeds, expected);
        assert_eq!(rows[0].name, "shm, a");
    }

    #[test]
    fn every_dot_is_within_the_picture() {
        let picture = Ratios {
            title: "a < b",
            note: "",
            rows: RatioRow::read(PAGE),
        };
        let text = picture.to_string();
        assert!(text.contains("a &lt; b"), "{text}");
        let dots: Vec<_> = text.split("cx=\"").skip(1).collect();
        assert_eq!(dots.len(), 2);
        for dot in dots {
            let at: f64 = dot
                .split('"')
                .next()
                .expect("a place")
                .parse()
                .expect("a number");
            assert!((LEFT..=RIGHT).contains(&at), "{at}");
        }
    }
}
