//! A stand-in for the broker, on a side with one session: recalls and lends credit at random, like
//! a broker with many other sessions.
#![forbid(unsafe_code)]

use ibex_harness::draw::Draw;
use ibex_protocol::credit::session::Term;

use super::{Fault, node::Node, options::SimOptions};

/// Credit that is not lent at the moment.
#[derive(Debug)]
pub(super) struct Lender {
    random: Draw,
    pub(super) free: u64,
    lend_per_mille: u64,
}

impl Lender {
    pub(super) fn new(options: &SimOptions, random: Draw) -> Self {
        Self {
            random,
            free: 0,
            lend_per_mille: options.lend_per_mille,
        }
    }

    /// Resets the credit for new wires, of which `free` is not lent yet.
    pub(super) fn begin_anew(&mut self, free: u64) {
        self.free = free;
    }

    /// Recalls a part of the credit, or lends a part of what has come back.
    pub(super) fn act(&mut self, node: &mut Node) {
        self.hear(node);
        if !self.random.chance(self.lend_per_mille) {
            return;
        }
        if self.random.chance(500) {
            let lent = node.session.credit.lent();
            // The draw exceeds the lent credit now and then, so that everything is recalled.
            let credit = (1 + self.random.below(lent + lent / 4 + 1)).min(lent);
            node.session.recall(credit);
            node.counts.faults.count(Fault::Recall, credit > 0);
            self.hear(node);
        } else {
            let credit = self.random.below(self.free + 1);
            let term = self.random.pick(&[Term::Standing, Term::Turn]);
            self.lend(node, credit, term);
        }
    }

    /// Lends all credit. Returns whether there was any.
    pub(super) fn finish(&mut self, node: &mut Node) -> bool {
        self.hear(node);
        let free = self.free;
        self.lend(node, free, Term::Standing);
        free > 0
    }

    fn lend(&mut self, node: &mut Node, credit: u64, term: Term) {
        if credit > 0 {
            self.free -= credit;
            node.session.give(credit, term);
        }
    }

    fn hear(&mut self, node: &mut Node) {
        let report = node.session.credit.take_report();
        self.free += report.returned;
        if report.wants && self.random.chance(100) {
            let free = self.free;
            self.lend(node, free, Term::Turn);
        }
    }
}
