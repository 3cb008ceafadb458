//! The table of settings, and the errors of those that are out of their range or exclude each other.
//!
//! Nodes, channels and devices share one shape: the setting, its value and its range. A second
//! shape is for two settings that exclude each other.
#![forbid(unsafe_code)]

mod table;

use std::{
    fmt,
    ops::{Bound, RangeBounds},
    time::Duration,
};

pub(crate) use table::*;

/// A setting is out of its range.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SettingError {
    /// The setting's name, which is that of the builder's method.
    pub(crate) setting: &'static str,
    /// The value that was given.
    pub(crate) value: SettingValue,
    /// The least that it may be.
    pub(crate) least: SettingValue,
    /// The most that it may be; `None` where there is no bound.
    pub(crate) most: Option<SettingValue>,
}

/// The value of a setting, with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SettingValue {
    /// A number of things.
    Count(u64),
    /// A number of bytes.
    Bytes(u64),
    /// A duration.
    Time(Duration),
}

/// Two settings of a node that exclude each other, each within its own range.
///
/// The conflict is found when the node is made, since either may be set first.
#[derive(Clone, PartialEq, Eq)]
pub struct SettingConflict {
    /// The two, by the names of the builder's methods.
    pub(crate) settings: [&'static str; 2],
    /// The values that were given.
    pub(crate) values: [String; 2],
    /// The rule that binds the two settings, and what to do.
    pub(crate) rule: String,
}

impl SettingValue {
    pub(crate) fn count(number: impl TryInto<u64>) -> Self {
        Self::Count(number.try_into().unwrap_or(u64::MAX))
    }

    pub(crate) fn bytes(number: impl TryInto<u64>) -> Self {
        Self::Bytes(number.try_into().unwrap_or(u64::MAX))
    }
}

impl SettingError {
    /// Checks a value against a range; a range without an end allows any longer time.
    pub(crate) fn check<T: Copy + Default + PartialOrd>(
        setting: &'static str,
        value: T,
        range: impl RangeBounds<T>,
        unit: fn(T) -> SettingValue,
    ) -> Result<(), Self> {
        if range.contains(&value) {
            return Ok(());
        }
        let bound = |bound: Bound<&T>| match bound {
            Bound::Included(&bound) => Some(unit(bound)),
            Bound::Excluded(_) | Bound::Unbounded => None,
        };
        Err(Self {
            setting,
            value: unit(value),
            least: bound(range.start_bound()).unwrap_or(unit(T::default())),
            most: bound(range.end_bound()),
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

impl fmt::Display for SettingConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([one, other], [given, beside]) = (self.settings, &self.values);
        let rule = &self.rule;
        write!(f, "{one} is {given} and {other} is {beside}: {rule}")
    }
}

impl std::error::Error for SettingConflict {}

impl fmt::Display for SettingValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            SettingValue::Count(count) => write!(f, "{count}"),
            SettingValue::Time(time) => write!(f, "{time:?}"),
            SettingValue::Bytes(bytes) => {
                let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
                // Written in the largest unit that expresses the number exactly.
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

ibex_base::debug_as_display!(SettingError, SettingConflict);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_given_value_and_the_range() {
        let text = |checked: Result<(), SettingError>| checked.unwrap_err().to_string();
        assert_eq!(
            text(within!("max_channels", 0, 1..=16384)),
            "max_channels is 0; it may be 1 to 16384"
        );
        assert_eq!(
            text(within!("window_bytes", 5 << 20, 1 byte..=4 MiB)),
            "window_bytes is 5 MiB; it may be 1 byte to 4 MiB"
        );
        assert_eq!(
            text(within!("session_credit_bytes", 0, 512 KiB..=1 GiB)),
            "session_credit_bytes is 0 bytes; it may be 512 KiB to 1 GiB"
        );
        assert_eq!(
            text(within!("handshake_timeout", Duration::from_millis(5), 10 ms..)),
            "handshake_timeout is 5ms; it may be 10ms or longer"
        );
        assert_eq!(
            text(within!("timeout", Duration::from_millis(10), 0 s..=5 ms)),
            "timeout is 10ms; it may be 0ns to 5ms"
        );
    }

    #[test]
    fn a_conflict_names_both_settings() {
        let conflict = SettingConflict {
            settings: ["receive_buffers", "max_sessions"],
            values: ["272".to_owned(), "256".to_owned()],
            rule: "raise the first".to_owned(),
        };
        assert_eq!(
            conflict.to_string(),
            "receive_buffers is 272 and max_sessions is 256: raise the first"
        );
    }

    #[test]
    fn both_bounds_belong_to_the_range() {
        for bound in [1, 16384] {
            assert_eq!(within!("max_channels", bound, 1..=16384), Ok(()));
        }
        let ten = Duration::from_millis(10);
        assert_eq!(within!("handshake_timeout", ten, 10 ms..), Ok(()));
    }

    #[test]
    fn bytes_are_told_in_the_largest_unit_that_is_exact() {
        let text = |bytes| SettingValue::Bytes(bytes).to_string();
        assert_eq!(text(1023), "1023 bytes");
        assert_eq!(text((1 << 20) + 1), "1048577 bytes");
        assert_eq!(text(1536 << 10), "1536 KiB");
        assert_eq!(text(1 << 30), "1 GiB");
        assert_eq!(text(1 << 40), "1 TiB");
    }
}
