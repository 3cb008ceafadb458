//! What came of a run.
#![forbid(unsafe_code)]

use std::{collections::BTreeMap, fmt};

use serde::Serialize;

use crate::checker::Verdict;

/// A run that came to its end.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) fabric: &'static str,
    pub(crate) seed: u64,
    pub(crate) seconds: u64,
    /// How often each kind of fault was injected.
    pub(crate) faults: BTreeMap<&'static str, u64>,
    /// Kinds that were not, and why.
    pub(crate) left_out: BTreeMap<&'static str, String>,
    /// Places of the first bytes of connections that were harmed, of how many.
    pub(crate) places_harmed: (usize, usize),
    /// What the checker was shown to find before.
    pub(crate) checker_finds: Vec<&'static str>,
    /// What it found.
    pub(crate) verdict: Verdict,
    /// Whatever else fails the run.
    pub(crate) failures: Vec<String>,
}

impl Report {
    /// Adds what is missing for the run to have shown anything. Of faults that sessions survive,
    /// if there were some, one has to have been survived.
    pub(crate) fn judge(&mut self, at_least: u64, has_survivable: bool) {
        let injected: u64 = self.faults.values().sum();
        if injected == 0 {
            self.failures.push("no fault was injected".to_owned());
        }
        if self.places_harmed.0 == 0 {
            self.failures
                .push("no connection was harmed in its first bytes".to_owned());
        }
        // How a connection is harmed there is drawn for each.
        let is_drawn = |name: &str| name.ends_with("_at_byte");
        let never = self.faults.iter();
        let never = never.filter(|(name, count)| **count == 0 && !is_drawn(name));
        let never: Vec<_> = never.map(|(name, _)| *name).collect();
        if !never.is_empty() {
            self.failures
                .push(format!("never injected: {}", never.join(", ")));
        }
        if has_survivable && self.verdict.resumes == 0 {
            self.failures.push("no session was resumed".to_owned());
        }
        let messages = self.verdict.messages;
        if messages < at_least {
            self.failures
                .push(format!("{messages} messages, of {at_least} at least"));
        }
        if !self.verdict.is_clean() {
            self.failures
                .push("the checker found what must not be".to_owned());
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verdict {
            messages,
            streams,
            broken,
            orphaned,
            unknown,
            refused,
            suspensions,
            resumes,
            replayed,
            lost,
            doubled,
            reordered,
            garbled,
            lies,
            unfinished,
            findings,
        } = &self.verdict;
        writeln!(
            f,
            "soak over {}, {} s, seed {}",
            self.fabric, self.seconds, self.seed
        )?;
        writeln!(f, "  messages     {messages} in {streams} streams")?;
        writeln!(
            f,
            "  ends         {broken} by an error, {orphaned} by kill -9; unknown to senders: {unknown} \
             messages; refused {refused} times"
        )?;
        for (name, count) in &self.faults {
            writeln!(f, "  fault        {name} {count}")?;
        }
        for (name, why) in &self.left_out {
            writeln!(f, "  left out     {name}: {why}")?;
        }
        let (harmed, places) = self.places_harmed;
        writeln!(f, "  first bytes  harmed at {harmed} places of {places}")?;
        writeln!(
            f,
            "  sessions     suspensions {suspensions}, resumes {resumes}, replayed {replayed}"
        )?;
        writeln!(f, "  checker      finds {}", self.checker_finds.join(", "))?;
        writeln!(
            f,
            "  messages     lost {lost}, doubled {doubled}, reordered {reordered}, garbled {garbled}"
        )?;
        writeln!(
            f,
            "  errors       false {lies}; ends unheard of {unfinished}"
        )?;
        for finding in findings {
            writeln!(f, "  {finding}")?;
        }
        for failure in &self.failures {
            writeln!(f, "FAILED: {failure}")?;
        }
        Ok(())
    }
}
