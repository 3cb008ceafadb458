//! The four cumulative counters of a channel, and the rule that joins changes of them.
//!
//! `published >= received >= released` and `released >= acknowledged` at every moment at the
//! receiving end. Counters only grow, so late or repeated changes are harmless: joining takes the
//! larger of each. A peer's counters are checked before it is believed.
#![forbid(unsafe_code)]

/// The counters of one channel's receiving end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages that the receiving engine holds, without a gap.
    pub received: u64,
    /// Messages whose guards were dropped, without a gap.
    pub released: u64,
    /// The ring position up to which bytes were released.
    pub released_position: u64,
    /// Messages that the application acknowledged, without a gap.
    pub acknowledged: u64,
    /// A message behind `acknowledged` was dropped without being acknowledged, so
    /// `acknowledged` will never grow again.
    pub acknowledgement_ended: bool,
}

/// A peer's counters contradict what it reported before or what we sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImpossibleCounters {
    /// A counter is ahead of what was published.
    #[error("{counter} is said to be {said}, but only {published} were published")]
    Ahead {
        /// The name of the counter.
        counter: &'static str,
        /// The counter's value.
        said: u64,
        /// The bound.
        published: u64,
    },
    /// A counter is ahead of the one that it can only follow.
    #[error("{counter} is said to be {said}, ahead of {behind}, which is said to be {bound}")]
    OutOfStep {
        /// The name of the counter.
        counter: &'static str,
        /// The counter's value.
        said: u64,
        /// The counter that it follows.
        behind: &'static str,
        /// The value of the counter that bounds it.
        bound: u64,
    },
    /// Acknowledgement moved after it had ended.
    #[error("acknowledged moved from {from} to {to} after it had ended")]
    Resurrected {
        /// The earlier position.
        from: u64,
        /// The position in this message.
        to: u64,
    },
}

impl Counters {
    /// Number up to which questions for acknowledgements are answered. After acknowledgement has
    /// ended, no further message can be acknowledged. A message's release then answers the
    /// question.
    #[inline]
    #[must_use]
    pub(crate) fn settled(&self) -> u64 {
        match self.acknowledgement_ended {
            true => self.released,
            false => self.acknowledged,
        }
    }

    /// Joins `changes` into these counters. `published` is how many messages were sent
    /// so far, `position` the ring position behind the last of them.
    ///
    /// Returns whether anything moved.
    pub fn join(
        &mut self,
        changes: &Counters,
        published: u64,
        position: u64,
    ) -> Result<bool, ImpossibleCounters> {
        let bounds = [
            ("received", changes.received, published),
            ("released", changes.released, published),
            ("acknowledged", changes.acknowledged, published),
            ("released_position", changes.released_position, position),
        ];
        for (counter, said, published) in bounds {
            if said > published {
                return Err(ImpossibleCounters::Ahead {
                    counter,
                    said,
                    published,
                });
            }
        }
        let steps = [
            ("released", changes.released, "received", changes.received),
            (
                "acknowledged",
                changes.acknowledged,
                "released",
                changes.released,
            ),
        ];
        for (counter, said, behind, bound) in steps {
            if said > bound {
                return Err(ImpossibleCounters::OutOfStep {
                    counter,
                    said,
                    behind,
                    bound,
                });
            }
        }
        if self.acknowledgement_ended && changes.acknowledged > self.acknowledged {
            return Err(ImpossibleCounters::Resurrected {
                from: self.acknowledged,
                to: changes.acknowledged,
            });
        }
        let before = *self;
        self.received = self.received.max(changes.received);
        self.released = self.released.max(changes.released);
        self.released_position = self.released_position.max(changes.released_position);
        self.acknowledged = self.acknowledged.max(changes.acknowledged);
        self.acknowledgement_ended |= changes.acknowledgement_ended;
        Ok(*self != before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_and_repeated_news_change_nothing() {
        let mut counters = Counters::default();
        let changes = Counters {
            received: 5,
            released: 4,
            released_position: 400,
            ..counters
        };
        assert_eq!(counters.join(&changes, 5, 500), Ok(true));
        assert_eq!(counters.join(&changes, 5, 500), Ok(false));
        let late = Counters {
            received: 3,
            released: 1,
            released_position: 100,
            ..changes
        };
        assert_eq!(counters.join(&late, 5, 500), Ok(false));
        assert_eq!(counters, changes);
    }

    #[test]
    fn impossible_news_are_refused_and_change_nothing() {
        let mut counters = Counters {
            received: 2,
            acknowledgement_ended: true,
            ..Default::default()
        };
        let before = counters;
        let out_of_step = Counters {
            released: 3,
            ..counters
        };
        assert!(matches!(
            counters.join(&out_of_step, 5, 500),
            Err(ImpossibleCounters::OutOfStep {
                counter: "released",
                said: 3,
                bound: 2,
                ..
            })
        ));
        let ahead = Counters {
            released: 6,
            ..counters
        };
        assert!(matches!(
            counters.join(&ahead, 5, 500),
            Err(ImpossibleCounters::Ahead {
                counter: "released",
                said: 6,
                published: 5
            })
        ));
        let resurrected = Counters {
            released: 1,
            acknowledged: 1,
            ..counters
        };
        assert!(counters.join(&resurrected, 5, 500).is_err());
        assert_eq!(counters, before);
    }
}
