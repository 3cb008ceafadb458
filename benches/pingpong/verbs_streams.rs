//! Streams over verbs beside perftest's, in rounds: perftest, ibex in three ways, and perftest
//! again.
//!
//! Both sides keep the same number of bytes on their way, in requests of the same length. Neither
//! touches a payload, except that ibex writes the number by which messages are told apart.

use ibex_harness::{
    Error,
    cores::Cores,
    job::{Job, Mode},
    perftest::{self, Requests},
    verbs_port::VerbsPort,
};
use ibex_protocol::{
    signal_cadence,
    transfer::rendezvous::{WRITE_BYTES, WRITES_UNDER_WAY},
};

use crate::{
    CODEC,
    table::{Line, Table, Unit},
    verbs_cost::Cost,
    verbs_latency::Program,
};
use ibex_measurement::{
    channels::Care,
    costs::Costs,
    session::{self, DriverName, FabricName, Order, Setup},
};

/// A row of this file.
#[derive(Clone, Copy)]
pub(crate) struct StreamRow {
    /// The name of the row.
    pub(crate) name: &'static str,
    size: usize,
    ways: [Way; WAYS],
}

/// A way in which ibex sends.
#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    care: Care,
    trusts: bool,
    /// Lets the receiver wait as a node does by default; otherwise it polls.
    sleeps: bool,
    messages: u64,
    /// The least share of perftest's rate to reach.
    aim: Option<f64>,
    /// The index of this way among the counted instructions.
    counted: Option<usize>,
}

pub(crate) const ROWS: [StreamRow; 3] = [
    StreamRow {
        name: "verbs stream 64 B (ib_send_bw)",
        size: 64,
        ways: [
            Way {
                name: "shared frames",
                care: Care::Marked,
                trusts: true,
                sleeps: false,
                messages: 200_000,
                aim: Some(4.0),
                counted: Some(0),
            },
            ONE_RECORD,
            Way {
                name: "frames of one record, not polled",
                sleeps: true,
                counted: None,
                ..ONE_RECORD
            },
        ],
    },
    written("verbs stream 64 KiB (ib_write_bw)", 64 << 10),
    written("verbs stream 1 MiB (ib_write_bw)", 1 << 20),
];

/// Sends each message in a frame of its own.
const ONE_RECORD: Way = Way {
    name: "frames of one record",
    care: Care::MarkedAlone,
    trusts: true,
    sleeps: false,
    messages: REQUESTS,
    aim: Some(0.85),
    counted: Some(1),
};

/// The results of one round: perftest's two rates, and those of all ways.
type Round = ((f64, f64), [f64; WAYS]);

/// Returns a row of messages that are written directly if the receiver trusts the sender, and go in
/// chunks otherwise.
const fn written(name: &'static str, size: usize) -> StreamRow {
    let written = Way {
        name: "written",
        care: Care::Marked,
        trusts: true,
        sleeps: false,
        messages: (WRITTEN_BYTES / size) as u64,
        aim: Some(0.9),
        counted: None,
    };
    let not_polled = Way {
        name: "written, not polled",
        sleeps: true,
        ..written
    };
    let in_chunks = Way {
        name: "in chunks",
        trusts: false,
        aim: None,
        ..written
    };
    let ways = [written, not_polled, in_chunks];
    StreamRow { name, size, ways }
}

