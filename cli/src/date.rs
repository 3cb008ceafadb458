//! Points in time, for people.

use std::time::SystemTime;

use time::OffsetDateTime;

/// Returns a time as RFC 3339 writes it, in UTC, with milliseconds.
pub(crate) fn text(time: SystemTime) -> String {
    let time = OffsetDateTime::from(time);
    let (year, month, day) = time.to_calendar_date();
    let (hour, minute, second, milli) = time.to_hms_milli();
    let month = u8::from(month);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_time_is_that_of_the_calendar() {
        let leap_day = SystemTime::UNIX_EPOCH + Duration::from_millis(1_709_210_096_007);
        assert_eq!(text(leap_day), "2024-02-29T12:34:56.007Z");
    }
}
