//! The throughput of 200 sessions on one shared receive queue, beside one session alone on such a
//! queue.

use crate::{
    crowd::{Crowd, SESSIONS},
    table::{Line, Table, Unit},
};
use ibex_harness::{Error, job::Mode, verbs_port::VerbsPort};

/// Measures the row `name` and prints its lines.
pub(crate) fn throughput(name: &str, table: Table, port: &VerbsPort) -> Result<(), Error> {
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
    if let Some(line) = Line::of(name, (Unit::BytesPerSecond, Mode::Stream), pairs) {
        let aim = Some(0.4);
        table.print(&Line { aim, ..line });
    }
    table.note(format_args!(
        "  the richest had up to {spread:.2} times as much as the poorest when it was done"
    ));
    Ok(())
}

const ROUNDS: usize = 5;
/// Messages of each of the many sessions.
const MESSAGES: u32 = 24;
