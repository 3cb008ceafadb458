//! A plot of latencies as SVG: the time from append to acknowledgement, by percentile, with one
//! line for each transport.

use std::fmt::Write;

use hdrhistogram::Histogram;

/// A line of the plot.
pub(crate) struct Curve<'a> {
    /// The name of the transport.
    pub(crate) name: &'a str,
    /// The latencies in nanoseconds.
    pub(crate) latency_ns: Histogram<u64>,
}

/// Draws the plot of these lines.
pub(crate) fn svg(title: &str, curves: &[Curve<'_>]) -> String {
    let times = || curves.iter().map(|curve| &curve.latency_ns);
    let shortest = times().map(|times| times.value_at_quantile(0.0)).min();
    let longest = times().map(Histogram::max).max();
    let decade = |ns: Option<u64>| (ns.unwrap_or(1).max(1) as f64).log10();
    let (low, high) = (decade(shortest).floor(), decade(longest).ceil());
    let y = |ns: f64| {
        let part = (ns.max(1.0).log10() - low) / (high - low).max(1.0);
        BOTTOM - part * (BOTTOM - TOP)
    };

    let mut svg = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">
<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>
<text x="{LEFT}" y="24" font-size="15">{}</text>
"##,
        escaped(title)
    );
    for decade in low as i32..=high as i32 {
        let (ns, at) = (10_f64.powi(decade), y(10_f64.powi(decade)));
        line(&mut svg, [LEFT, at, RIGHT, at]);
        text(&mut svg, LEFT - 8.0, at + 4.0, "end", &time(ns));
    }
    for (quantile, name) in PERCENTILES {
        let at = x(quantile);
        line(&mut svg, [at, TOP, at, BOTTOM]);
        text(&mut svg, at, BOTTOM + 18.0, "middle", name);
    }
    let middle = LEFT.midpoint(RIGHT);
    text(
        &mut svg,
        middle,
        BOTTOM + 38.0,
        "middle",
        "percentile of records",
    );
    for (index, (curve, color)) in curves.iter().zip(COLORS.iter().cycle()).enumerate() {
        svg += &format!(r#"<polyline fill="none" stroke="{color}" stroke-width="2" points=""#);
        for step in 0..=STEPS {
            // The steps are even on the logarithmic axis.
            let quantile = 1.0 - 10_f64.powf(-DECADES * f64::from(step) / f64::from(STEPS));
            let ns = curve.latency_ns.value_at_quantile(quantile) as f64;
            let _ = write!(svg, "{:.1},{:.1} ", x(quantile), y(ns));
        }
        svg += "\"/>\n";
        let at = TOP + 18.0 + 18.0 * index as f64;
        svg += &format!(
            r#"<rect x="{}" y="{}" width="16" height="4" fill="{color}"/>"#,
            LEFT + 10.0,
            at - 6.0
        );
        let p50 = time(curve.latency_ns.value_at_quantile(0.5) as f64);
        let name = format!("{}, p50 {p50}", curve.name);
        text(&mut svg, LEFT + 32.0, at, "start", &name);
    }
    svg += "</svg>\n";
    svg
}

/// Returns the x coordinate of a quantile. The axis is logarithmic in the share of records beyond
/// it.
fn x(quantile: f64) -> f64 {
    let part = -(1.0 - quantile).max(10_f64.powf(-DECADES)).log10() / DECADES;
    LEFT + part * (RIGHT - LEFT)
}

fn line(svg: &mut String, [x1, y1, x2, y2]: [f64; 4]) {
    let _ = writeln!(
        svg,
        r##"<path d="M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}" stroke="#ddd"/>"##
    );
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    let _ = writeln!(
        svg,
        r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{}</text>"#,
        escaped(text)
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

/// Formats a time in a suitable unit.
fn time(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns < 1e3 => (ns, "ns"),
        ns if ns < 1e6 => (ns / 1e3, "µs"),
        ns if ns < 1e9 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    let decimals = usize::from(value < 10.0 && value.fract() != 0.0);
    format!("{value:.decimals$} {unit}")
}

const PERCENTILES: [(f64, &str); 6] = [
    (0.0, "0"),
    (0.5, "50"),
    (0.9, "90"),
    (0.99, "99"),
    (0.999, "99.9"),
    (0.9999, "99.99"),
];
/// Decades of the axis: the rightmost records are one in ten to this power.
const DECADES: f64 = 4.0;
const STEPS: u32 = 200;
const COLORS: [&str; 3] = ["#1b6ac9", "#d1495b", "#3a7d44"];
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 735.0;
const TOP: f64 = 45.0;
const BOTTOM: f64 = 385.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_has_a_line_for_each_curve_within_its_frame() {
        let curve = |name, ns: u64| {
            let mut latency_ns = Histogram::new(3).unwrap();
            for count in 1..=1000 {
                latency_ns.record(ns * count).unwrap();
            }
            Curve { name, latency_ns }
        };
        let svg = svg("a < b", &[curve("one", 100), curve("two", 5000)]);
        assert!(
            svg.contains("a &lt; b") && svg.contains("one, p50 50 µs"),
            "{svg}"
        );
        let lines: Vec<_> = svg.split("points=\"").skip(1).collect();
        assert_eq!(lines.len(), 2);
        for line in lines {
            let (points, _) = line.split_once('"').unwrap();
            let mut last = HEIGHT;
            for point in points.split_whitespace() {
                let (x, y) = point.split_once(',').unwrap();
                let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
                assert!(
                    (LEFT..=RIGHT).contains(&x) && (TOP..=BOTTOM).contains(&y),
                    "{point}"
                );
                assert!(y <= last, "rarer times are longer");
                last = y;
            }
        }
    }

    #[test]
    fn nothing_recorded_is_no_panic() {
        let latency_ns = Histogram::new(3).unwrap();
        assert!(
            svg(
                "empty",
                &[Curve {
                    name: "none",
                    latency_ns
                }]
            )
            .contains("</svg>")
        );
    }
}
