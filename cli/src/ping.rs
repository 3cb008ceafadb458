//! `ibex ping`: a checked payload to a node and back, over each fabric that both ends have.

use std::io::{self, Write};
use std::thread;
use std::time::{Duration, Instant};

use ibex::calls::{CallOptions, Caller};
use ibex::prelude::*;
use ibex::{Fabric, Node, Policy, Raw, Security};
use serde::Serialize;

use crate::Failure;
use crate::options::PingOptions;
use crate::page::{Page, Tone, print_json};
use crate::session;

/// The name of the service that answers.
const SERVICE: &str = "ibex/ping";

/// The time within which an answer counts.
const PATIENCE: Duration = Duration::from_secs(3);

/// The fabrics, in the order in which they are shown.
const FABRICS: [Fabric; 3] = [Fabric::Shm, Fabric::Verbs, Fabric::Tcp];

/// What one fabric did.
#[derive(Debug, Serialize)]
struct Tally {
    fabric: String,
    /// Why there is no session over it.
    #[serde(skip_serializing_if = "Option::is_none")]
    unusable: Option<String>,
    sent: u64,
    /// Pings without an answer in time.
    lost: u64,
    /// Answers with another payload than was sent.
    damaged: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    round_trip_us: Option<RoundTrips>,
}

/// Round trips in microseconds.
#[derive(Debug, Serialize)]
struct RoundTrips {
    least: f64,
    median: f64,
    p99: f64,
    most: f64,
}

/// A session that requires one fabric.
struct Line {
    fabric: Fabric,
    /// Kept for as long as the session is used.
    _node: Node,
    caller: Caller<[u8], [u8], Raw>,
    trips: Vec<Duration>,
    lost: u64,
    damaged: u64,
}

/// Runs the subcommand.
pub(crate) fn run(options: &PingOptions) -> Result<u8, Failure> {
    let security = session::security(&options.identity);
    let security = security.map_err(|error| Failure::said(error.to_string()))?;
    match (&options.listen, &options.to) {
        (Some(address), _) => answer(address, options, security),
        (None, Some(to)) => ping(to, options, security.as_ref()),
        (None, None) => Err(Failure::usage(
            "ping needs HOST:PORT, or --listen ADDRESS:PORT",
        )),
    }
}

/// Answers pings until the process is ended. Standard error tells who was refused.
fn answer(address: &str, options: &PingOptions, security: Option<Security>) -> Result<u8, Failure> {
    crate::warnings::show();
    let mut builder = Node::builder().name("ibex ping").listen(address);
    if let Some(security) = security {
        builder = builder.security(security);
    } else if options.insecure {
        builder = builder.insecure_network();
    }
    let node = builder.build().map_err(|error| {
        Failure::said(format!(
            "{error} (here: --secret, or --insecure for any who come)"
        ))
    })?;
    let service = node.channel(SERVICE).codec::<Raw>().service::<[u8], [u8]>();
    let mut service = service.map_err(|error| Failure::said(error.to_string()))?;
    if let Some(address) = node.local_addr() {
        let mut output = io::stdout().lock();
        writeln!(output, "answers pings at {address}")?;
        output.flush()?;
    }
    loop {
        match service.next() {
            Ok(Some(request)) => {
                let payload = request.bytes().to_vec();
                // A peer that went meanwhile needs no answer.
                let _ = request.reply(&payload);
            }
            Ok(None) => return Ok(0),
            Err(error) => return Err(Failure::said(error.to_string())),
        }
    }
}

fn ping(to: &str, options: &PingOptions, security: Option<&Security>) -> Result<u8, Failure> {
    let mut page = Page::for_output();
    let mut lines = Vec::new();
    let mut tallies = Vec::new();
    // A node dials for as long as it is patient; a port that refuses is told at once.
    let closed = session::closed(to);
    for fabric in FABRICS {
        let line = match &closed {
            Some(why) => Err(why.clone()),
            None => open(to, fabric, security),
        };
        match line {
            Ok(line) => lines.push(line),
            Err(why) => tallies.push(Tally::unusable(fabric, why)),
        }
    }
    if !options.json {
        show_unusable(&tallies, &mut page);
        page.print()?;
    }
    for number in 0..options.count {
        if number > 0 && !lines.is_empty() {
            thread::sleep(Duration::from_millis(options.interval_ms));
        }
        for line in &mut lines {
            let (tone, text) = line.ping(number, options.size_bytes);
            if !options.json {
                page.row(
                    0,
                    &line.fabric.to_string(),
                    6,
                    tone,
                    &format!("{number}: {text}"),
                );
                page.print()?;
            }
        }
    }
    tallies.extend(lines.into_iter().map(Line::tally));
    if options.json {
        print_json(&tallies)?;
    } else {
        show(&tallies, &mut page);
        page.print()?;
    }
    let usable = tallies.iter().filter(|tally| tally.unusable.is_none());
    let failed = usable.clone().any(|tally| tally.lost + tally.damaged > 0);
    Ok(if failed || usable.count() == 0 { 3 } else { 0 })
}

