//! The report of a run.
#![forbid(unsafe_code)]

use std::{collections::BTreeMap, fmt};

use serde::Serialize;

use crate::checker::Verdict;

/// Results of a completed run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) fabric: &'static str,
    pub(crate) seed: u64,
    pub(crate) seconds: u64,
    /// Count of each kind of fault.
    pub(crate) faults: BTreeMap<&'static str, u64>,
    /// Kinds that could not be injected, and why.
    pub(crate) left_out: BTreeMap<&'static str, String>,
    /// Harmed places among the first bytes of connections, and the number of such places.
    pub(crate) places_harmed: (usize, usize),
    /// Faults that the checker proved to find before the run.
    pub(crate) checker_finds: Vec<&'static str>,
    /// The checker's verdict.
    pub(crate) verdict: Verdict,
    /// Other reasons for which the run fails.
    pub(crate) failures: Vec<String>,
}

impl Report {
    /// Adds failures for everything that the run did not exercise. If faults that sessions survive
    /// were injected, a session must have survived one.
    pub(crate) fn judge(&mut self, at_least: u64, has_survivable: bool) {
        let injected: u64 = self.faults.values().sum();
        if injected == 0 {
            self.failures.push("no fault was injected".to_owned());
        }
        if self.places_harmed.0 == 0 {
            self.failures
                .push("no connection was harmed in its first bytes".to_owned());
        }
        // The harm at these places is drawn for each.
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
