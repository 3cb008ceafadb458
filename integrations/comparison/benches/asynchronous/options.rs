//! The command line of the benchmark.

use clap::Parser;

/// Async programs over ibex beside the same over tokio's sockets, in interleaved rounds.
///
/// Without words, the rows of `Driver::Tasks` on the multi-thread runtime are measured, and of
/// the ping-pong all; with words, all rows whose names hold each of them. A missed aim fails
/// nothing; a row that cannot be measured does.
#[derive(Debug, Parser)]
#[command(name = "cargo bench --bench asynchronous --")]
pub(crate) struct Options {
    /// Words of a row's name, such as `hyper shm`
    #[arg(value_name = "WORD")]
    pub(crate) words: Vec<String>,

    /// Rounds, in each of which every figure is measured once
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: Option<u16>,

    /// Measure one round of very little work, to see that everything runs
    #[arg(long)]
    pub(crate) quick: bool,

    /// Print a JSON object for each row
    #[arg(long)]
    pub(crate) json: bool,

    /// List the rows and measure nothing
    #[arg(long)]
    pub(crate) list: bool,

    /// Accepted because cargo passes it
    #[arg(long, hide = true)]
    bench: bool,
}

impl Options {
    pub(crate) fn rounds(&self) -> u16 {
        let usual = if self.quick { 1 } else { 7 };
        self.rounds.unwrap_or(usual)
    }
}
