//! Pairs of measurements: the limit, then the subject that is compared to it, repeatedly.
//!
//! 1. The two halves of a pair follow each other at once and share their cores, so slow changes of
//!    the machine affect both alike.
//! 2. The [regime] is measured before and after each pair. A pair during which it changed is
//!    discarded.
//! 3. Pairs of different regimes are kept apart; a [`Series`] holds one regime.
//! 4. A pair in which a message was damaged ends the run and is never discarded.

#![forbid(unsafe_code)]

use crate::{
    Error,
    cores::Cores,
    job::Figures,
    regime::{self, Crossing, Regime},
};

/// A measurement of the limit, and one of the subject that is compared to it.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The raw limit.
    pub limit: Figures,
    /// The subject.
    pub subject: Figures,
    /// The distance of the cores just before.
    pub crossing: Crossing,
}

impl Measured {
    /// Returns a pair between two hosts, whose cores have no distance.
    #[must_use]
    pub fn of(limit: Figures, subject: Figures) -> Self {
        let crossing = Crossing { ns: f64::INFINITY };
        Self {
            limit,
            subject,
            crossing,
        }
    }

    /// Returns whether every payload byte arrived intact, in both halves.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let sound = |figures: &Figures| figures.tally.faults == 0 && figures.bytes_touched();
        sound(&self.limit) && sound(&self.subject)
    }

    /// Returns the ratio of the subject to its limit, see [`Figures::ratio_to`].
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.subject.ratio_to(&self.limit)
    }
}

/// The pairs of one regime, sorted by ratio. Never empty.
#[derive(Clone, Debug)]
pub struct Series {
    /// The regime of all pairs.
    pub regime: Regime,
    pairs: Vec<Measured>,
}

impl Series {
    /// Returns the number of pairs.
    #[must_use]
    pub fn pairs(&self) -> usize {
        self.pairs.len()
    }

    /// Returns the pair with the median ratio (the lower one of two).
    #[must_use]
    pub fn median(&self) -> &Measured {
        &self.pairs[(self.pairs.len() - 1) / 2]
    }

    /// Returns the lowest and the highest ratio.
    #[must_use]
    pub fn spread(&self) -> [f64; 2] {
        [
            self.pairs[0].ratio(),
            self.pairs[self.pairs.len() - 1].ratio(),
        ]
    }

    fn of(regime: Regime, pairs: &[Measured]) -> Option<Series> {
        let here = |pair: &&Measured| pair.crossing.regime() == regime;
        let mut pairs: Vec<_> = pairs.iter().filter(here).cloned().collect();
        pairs.sort_by(|a, b| a.ratio().total_cmp(&b.ratio()));
        (!pairs.is_empty()).then_some(Series { regime, pairs })
    }
}

/// Results of a run of pairs.
#[derive(Clone, Debug)]
pub struct Interleaved {
    /// The series, the one with the most pairs first.
    pub series: Vec<Series>,
    /// Pairs that were discarded because the regime changed during them.
    pub mixed: usize,
    /// The pair that ended the run, because a message was damaged.
    pub damaged: Option<Measured>,
}

/// Measures pairs until one regime has `wanted` of them, or until three times as many were tried,
/// so that a machine that changes all the time does not delay the run forever.
///
/// Returns at least one pair: if the regime changed during every one, the last is kept under the
/// regime in which it began.
pub fn run(
    cores: Cores,
    wanted: usize,
    mut limit: impl FnMut() -> Result<Figures, Error>,
    mut subject: impl FnMut() -> Result<Figures, Error>,
) -> Result<Interleaved, Error> {
    let mut pairs = Vec::new();
    let mut mixed = Vec::new();
    let mut damaged = None;
    for _ in 0..wanted.max(1) * 3 {
        let crossing = regime::measure(cores)?;
        let pair = Measured {
            limit: limit()?,
            subject: subject()?,
            crossing,
        };
        if !pair.is_sound() {
            damaged = Some(pair.clone());
            pairs.push(pair);
            break;
        }
        let after = regime::measure(cores)?.regime();
        let kept = if after == crossing.regime() {
            &mut pairs
        } else {
            &mut mixed
        };
        kept.push(pair);
        let alike = |pair: &&Measured| pair.crossing.regime() == after;
        if pairs.iter().filter(alike).count() >= wanted {
            break;
        }
    }
    if pairs.is_empty() {
        pairs.extend(mixed.pop());
    }
    let mut series: Vec<_> = [Regime::Near, Regime::Far]
        .into_iter()
        .filter_map(|regime| Series::of(regime, &pairs))
        .collect();
    series.sort_by_key(|series| std::cmp::Reverse(series.pairs()));
    Ok(Interleaved {
        damaged,
        series,
        mixed: mixed.len(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        check::Tally,
        cores,
        job::{Job, Mode},
    };

    fn figures(seconds: u64) -> Figures {
        let job = Job {
            mode: Mode::Stream,
            size: 0,
            iters: 1000,
            flip: false,
            rate: None,
        };
        let elapsed = Duration::from_secs(seconds);
        Figures {
            job,
            one_way: None,
            distribution: None,
            elapsed,
            tally: Tally::default(),
        }
    }

    fn pair(ns: f64, seconds: u64) -> Measured {
        Measured {
            limit: figures(1),
            subject: figures(seconds),
            crossing: Crossing { ns },
        }
    }

    #[test]
    fn regimes_are_kept_apart_and_the_median_is_theirs() {
        let pairs = [
            pair(50.0, 2),
            pair(250.0, 100),
            pair(50.0, 8),
            pair(45.0, 4),
        ];
        let near = Series::of(Regime::Near, &pairs).unwrap();
        assert_eq!(near.pairs(), 3);
        assert_eq!(near.median().ratio(), 0.25);
        assert_eq!(near.spread(), [0.125, 0.5]);
        assert!(near.median().is_sound());
        assert_eq!(Series::of(Regime::Far, &pairs).unwrap().pairs(), 1);
        assert!(Series::of(Regime::Far, &pairs[..1]).is_none());
    }

    #[test]
    fn a_damaged_pair_ends_the_run() {
        let Ok(cores) = cores::choose(None) else {
            return;
        };
        let damaged = || {
            let mut figures = figures(1);
            figures.tally.faults = 1;
            Ok(figures)
        };
        let run = run(cores, 5, || Ok(figures(1)), damaged).unwrap();
        assert_eq!(run.series[0].pairs() + run.mixed, 1);
        assert!(run.damaged.is_some());
    }

    #[test]
    fn a_run_alternates_and_ends() {
        let Ok(cores) = cores::choose(None) else {
            return;
        };
        let order = std::cell::RefCell::new(String::new());
        let note = |name: char, seconds| {
            order.borrow_mut().push(name);
            Ok(figures(seconds))
        };
        let run = run(cores, 2, || note('l', 1), || note('s', 2)).unwrap();
        assert!(!run.series.is_empty());
        let tried = run.series.iter().map(Series::pairs).sum::<usize>() + run.mixed;
        assert!((2..=6).contains(&tried), "{run:?}");
        assert_eq!(order.into_inner(), "ls".repeat(tried));
    }
}
