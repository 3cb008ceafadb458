//! What 200 sessions carry that share one receive queue, beside one session alone on such a
//! queue.

use crate::{
    sessions::{Crowd, SESSIONS},
    table::Line,
};
use ibex_harness::{Error, job::Mode, row::bytes, verbs_port::VerbsPort};

/// Measures and prints the line.
pub(crate) fn throughput(port: &VerbsPort) -> Result<(), Error> {
    let mut alone = Crowd::gather(1);
    let mut many = Crowd::gather(SESSIONS);
    let mut pairs = Vec::new();
    port.during(|| {
        for _ in 0..ROUNDS {
            let alone = alone.carry(MESSAGES * SESSIONS as u32).bytes_per_second();
            let many = many.carry(MESSAGES).bytes_per_second();
            pairs.push([alone, many]);
        }
        Ok(())
    })?;
    pairs.sort_by(|a, b| (a[1] / a[0]).total_cmp(&(b[1] / b[0])));
    let [lowest, highest] = [pairs[0], pairs[ROUNDS - 1]].map(|[one, other]| other / one);
    let [one, other] = pairs[ROUNDS / 2];
    let line = Line {
        name: NAME,
        cores: "-",
        pairs: ROUNDS,
        limit: format!("{}/s", bytes(one)),
        subject: format!("{}/s", bytes(other)),
        ratio: other / one,
        spread: [lowest, highest],
        mode: Mode::Stream,
        aim: Some(0.4),
    };
    println!("{line}");
    Ok(())
}

/// The limit is one session here.
pub(crate) const NAME: &str = "verbs 200 sessions to 1 (limit)";
const ROUNDS: usize = 3;
/// Of each session among many.
const MESSAGES: u32 = 24;
