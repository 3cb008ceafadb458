//! What 200 sessions carry that share one receive queue, beside one session alone on such a
//! queue.

use crate::{
    crowd::{Crowd, SESSIONS},
    table::Line,
};
use ibex_harness::{Error, job::Mode, row::bytes, verbs_port::VerbsPort};

/// Measures and prints the lines of the row `name`.
pub(crate) fn throughput(name: &str, port: &VerbsPort) -> Result<(), Error> {
    let mut alone = Crowd::gather(1);
    let mut many = Crowd::gather(SESSIONS);
    let (mut pairs, mut spread) = (Vec::new(), 1.0);
    port.during(|| {
        for _ in 0..ROUNDS {
            let alone = alone.carry(MESSAGES * SESSIONS as u32).bytes_per_second();
            let many = many.carry(MESSAGES);
            spread = many.spread().max(spread);
            pairs.push([alone, many.bytes_per_second()]);
        }
        Ok(())
    })?;
    pairs.sort_by(|a, b| (a[1] / a[0]).total_cmp(&(b[1] / b[0])));
    let [lowest, highest] = [pairs[0], pairs[ROUNDS - 1]].map(|[one, other]| other / one);
    let [one, other] = pairs[ROUNDS / 2];
    let line = Line {
        name,
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
    println!("  the richest had up to {spread:.2} times as much as the poorest when it was done");
    Ok(())
}

const ROUNDS: usize = 5;
/// Of each session among many.
const MESSAGES: u32 = 24;
