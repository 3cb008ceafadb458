//! Lines over two logarithmic axes, as SVG for light and dark pages.

use std::fmt;

use ibex_harness::row::bytes;

/// A picture.
pub struct Chart {
    /// The line above the picture.
    pub title: &'static str,
    /// What the horizontal axis shows.
    pub x: Axis,
    /// Formats a value of the vertical axis.
    pub y: fn(f64) -> String,
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

impl fmt::Display for Chart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = || self.series.iter().flat_map(|series| &series.points);
        let [left, right] = ends(all().map(|point| self.x.place(point.0)));
        let [low, high] = ends(all().map(|point| point.1.log10()));
        let x = |x: f64| LEFT + (x - left) / (right - left) * (RIGHT - LEFT);
        let y = |y: f64| BOTTOM - (y - low) / (high - low) * (BOTTOM - TOP);
        writeln!(f, "{HEAD}")?;
        writeln!(
            f,
            r#"<text class="t" x="{LEFT}" y="24">{}</text>"#,
            self.title
        )?;
        let step = (((right - left) / 8.0).ceil() as i32).max(1);
        for place in (left as i32..=right as i32).step_by(step as usize) {
            let (at, label) = (x(f64::from(place)), self.x.label(place));
            writeln!(f, r#"<path class="g" d="M{at:.1} {TOP}V{BOTTOM}"/>"#)?;
            writeln!(
                f,
                r#"<text x="{at:.1}" y="{}" text-anchor="middle">{label}</text>"#,
                BOTTOM + 18.0
            )?;
        }
        for power in low as i32..=high as i32 {
            let (at, label) = (y(f64::from(power)), (self.y)(10.0_f64.powi(power)));
            writeln!(f, r#"<path class="g" d="M{LEFT} {at:.1}H{RIGHT}"/>"#)?;
            writeln!(
                f,
                r#"<text x="{}" y="{:.1}" text-anchor="end">{label}</text>"#,
                LEFT - 8.0,
                at + 4.0
            )?;
        }
        for (place, series) in self.series.iter().enumerate() {
            let colour = COLOURS[place % COLOURS.len()];
            let dash = match series.is_limit {
                true => r#" stroke-dasharray="5 4""#,
                false => "",
            };
            let points = series.points.iter();
            let points = points
                .map(|(at, value)| format!("{:.1},{:.1}", x(self.x.place(*at)), y(value.log10())));
            let points = points.collect::<Vec<_>>().join(" ");
            writeln!(
                f,
                r#"<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>"#
            )?;
            let at = TOP + 20.0 * place as f64;
            writeln!(
                f,
                r#"<path d="M{} {at}h22" stroke="{colour}" stroke-width="2"{dash}/>"#,
                RIGHT + 16.0
            )?;
            let name = series.name.replace('&', "&amp;").replace('<', "&lt;");
            writeln!(
                f,
                r#"<text x="{}" y="{}">{name}</text>"#,
                RIGHT + 44.0,
                at + 4.0
            )?;
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

const LEFT: f64 = 90.0;
const RIGHT: f64 = 680.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 400.0;
/// Colours that people with any colour vision tell apart (Okabe and Ito), on light and dark.
const COLOURS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#888888",
];
const HEAD: &str = r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 430" font-family="sans-serif" font-size="12">
<style>
svg { background: #fff } text { fill: #222 } .t { font-size: 15px } .g { stroke: #ccc; fill: none }
@media (prefers-color-scheme: dark) { svg { background: #14181d } text { fill: #ddd } .g { stroke: #3a4048 } }
</style>"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_is_within_the_frame() {
        let chart = Chart {
            title: "test",
            x: Axis::Bytes,
            y: |value| value.to_string(),
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
    fn an_empty_picture_divides_by_nothing() {
        let chart = Chart {
            title: "empty",
            x: Axis::Nines,
            y: |value| value.to_string(),
            series: Vec::new(),
        };
        assert!(!chart.to_string().contains("NaN"));
    }
}
