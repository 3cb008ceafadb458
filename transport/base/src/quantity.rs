//! Counts and times, as logs and errors tell them.
#![forbid(unsafe_code)]

use std::{fmt, time::Duration};

/// A count of things: `Display` writes the number and the noun, with an `s` unless there is one.
///
/// ```
/// use ibex_base::Counted;
///
/// assert_eq!(Counted(1, "attempt").to_string(), "1 attempt");
/// assert_eq!(Counted(0, "attempt").to_string(), "0 attempts");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted<'a>(pub u64, pub &'a str);

impl fmt::Display for Counted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(count, noun) = self;
        let ending = if *count == 1 { "" } else { "s" };
        write!(f, "{count} {noun}{ending}")
    }
}

/// A time, as exactly as people need it: `Display` rounds it to the millisecond, or to the
/// microsecond below one millisecond.
///
/// ```
/// use std::time::Duration;
/// use ibex_base::Rounded;
///
/// assert_eq!(Rounded(Duration::new(10, 1_815_137)).to_string(), "10.002s");
/// assert_eq!(Rounded(Duration::ZERO).to_string(), "0s");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounded(pub Duration);

impl fmt::Display for Rounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.0.as_millis() {
            0 => 1_000,
            _ => 1_000_000,
        };
        let nanos = (self.0.as_nanos() + unit / 2) / unit * unit;
        match u64::try_from(nanos) {
            Ok(0) => f.pad("0s"),
            Ok(nanos) => f.pad(&format!("{:?}", Duration::from_nanos(nanos))),
            // More than 584 years.
            Err(_) => f.pad(&format!("{:?}", self.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_as_exactly_as_people_need_them() {
        let text = |time| Rounded(time).to_string();
        assert_eq!(text(Duration::from_nanos(20_499_999)), "20ms");
        assert_eq!(text(Duration::from_nanos(999_500)), "1ms");
        assert_eq!(text(Duration::from_nanos(1_700)), "2µs");
        assert_eq!(text(Duration::from_nanos(499)), "0s");
        assert_eq!(text(Duration::MAX), format!("{:?}", Duration::MAX));
        assert_eq!(format!("{:>6}", Rounded(Duration::from_secs(2))), "    2s");
    }
}
