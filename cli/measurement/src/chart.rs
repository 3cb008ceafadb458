//! Lines over two logarithmic axes, as SVG for light and dark pages.

use std::fmt;

use ibex_harness::row::{bytes, duration};

/// A picture.
pub struct Chart {
    /// The line above the picture.
    pub title: &'static str,
    /// The line below the title: machine, commit, command.
    pub note: String,
    /// What the horizontal axis shows.
    pub x: Axis,
    /// What the vertical axis shows.
    pub y: Unit,
    /// The lines, in the order of the legend.
    pub series: Vec<Series>,
}

/// A line.
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// In ascending order.
    pub points: Vec<(f64, f64)>,
    /// Set for a limit, whose line is dashed.
    pub is_limit: bool,
}

/// The meaning of the horizontal axis.
#[derive(Clone, Copy)]
pub enum Axis {
    /// Sizes, by powers of two.
    Bytes,
    /// Percentiles by their number of nines: 1 is 90 %, 2 is 99 %.
    Nines,
}

impl Axis {
    fn place(self, x: f64) -> f64 {
        match self {
            Self::Bytes => x.log2(),
            Self::Nines => x,
        }
    }

    /// Returns the label of a whole place.
    fn label(self, place: i32) -> String {
        match (self, place) {
            (Self::Bytes, place) => bytes(f64::from(place).exp2()),
            (Self::Nines, 0) => "0 %".to_owned(),
            (Self::Nines, 1) => "90 %".to_owned(),
            (Self::Nines, 2) => "99 %".to_owned(),
            (Self::Nines, nines) => format!("99.{} %", "9".repeat(nines as usize - 2)),
        }
    }
}

/// The unit of the vertical axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Times, by powers of ten, their doubles and halves.
    Nanoseconds,
    /// Rates, by powers of two.
    BytesPerSecond,
}

impl Unit {
    /// Returns ticks from at most the least value to at least the greatest, two or more.
    fn ticks(self, values: impl Iterator<Item = f64>) -> Vec<f64> {
        let values = values.filter(|value| value.is_finite() && *value > 0.0);
        let [least, most] = values.fold([f64::INFINITY, 0.0], |[least, most]: [f64; 2], value| {
            [least.min(value), most.max(value)]
        });
        let steps: Vec<f64> = match self {
            Self::Nanoseconds => {
                let powers = (0..12).map(|power| 10.0_f64.powi(power));
                powers.flat_map(|ten| [ten, 2.0 * ten, 5.0 * ten]).collect()
            }
            Self::BytesPerSecond => (0..50).map(|power| 2.0_f64.powi(power)).collect(),
        };
        let first = steps.iter().rposition(|step| *step <= least);
        let first = first.unwrap_or(0).min(steps.len() - 2);
        let last = steps.iter().position(|step| *step >= most);
        let last = last.unwrap_or(steps.len() - 1).max(first + 1);
        steps[first..=last].to_vec()
    }

    fn label(self, value: f64) -> String {
        match self {
            Self::Nanoseconds => duration(value as u64).replace("us", "µs"),
            Self::BytesPerSecond => format!("{}/s", bytes(value)),
        }
    }
}

