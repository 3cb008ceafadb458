//! The words of the table for what a session says.

use crate::session::EndCause;

/// Returns the party that the cause blames.
pub(super) fn cause_of(cause: &EndCause) -> String {
    match cause {
        EndCause::DeviceLost { .. } => "device lost".to_owned(),
        EndCause::PeerGone { certain: true, .. } => "peer gone for certain".to_owned(),
        EndCause::PeerGone { certain: false, .. } => "peer lost".to_owned(),
        EndCause::Goodbye => "goodbye".to_owned(),
        EndCause::NodeClosed => "node closed".to_owned(),
        other => format!("{other:?}"),
    }
}

/// Returns a text with `_` in place of the numbers of objects, which differ from run to run, and
/// without the part that all failures have in common.
pub(super) fn nameless(text: &str) -> String {
    let (text, _) = text.split_once(" (vendor").unwrap_or((text, ""));
    let mut follows_name = false;
    let words = text.split(' ').map(|word| {
        let is_number = word.starts_with(|first: char| first.is_ascii_digit());
        let named = follows_name && is_number;
        follows_name = ["pair", "queue", "send", "receive"].contains(&word);
        match (named, word.find([':', ')'])) {
            (false, _) => word.to_owned(),
            (true, Some(end)) => format!("_{}", &word[end..]),
            (true, None) => "_".to_owned(),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}