/// Begins a session over this fabric alone.
fn open(to: &str, fabric: Fabric, security: Option<&Security>) -> Result<Line, String> {
    let builder = Node::builder().name("ibex ping").connect_timeout(PATIENCE);
    let mut builder = builder.fabric(fabric, Policy::Require);
    if let Some(security) = security {
        builder = builder.security(security.clone());
    }
    let node = builder.build().map_err(|error| error.to_string())?;
    let peer = node.connect(to).map_err(|error| error.to_string())?;
    if peer.fabric() != fabric {
        // IBEX_FABRICS overrides what a program requires.
        return Err(format!(
            "the environment changed the choice to {}",
            peer.fabric()
        ));
    }
    let caller = peer.channel(SERVICE).codec::<Raw>().caller::<[u8], [u8]>();
    let caller = caller.map_err(|error| error.to_string())?;
    let caller = caller.with(CallOptions::new().timeout(PATIENCE));
    // The first call also waits until both ends are open, so it is not measured.
    caller.call(&[]).map_err(|error| {
        format!("{error} (`ibex ping --listen` answers there, other programs do not)")
    })?;
    let (trips, lost, damaged) = (Vec::new(), 0, 0);
    Ok(Line {
        fabric,
        _node: node,
        caller,
        trips,
        lost,
        damaged,
    })
}

impl Line {
    /// Sends one payload, and says what came back.
    fn ping(&mut self, number: u64, size_bytes: usize) -> (Tone, String) {
        let payload: Vec<u8> = (0..size_bytes).map(|place| byte(number, place)).collect();
        let start = Instant::now();
        match self.caller.call(&payload) {
            Ok(reply) => {
                let trip = start.elapsed();
                let wrong = reply
                    .bytes()
                    .iter()
                    .zip(&payload)
                    .position(|(came, sent)| came != sent);
                if wrong.is_some() || reply.bytes().len() != payload.len() {
                    self.damaged += 1;
                    let place = wrong.unwrap_or(reply.bytes().len().min(payload.len()));
                    return (
                        Tone::Bad,
                        format!("another payload came back, from byte {place}"),
                    );
                }
                self.trips.push(trip);
                (
                    Tone::Good,
                    format!("{size_bytes} bytes in {:.1} us", microseconds(trip)),
                )
            }
            Err(error) => {
                self.lost += 1;
                (Tone::Bad, format!("lost: {error}"))
            }
        }
    }

    fn tally(mut self) -> Tally {
        self.trips.sort_unstable();
        let answered = self.trips.len();
        // The least round trip that this share of all is not longer than.
        let at = |percent: usize| {
            microseconds(self.trips[(answered * percent).div_ceil(100).max(1) - 1])
        };
        Tally {
            fabric: self.fabric.to_string(),
            unusable: None,
            sent: answered as u64 + self.lost + self.damaged,
            lost: self.lost,
            damaged: self.damaged,
            round_trip_us: (answered > 0).then(|| RoundTrips {
                least: at(0),
                median: at(50),
                p99: at(99),
                most: at(100),
            }),
        }
    }
}

impl Tally {
    fn unusable(fabric: Fabric, why: String) -> Self {
        Self {
            fabric: fabric.to_string(),
            unusable: Some(why),
            sent: 0,
            lost: 0,
            damaged: 0,
            round_trip_us: None,
        }
    }
}

/// Says why there is no session over some fabrics: once if the reason is the same for all.
fn show_unusable(tallies: &[Tally], page: &mut Page) {
    let reasons = tallies.iter().filter_map(|tally| {
        let why = tally.unusable.as_deref()?;
        Some((&tally.fabric, why))
    });
    let reasons: Vec<_> = reasons.collect();
    match reasons.as_slice() {
        [(_, first), ..]
            if reasons.len() == FABRICS.len() && reasons.iter().all(|(_, why)| why == first) =>
        {
            page.row(0, "none", 6, Tone::Warning, first);
        }
        _ => {
            for (fabric, why) in reasons {
                page.row(0, fabric, 6, Tone::Warning, &format!("none: {why}"));
            }
        }
    }
}

fn show(tallies: &[Tally], page: &mut Page) {
    page.gap();
    for tally in tallies.iter().filter(|tally| tally.unusable.is_none()) {
        let mut text = format!(
            "{} sent, {} lost, {} damaged",
            tally.sent, tally.lost, tally.damaged
        );
        if let Some(trips) = &tally.round_trip_us {
            text += &format!(
                "; round trip in us: least {:.1}, median {:.1}, 99 % {:.1}, most {:.1}",
                trips.least, trips.median, trips.p99, trips.most
            );
        }
        page.row(0, &tally.fabric, 6, Tone::Title, &text);
    }
}

/// Returns a byte of a payload: it differs from its neighbours, and from ping to ping.
fn byte(number: u64, place: usize) -> u8 {
    let mixed = (number ^ place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed.to_be_bytes()[0]
}

fn microseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
