//! A setting that is out of its range, as an error.
//!
//! One shape for nodes and channels: which setting, what it was given, what it may be.
#![forbid(unsafe_code)]

use std::{fmt, ops::RangeInclusive, time::Duration};

/// A setting is out of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SettingError {
    /// Its name, that of the builder's method.
    pub setting: &'static str,
    /// What it was given.
    pub value: SettingValue,
    /// The least that it may be.
    pub least: SettingValue,
    /// The most that it may be; `None` where there is no bound.
    pub most: Option<SettingValue>,
}

/// The value of a setting, with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SettingValue {
    /// A number of things.
    Count(u64),
    /// A number of bytes.
    Bytes(u64),
    /// A time.
    Time(Duration),
}

impl SettingError {
    pub(crate) fn check_count(
        setting: &'static str,
        value: u64,
        range: RangeInclusive<u64>,
    ) -> Result<(), Self> {
        Self::check(setting, value, &range, SettingValue::Count)
    }

    pub(crate) fn check_bytes(
        setting: &'static str,
        value: u64,
        range: RangeInclusive<u64>,
    ) -> Result<(), Self> {
        Self::check(setting, value, &range, SettingValue::Bytes)
    }

    pub(crate) fn check_time(
        setting: &'static str,
        value: Duration,
        least: Duration,
    ) -> Result<(), Self> {
        if value >= least {
            return Ok(());
        }
        Err(Self {
            setting,
            value: SettingValue::Time(value),
            least: SettingValue::Time(least),
            most: None,
        })
    }

    #[cfg(feature = "verbs")]
    pub(crate) fn check_time_in(
        setting: &'static str,
        value: Duration,
        range: RangeInclusive<Duration>,
    ) -> Result<(), Self> {
        if range.contains(&value) {
            return Ok(());
        }
        let (least, most) = range.into_inner();
        Err(Self {
            setting,
            value: SettingValue::Time(value),
            least: SettingValue::Time(least),
            most: Some(SettingValue::Time(most)),
        })
    }

    fn check(
        setting: &'static str,
        value: u64,
        range: &RangeInclusive<u64>,
        unit: fn(u64) -> SettingValue,
    ) -> Result<(), Self> {
        if range.contains(&value) {
            return Ok(());
        }
        Err(Self {
            setting,
            value: unit(value),
            least: unit(*range.start()),
            most: Some(unit(*range.end())),
        })
    }
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            setting,
            value,
            least,
            most,
        } = self;
        match most {
            Some(most) => write!(f, "{setting} is {value}; it may be {least} to {most}"),
            None => write!(f, "{setting} is {value}; it may be {least} or longer"),
        }
    }
}

impl std::error::Error for SettingError {}

impl fmt::Display for SettingValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            SettingValue::Count(count) => write!(f, "{count}"),
            SettingValue::Time(time) => write!(f, "{time:?}"),
            SettingValue::Bytes(bytes) => {
                let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
                // In the largest unit that says it exactly.
                let is_exact = |shift: u32| bytes >> shift != 0 && bytes.trailing_zeros() >= shift;
                match units.iter().find(|(shift, _)| is_exact(*shift)) {
                    Some((shift, unit)) => write!(f, "{} {unit}", bytes >> shift),
                    None if bytes == 1 => write!(f, "1 byte"),
                    None => write!(f, "{bytes} bytes"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_was_given_and_what_may_be() {
        let text = |checked: Result<(), SettingError>| checked.unwrap_err().to_string();
        assert_eq!(
            text(SettingError::check_count("max_channels", 0, 1..=16384)),
            "max_channels is 0; it may be 1 to 16384"
        );
        assert_eq!(
            text(SettingError::check_bytes(
                "window_bytes",
                5 << 20,
                1..=4 << 20
            )),
            "window_bytes is 5 MiB; it may be 1 byte to 4 MiB"
        );
        assert_eq!(
            text(SettingError::check_bytes(
                "session_credit_bytes",
                0,
                512 << 10..=1 << 30
            )),
            "session_credit_bytes is 0 bytes; it may be 512 KiB to 1 GiB"
        );
        let ten = Duration::from_millis(10);
        assert_eq!(
            text(SettingError::check_time("handshake_timeout", ten / 2, ten)),
            "handshake_timeout is 5ms; it may be 10ms or longer"
        );
    }

    #[test]
    fn both_bounds_belong_to_the_range() {
        for bound in [1, 16384] {
            assert_eq!(
                SettingError::check_count("max_channels", bound, 1..=16384),
                Ok(())
            );
        }
        let ten = Duration::from_millis(10);
        assert_eq!(
            SettingError::check_time("handshake_timeout", ten, ten),
            Ok(())
        );
    }

    #[test]
    fn bytes_are_told_in_the_largest_unit_that_is_exact() {
        let text = |bytes| SettingValue::Bytes(bytes).to_string();
        assert_eq!(text(1023), "1023 bytes");
        assert_eq!(text((1 << 20) + 1), "1048577 bytes");
        assert_eq!(text(1536 << 10), "1536 KiB");
        assert_eq!(text(1 << 30), "1 GiB");
    }
}
