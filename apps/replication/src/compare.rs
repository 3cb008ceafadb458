//! The comparison: both transports and the raw copy in turn, repeatedly, with each transport first
//! in every other pair. Slow changes of the machine thus affect all of them alike.

use ibex_harness::Error;
use serde_json::json;

use crate::{
    options::{Options, Store, TransportName},
    plot::Curve,
    progress::Progress,
    report::{self, Aim, Aimed, HEADING, Line, Logs, Ratio},
    run::{self, Outcome},
};

/// A run of each subject, one after the other.
struct Turn {
    ibex: Outcome,
    sockets: Outcome,
    /// Payload bytes per second of a raw copy without logs.
    raw: f64,
    /// Payload bytes per second of a raw copy into logs in memory.
    raw_into_logs: f64,
}

/// The aims for the medians of the ratios.
#[derive(Default)]
struct Aims {
    rate: Option<Aim>,
    p50: Option<Aim>,
    with_logs: Option<Aim>,
}

impl Aims {
    /// Returns the aims for the default log: in memory, records of 4 KiB, 64 outstanding. Other
    /// runs have none, since a log in files measures the disk.
    fn of(options: &Options, carrier: &str) -> Aims {
        let is_default = options.store() == Store::Memory
            && options.record_bytes() == 4096
            && options.pace().outstanding == 64
            && options.kills.is_empty();
        if !is_default {
            return Aims::default();
        }
        let (rate, p50) = match carrier {
            "shm" => (Some(Aim::AtLeast(2.0)), Some(Aim::AtMost(0.5))),
            "tcp" => (Some(Aim::AtLeast(1.0)), None),
            _ => (None, None),
        };
        Aims {
            rate,
            p50,
            // This aim guards the comparison: sockets that are used badly would make it
            // meaningless.
            with_logs: Some(Aim::AtLeast(0.9)),
        }
    }
}

/// Compares the transports. Returns the curves of a plot, and whether all logs were equal.
pub(crate) fn compare<'a>(
    options: &Options,
    progress: &Progress,
) -> Result<(Vec<Curve<'a>>, bool), Error> {
    if !options.json {
        progress.print(&HEADING)?;
    }
    let mut turns = Vec::new();
    for pair in 1..=options.pairs {
        let of = format!("{pair}/{}", options.pairs);
        let run = |transport: TransportName| {
            progress.begin(&format!("{transport} {of}"));
            let outcome = run::run(options, transport, progress)?;
            show(options, progress, &outcome)?;
            Ok::<_, Error>(outcome)
        };
        // The first of a pair finds the machine as the raw copy left it, so the transports
        // alternate.
        let (ibex, sockets) = if pair % 2 == 1 {
            let ibex = run(TransportName::Ibex)?;
            (ibex, run(TransportName::Sockets)?)
        } else {
            let sockets = run(TransportName::Sockets)?;
            (run(TransportName::Ibex)?, sockets)
        };
        progress.begin(&format!("raw copy {of}"));
        let raw = run::raw_copy(options, &sockets, false)?;
        let raw_into_logs = run::raw_copy(options, &sockets, true)?;
        turns.push(Turn {
            ibex,
            sockets,
            raw,
            raw_into_logs,
        });
    }

    let carrier = turns[0].ibex.carrier.clone();
    let aims = Aims::of(options, &carrier);
    let ratio = |of: fn(&Turn) -> f64| Ratio::of(turns.iter().map(of));
    let aimed = |of: fn(&Turn) -> f64, aim| Aimed {
        ratio: ratio(of),
        aim,
    };
    let rate = aimed(
        |turn| turn.ibex.records_per_second() / turn.sockets.records_per_second(),
        aims.rate,
    );
    let p50 = aimed(
        |turn| turn.ibex.latency_us(0.5) / turn.sockets.latency_us(0.5),
        aims.p50,
    );
    let processor = ratio(|turn| turn.ibex.processor_us() / turn.sockets.processor_us());
    let limit = ratio(|turn| turn.sockets.bytes_per_second() / turn.raw);
    let with_logs = aimed(
        |turn| turn.sockets.bytes_per_second() / turn.raw_into_logs,
        aims.with_logs,
    );
    let raw = ratio(|turn| turn.raw);
    let all_equal = turns
        .iter()
        .flat_map(|turn| [&turn.ibex, &turn.sockets])
        .all(|outcome| outcome.differing().is_empty());
    if options.json {
        progress.print(&json!({
            "carrier": carrier,
            "records_per_s_to_sockets": rate.to_json(),
            "p50_to_sockets": p50.to_json(),
            "processor_to_sockets": processor,
            "sockets_to_raw_copy": limit,
            "sockets_to_raw_copy_into_logs": with_logs.to_json(),
            "raw_copy_bytes_per_s": raw,
            "logs_equal": all_equal,
        }))?;
    } else {
        let mib = raw.median / f64::from(1 << 20);
        progress.print(&format!(
            "\n{carrier} to sockets: records/s {rate}, p50 {p50}, CPU/record {processor}\n\
             sockets to a raw copy of the same bytes ({mib:.0} MiB/s): {limit}\n\
             sockets to a raw copy into logs in memory: {with_logs}\n{}",
            Logs(&turns[turns.len() - 1].ibex)
        ))?;
    }
    let curve = |name, of: fn(&Turn) -> &Outcome| {
        let mut latency_ns = run::nanoseconds();
        for turn in &turns {
            let all = latency_ns.add(&of(turn).latency_ns);
            all.expect("all have the same bounds");
        }
        Curve { name, latency_ns }
    };
    let curves = vec![
        curve("ibex", |turn| &turn.ibex),
        curve("sockets", |turn| &turn.sockets),
    ];
    Ok((curves, all_equal))
}

fn show(options: &Options, progress: &Progress, outcome: &Outcome) -> Result<(), Error> {
    if options.json {
        progress.print(&report::to_json(options, outcome))
    } else {
        progress.print(&Line(outcome))?;
        match outcome.differing()[..] {
            [] => Ok(()),
            _ => progress.print(&Logs(outcome)),
        }
    }
}