impl fmt::Display for Chart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = || self.series.iter().flat_map(|series| &series.points);
        let [left, right] = ends(all().map(|point| self.x.place(point.0)));
        let ticks = self.y.ticks(all().map(|point| point.1));
        let [low, high] = [ticks[0], ticks[ticks.len() - 1]].map(f64::log10);
        let x = |x: f64| LEFT + (x - left) / (right - left) * (RIGHT - LEFT);
        let y = |y: f64| BOTTOM - (y - low) / (high - low) * (BOTTOM - TOP);
        write_head(f, [WIDTH, HEIGHT], self.title, &self.note)?;
        let step = (((right - left) / 8.0).ceil() as i32).max(1);
        for place in (left as i32..=right as i32).step_by(step as usize) {
            let (at, label) = (x(f64::from(place)), self.x.label(place));
            writeln!(f, r#"<path class="g" d="M{at:.1} {TOP}V{BOTTOM}"/>"#)?;
            let below = BOTTOM + 20.0;
            writeln!(
                f,
                r#"<text x="{at:.1}" y="{below}" text-anchor="middle">{label}</text>"#
            )?;
        }
        let step = ticks.len().div_ceil(MOST_TICKS);
        for tick in ticks.into_iter().step_by(step) {
            let (at, label) = (y(tick.log10()), self.y.label(tick));
            writeln!(f, r#"<path class="g" d="M{LEFT} {at:.1}H{RIGHT}"/>"#)?;
            let (before, at) = (LEFT - 8.0, at + 4.0);
            writeln!(
                f,
                r#"<text x="{before}" y="{at:.1}" text-anchor="end">{label}</text>"#
            )?;
        }
        let mut colours = COLOURS.iter().cycle();
        let mut colour = COLOURS[0];
        let mut legend = TOP + 6.0;
        for series in &self.series {
            // A limit has the colour of what it limits.
            if !series.is_limit {
                colour = colours.next().expect("colours repeat");
            }
            let dash = match series.is_limit {
                true => r#" stroke-dasharray="5 4" opacity="0.8""#,
                false => "",
            };
            let stroke = format!(r#"fill="none" stroke="{colour}" stroke-width="2"{dash}"#);
            let points = series.points.iter();
            let points = points.map(|(at, value)| [x(self.x.place(*at)), y(value.log10())]);
            let points: Vec<_> = points.map(|[x, y]| format!("{x:.1},{y:.1}")).collect();
            writeln!(f, r#"<polyline points="{}" {stroke}/>"#, points.join(" "))?;
            for point in points.iter().filter(|_| points.len() <= 24) {
                let (x, y) = point.split_once(',').expect("it was made above");
                writeln!(f, r#"<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>"#)?;
            }
            let (from, to) = (RIGHT + 16.0, RIGHT + 46.0);
            writeln!(f, r#"<path d="M{from} {legend}h22" {stroke}/>"#)?;
            let (name, at) = (escaped(&series.name), legend + 4.0);
            writeln!(f, r#"<text x="{to}" y="{at}">{name}</text>"#)?;
            legend += 22.0;
        }
        f.write_str("</svg>\n")
    }
}

/// Returns the whole numbers around all values, at least one apart.
fn ends(values: impl Iterator<Item = f64>) -> [f64; 2] {
    let finite = values.filter(|value| value.is_finite());
    let [low, high] = finite.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], value| {
        [low.min(value.floor()), high.max(value.ceil())]
    });
    match low <= high {
        true => [low, high.max(low + 1.0)],
        false => [0.0, 1.0],
    }
}

/// Writes what stands before the content of a picture: its size, colours for light and dark pages,
/// title and a line below it.
pub(crate) fn write_head(
    f: &mut fmt::Formatter<'_>,
    [width, height]: [f64; 2],
    title: &str,
    note: &str,
) -> fmt::Result {
    let (title, note) = (escaped(title), escaped(note));
    writeln!(
        f,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="{title}">
<style>{STYLE}</style>
<rect class="b" width="{width}" height="{height}" rx="6"/>
<text class="t" x="24" y="32">{title}</text>
<text class="n" x="24" y="52">{note}</text>"##
    )
}

/// Returns text as it stands in SVG.
pub(crate) fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('"', "&quot;")
}

const MOST_TICKS: usize = 16;
const WIDTH: f64 = 880.0;
const HEIGHT: f64 = 460.0;
const LEFT: f64 = 104.0;
const RIGHT: f64 = 690.0;
const TOP: f64 = 74.0;
const BOTTOM: f64 = 420.0;
/// Colours that people with any colour vision tell apart (Okabe and Ito), on light and dark.
pub(crate) const COLOURS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#888888",
];
const STYLE: &str = r#"
text { font-family: system-ui, -apple-system, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif; font-size: 12.5px; fill: #1f2328 }
.t { font-size: 16px; font-weight: 600 } .n { font-size: 11.5px; fill: #59636e } .b { fill: #ffffff }
.g { stroke: #d1d9e0; fill: none } .o { stroke: #59636e; fill: none }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc } .n { fill: #9198a1 } .b { fill: #0d1117 } .g { stroke: #3d444d } .o { stroke: #9198a1 }
}
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_is_within_the_frame() {
        let chart = Chart {
            title: "test",
            note: "a note".to_owned(),
            x: Axis::Bytes,
            y: Unit::Nanoseconds,
            series: vec![Series {
                name: "a < b & c".to_owned(),
                points: vec![(8.0, 3.0), (64.0, 900.0), (1e6, 2e9)],
                is_limit: true,
            }],
        };
        let text = chart.to_string();
        assert!(text.contains("a &lt; b &amp; c") && text.contains("stroke-dasharray"));
        let points = text.split("points=\"").nth(1).expect("a line");
        let points = points.split('"').next().expect("its points");
        for point in points.split(' ') {
            let (x, y) = point.split_once(',').expect("two numbers");
            let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
            assert!(
                (LEFT..=RIGHT).contains(&x) && (TOP..=BOTTOM).contains(&y),
                "{point}"
            );
        }
    }

    #[test]
    fn ticks_enclose_all_values() {
        let times = Unit::Nanoseconds.ticks([30.0, 300.0].into_iter());
        assert_eq!(times, [20.0, 50.0, 100.0, 200.0, 500.0]);
        assert_eq!(Unit::Nanoseconds.ticks([2.0].into_iter()), [2.0, 5.0]);
        let rates = Unit::BytesPerSecond.ticks([3.0, 8.0].into_iter());
        assert_eq!(rates, [2.0, 4.0, 8.0]);
    }

    #[test]
    fn an_empty_picture_divides_by_nothing() {
        let chart = Chart {
            title: "empty",
            note: String::new(),
            x: Axis::Nines,
            y: Unit::Nanoseconds,
            series: Vec::new(),
        };
        assert!(!chart.to_string().contains("NaN"));
    }
}
