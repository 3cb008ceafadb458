//! The end of a certificate's validity: RFC 5280, sections 4.1 and 4.1.2.5.
//!
//! The verifier does not tell it of a certificate that is good, and a node has its own alone.

/// Returns when a certificate in DER expires, in seconds since 1970.
pub(crate) fn not_after(certificate: &[u8]) -> Option<u64> {
    let (certificate, _) = element(certificate, SEQUENCE)?;
    let (mut fields, _) = element(certificate, SEQUENCE)?;
    if let Some((_version, rest)) = element(fields, VERSION) {
        fields = rest;
    }
    // The serial number, the signature's algorithm, the issuer.
    for tag in [INTEGER, SEQUENCE, SEQUENCE] {
        fields = element(fields, tag)?.1;
    }
    let (validity, _) = element(fields, SEQUENCE)?;
    let not_before = *validity.first()?;
    let (_, not_after) = element(validity, not_before)?;
    match *not_after.first()? {
        UTC_TIME => {
            let (time, _) = element(not_after, UTC_TIME)?;
            let (year, rest) = number(time, 2)?;
            // Two digits name a year from 1950 to 2049.
            seconds(if year < 50 { 2000 + year } else { 1900 + year }, rest)
        }
        tag => {
            let (time, _) = element(not_after, tag).filter(|_| tag == GENERALIZED_TIME)?;
            let (year, rest) = number(time, 4)?;
            seconds(year, rest)
        }
    }
}

/// Takes an element with that tag off the front: its content, and what is behind it.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&first, rest) = bytes.split_first()?;
    let (&length, rest) = rest.split_first()?;
    let (length, rest) = match length {
        0..=0x7f => (usize::from(length), rest),
        0x81..=0x83 => {
            let (digits, rest) = rest.split_at_checked(usize::from(length - 0x80))?;
            let append = |length, digit: &u8| length << 8 | usize::from(*digit);
            (digits.iter().fold(0, append), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    (first == tag).then_some((content, rest))
}

/// Takes a number of this many digits off the front.
fn number(text: &[u8], digits: usize) -> Option<(u64, &[u8])> {
    let (number, rest) = text.split_at_checked(digits)?;
    let number = std::str::from_utf8(number).ok()?.parse().ok()?;
    Some((number, rest))
}

/// Returns the time that year and `rest`, as `MMDDHHMMSSZ`, say.
fn seconds(year: u64, rest: &[u8]) -> Option<u64> {
    let (month, rest) = number(rest, 2)?;
    let (day, rest) = number(rest, 2)?;
    let (hour, rest) = number(rest, 2)?;
    let (minute, rest) = number(rest, 2)?;
    let (second, _) = number(rest, 2)?;
    // Years that begin on 1 March: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms",
    // `days_from_civil`.
    let shifted_year = year.checked_sub(u64::from(month <= 2))?;
    let (era, year_of_era) = (shifted_year / 400, shifted_year % 400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day.checked_sub(1)?;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let days = (era * 146_097 + day_of_era).checked_sub(719_468)?;
    Some(days * 86_400 + hour * 3600 + minute * 60 + second)
}

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// `[0]`, which is left out in version 1.
const VERSION: u8 = 0xa0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::utc::Utc;

    /// A certificate's beginning, with this end of its validity.
    fn certificate(tag: u8, time: &str) -> Vec<u8> {
        let element = |tag, content: &[u8]| [&[tag, content.len() as u8], content].concat();
        let validity = [
            element(UTC_TIME, b"000101000000Z"),
            element(tag, time.as_bytes()),
        ];
        let fields = [
            element(VERSION, &element(INTEGER, &[2])),
            element(INTEGER, &[1, 2, 3]),
            element(SEQUENCE, &[]),
            element(SEQUENCE, b"issuer"),
            element(SEQUENCE, &validity.concat()),
        ];
        element(SEQUENCE, &element(SEQUENCE, &fields.concat()))
    }

    #[test]
    fn both_kinds_of_time_are_read() {
        for (tag, time, shown) in [
            (UTC_TIME, "700101000000Z", "1970-01-01T00:00:00Z"),
            (UTC_TIME, "240229235959Z", "2024-02-29T23:59:59Z"),
            (UTC_TIME, "491231000000Z", "2049-12-31T00:00:00Z"),
            (GENERALIZED_TIME, "21000101000000Z", "2100-01-01T00:00:00Z"),
            (GENERALIZED_TIME, "29990301120000Z", "2999-03-01T12:00:00Z"),
        ] {
            let read = not_after(&certificate(tag, time)).unwrap();
            assert_eq!(Utc(read).to_string(), shown);
        }
    }

    #[test]
    fn a_cut_certificate_has_no_expiry_and_a_changed_one_is_read_safely() {
        let whole = certificate(UTC_TIME, "240229235959Z");
        for length in 0..whole.len() {
            assert_eq!(not_after(&whole[..length]), None);
        }
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut changed = whole.clone();
                changed[at] ^= 1 << bit;
                // The reader finds another time, or none, and never reads past the end.
                let _ = not_after(&changed);
            }
        }
    }
}
