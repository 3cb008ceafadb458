//! The time for which a session has no connection, as every error and warning tells it.
//!
//! The engine keeps this account while a session is suspended ([`SuspensionCell`]). Whoever
//! reports a failed wait asks for it, so that no report blames the program at the other end for a
//! network that is cut.
#![forbid(unsafe_code)]

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use ibex_base::{
    Counted,
    sync::{AtomicBool, Mutex, lock},
};

use super::EndCause;

/// A session that has lost its connection and waits for another, or whose peer's host is silent:
/// since when, why, and what this node does about it.
///
/// Errors and events of a wait that had no chance because of it carry this. It prints as a sentence
/// without its end, whose times count from the moment of printing, such as
///
/// > there has been no connection to 10.0.0.2:7000 for 4.2s: it closed the connection; this node
/// > dials it again (7 attempts so far, the last: connection refused), and the session ends unless
/// > that succeeds within 25.8s
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Suspension {
    /// The peer, as an address.
    pub peer: String,
    /// The time of the break.
    pub since: Instant,
    /// Why the connection broke.
    pub cause: EndCause,
    /// True if this node dials the peer again. Otherwise it waits for the peer, which dialed
    /// before, to dial again.
    pub dials: bool,
    /// The attempts to dial that have failed.
    pub attempts: u32,
    /// Why the last attempt failed.
    pub last_failure: Option<String>,
    /// The time at which the session ends if there is no connection by then; `None` if it waits
    /// without a limit.
    pub until: Option<Instant>,
    /// True if the connection does not count as broken yet. The peer's host has acknowledged nothing
    /// since [`since`](Self::since), although this end has sent bytes more than once. After
    /// `notice_timeout` of that the session is suspended.
    pub is_silence: bool,
}

impl Suspension {
    /// Returns the account of a connection over which the peer's host has not answered for this
    /// long.
    pub(crate) fn of_silence(peer: String, silent_for: Duration, dials: bool) -> Self {
        let now = Instant::now();
        Self {
            peer,
            since: now.checked_sub(silent_for).unwrap_or(now),
            cause: EndCause::lost("its host does not acknowledge what was sent"),
            dials,
            attempts: 0,
            last_failure: None,
            until: None,
            is_silence: true,
        }
    }
}

impl fmt::Display for Suspension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            peer,
            since,
            cause,
            dials,
            attempts,
            last_failure,
            until,
            is_silence,
        } = self;
        let now = Instant::now();
        let suspended = tenths(now.saturating_duration_since(*since));
        let why = cause.why();
        if *is_silence {
            let plan = match dials {
                true => "this node dials it again",
                false => "it has to dial again",
            };
            return write!(
                f,
                "nothing has been heard from {peer} for {suspended:?}: {why}; if that goes on for \
                 notice_timeout, the connection counts as broken, and {plan}"
            );
        }
        write!(
            f,
            "there has been no connection to {peer} for {suspended:?}: {why}; "
        )?;
        f.write_str(match dials {
            true => "this node dials it again",
            false => "it dialed before, and has to dial again",
        })?;
        if *dials && *attempts > 0 {
            write!(f, " ({} so far", Counted(u64::from(*attempts), "attempt"))?;
            if let Some(failure) = last_failure {
                write!(f, ", the last: {failure}")?;
            }
            f.write_str(")")?;
        }
        let Some(until) = until else { return Ok(()) };
        let left = tenths(until.saturating_duration_since(now));
        write!(
            f,
            ", and the session ends unless that succeeds within {left:?}"
        )
    }
}

/// Rounds a time to what a reader needs: tenths of a second, or whole milliseconds below one.
fn tenths(time: Duration) -> Duration {
    let unit = if time < Duration::from_secs(1) {
        1
    } else {
        100
    };
    Duration::from_millis((time.as_millis() / unit * unit) as u64)
}

/// The account of a session's present suspension. The engine writes it, and any thread reads it.
#[derive(Debug, Default)]
pub(crate) struct SuspensionCell {
    /// Shows without a lock whether there is an account. Relaxed: nothing else is read by it.
    is_suspended: AtomicBool,
    account: Mutex<Option<Arc<Suspension>>>,
}

impl SuspensionCell {
    /// Replaces the account; `None` when the session goes on or is over.
    pub(crate) fn set(&self, suspension: Option<Suspension>) {
        let is_suspended = suspension.is_some();
        *lock(&self.account) = suspension.map(Arc::new);
        self.is_suspended.store(is_suspended, Ordering::Relaxed);
    }

    /// Returns whether the session is suspended.
    #[inline]
    pub(crate) fn is_suspended(&self) -> bool {
        self.is_suspended.load(Ordering::Relaxed)
    }

    /// Returns the account, if the session is suspended.
    pub(crate) fn get(&self) -> Option<Arc<Suspension>> {
        self.is_suspended().then(|| lock(&self.account).clone())?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suspension(dials: bool) -> Suspension {
        let now = Instant::now();
        Suspension {
            peer: "10.0.0.2:7000".to_owned(),
            since: now - Duration::from_millis(4250),
            cause: EndCause::lost("it closed the connection"),
            dials,
            attempts: 0,
            last_failure: None,
            until: now.checked_add(Duration::from_millis(25_850)),
            is_silence: false,
        }
    }

    #[test]
    fn the_end_that_dials_tells_its_attempts() {
        let mut dialing = suspension(true);
        dialing.attempts = 7;
        dialing.last_failure = Some("connection refused".to_owned());
        assert_eq!(
            dialing.to_string(),
            "there has been no connection to 10.0.0.2:7000 for 4.2s: it closed the connection; \
             this node dials it again (7 attempts so far, the last: connection refused), and the \
             session ends unless that succeeds within 25.8s"
        );
    }

    #[test]
    fn the_end_that_was_dialed_says_that_it_waits_and_calls_nobody_gone() {
        let mut waiting = suspension(false);
        waiting.until = None;
        assert_eq!(
            waiting.to_string(),
            "there has been no connection to 10.0.0.2:7000 for 4.2s: it closed the connection; it \
             dialed before, and has to dial again"
        );
    }

    #[test]
    fn a_connection_over_which_nobody_answers_is_not_called_lost() {
        let silence = |dials| {
            let silent_for = Duration::from_millis(2150);
            Suspension::of_silence("10.0.0.2:7000".to_owned(), silent_for, dials).to_string()
        };
        let said = "nothing has been heard from 10.0.0.2:7000 for 2.1s: its host does not \
                    acknowledge what was sent; if that goes on for notice_timeout, the connection \
                    counts as broken, and ";
        assert_eq!(silence(true), format!("{said}this node dials it again"));
        assert_eq!(silence(false), format!("{said}it has to dial again"));
    }

    #[test]
    fn an_account_is_there_while_the_session_is_suspended() {
        let cell = SuspensionCell::default();
        assert!(cell.get().is_none() && !cell.is_suspended());
        cell.set(Some(suspension(true)));
        assert!(cell.get().is_some_and(|account| account.dials));
        cell.set(None);
        assert!(cell.get().is_none() && !cell.is_suspended());
    }
}