impl StreamRow {
    /// Measures and prints the lines of the row.
    pub(crate) fn measure(
        &self,
        table: Table,
        cores: Cores,
        port: &VerbsPort,
    ) -> Result<(), Error> {
        let mut program = Program::new(self.name);
        let mut rounds = Vec::new();
        let mut costs = [Costs::default(); WAYS];
        for round in 1..=ROUNDS {
            eprintln!("{}: round {round} of {ROUNDS}", self.name);
            let limit = program.run(table, || self.by_perftest(cores, port));
            let mut rates = [0.0; WAYS];
            for ((way, rate), costs) in self.ways.iter().zip(&mut rates).zip(&mut costs) {
                let ((of_one, asked), _) = port.during(|| self.by_ibex(way, cores))?;
                *rate = of_one;
                *costs = costs.and(asked);
            }
            let again = program.run(table, || self.by_perftest(cores, port));
            rounds.extend(limit.zip(again).map(|limits| (limits, rates)));
        }
        let unit = match self.size {
            0..1024 => Unit::MessagesPerSecond,
            _ => Unit::BytesPerSecond,
        };
        let scale = match unit {
            Unit::BytesPerSecond => self.size as f64,
            _ => 1.0,
        };
        let kind = (unit, Mode::Stream);
        let pairs = |pair: &dyn Fn(&Round) -> [f64; 2]| -> Vec<_> {
            let pairs = rounds.iter().map(pair);
            pairs.map(|pair| pair.map(|rate| rate * scale)).collect()
        };
        let itself = pairs(&|((limit, again), _)| [*limit, *again]);
        let noise = Line::of("", kind, itself).map(|line| line.spread);
        for (index, way) in self.ways.iter().enumerate() {
            let name = format!("{}, {}", self.name, way.name);
            let of_way = pairs(&|((limit, _), rates)| [*limit, rates[index]]);
            if let Some(line) = Line::of(&name, kind, of_way) {
                let messages = ROUNDS as u64 * self.job(way).sequences().end;
                let mut cost = Cost::of(costs[index], messages);
                cost.instructions = way.counted.and_then(|kind| table.instructions(kind));
                let (aim, cost) = (way.aim, Some(cost));
                table.print(&Line {
                    aim,
                    noise,
                    cost,
                    ..line
                });
            }
        }
        Ok(())
    }

    fn job(&self, way: &Way) -> Job {
        Job {
            mode: Mode::Stream,
            size: self.size,
            iters: way.messages,
            flip: false,
            rate: None,
        }
    }

    /// Measures ibex: messages per second, and their costs.
    fn by_ibex(&self, way: &Way, cores: Cores) -> Result<(f64, Costs), Error> {
        let setup = Setup {
            trusts: way.trusts,
            sleeps: way.sleeps,
            ..Setup::new(DriverName::Caller, Some(FabricName::Verbs))
        };
        let order = Order {
            care: way.care,
            ..Order::checked(self.job(way), CODEC)
        };
        let (figures, costs) = session::with_peer(cores, setup, |peer| {
            session::measure_on(peer, &cores[..1], order)
        })?;
        match &figures.tally.first_fault {
            Some(fault) => Err(Error::subject(format!("data check failed: {fault}"))),
            None => Ok((figures.messages_per_second(), costs)),
        }
    }

    /// Measures perftest: messages per second. A long message takes several requests.
    fn by_perftest(&self, cores: Cores, port: &VerbsPort) -> Result<f64, Error> {
        if self.size < WRITE_BYTES.min(4096) {
            let requests = Requests {
                size: self.size,
                count: REQUESTS,
                depth: FRAMES_UNDER_WAY,
                signaled: signal_cadence::INTERVAL,
            };
            return perftest::send_rate(cores, port, requests);
        }
        let size = self.size.min(WRITE_BYTES);
        let requests = Requests {
            size,
            count: (WRITTEN_BYTES / size) as u64,
            depth: WRITES_UNDER_WAY,
            signaled: 1,
        };
        let rate = perftest::write_rate(cores, port, requests)?;
        Ok(rate * size as f64 / self.size as f64)
    }
}

/// The number of ibex's ways in a row.
const WAYS: usize = 3;
const ROUNDS: usize = 9;
/// Requests of 64 bytes; they take less than half a second on a software device.
const REQUESTS: u64 = 20_000;
/// Bytes of a stream of written messages; they take three quarters of a second on a software
/// device.
const WRITTEN_BYTES: usize = 64 << 20;
/// Frames on their way; the default credit of a session.
const FRAMES_UNDER_WAY: u32 = 64;
