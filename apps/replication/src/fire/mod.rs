//! Replication under fire: primary and replicas run as processes with a proxy between them, and
//! suffer faults that follow from a seed. At the end all faults are healed, and every log must hold
//! every record that was acknowledged to the writer.

mod ledger;
mod life;
mod serve;

use std::{
    collections::BTreeMap,
    fmt, io,
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use ibex_harness::{
    Error,
    draw::Draw,
    network::{self, DISTURBANCES, Medium, Network},
    process::Process,
    proxy::{HARMS, Harm, Proxy},
    resources,
};
use rustix::process::Resource;
use serde::Serialize;

use self::{
    ledger::Findings,
    life::{Life, Past},
};
pub(crate) use self::{ledger::SMALLEST_RECORD, serve::Serve};
use crate::{
    log::{Log, Tip},
    options::{Options, TransportName},
    processes::{LIMITING, Processes, Role},
    replica::{Report, Task, Transport},
    run::{Directories, log_settings},
    transport::ibex,
};

/// A fault that is injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum Fault {
    /// Kills a replica with SIGKILL and starts it again.
    KillReplica,
    /// Stops a replica with SIGSTOP and continues it.
    StopReplica,
    /// Kills the primary with SIGKILL and starts it again.
    KillPrimary,
    /// Stops the primary with SIGSTOP and continues it.
    StopPrimary,
    /// Resets a connection.
    ResetConnection,
    /// Ends a connection in order.
    CutConnection,
    /// Holds up all bytes of a connection for a while.
    StallConnection,
    /// Denies a replica further files and sockets for a while.
    StarveReplica,
    /// Denies the primary further files and sockets for a while.
    StarvePrimary,
    /// Kills and restarts the primary, and for a while lets no process grow a file beyond a segment
    /// of the log. Rings and large messages are then denied their memory files.
    MemoryFiles,
    /// Kills and restarts the primary, and for a while lets no process lock the memory that a
    /// device reads and writes.
    LockedMemory,
    /// Opens many connections to the primary at once, which say nothing and leave.
    Crowd,
    /// Cuts the link to the primary and restores it.
    CutLink,
    /// Makes the link delay, lose, duplicate, reorder or corrupt packets.
    DisturbLink,
}

const FAULTS: [Fault; 14] = [
    Fault::KillReplica,
    Fault::StopReplica,
    Fault::KillPrimary,
    Fault::StopPrimary,
    Fault::ResetConnection,
    Fault::CutConnection,
    Fault::StallConnection,
    Fault::StarveReplica,
    Fault::StarvePrimary,
    Fault::MemoryFiles,
    Fault::LockedMemory,
    Fault::Crowd,
    Fault::CutLink,
    Fault::DisturbLink,
];

impl Fault {
    /// Returns the reason why this fault cannot be injected in this run, if there is one.
    fn applies(self, options: &Options, network: &Network) -> Result<(), String> {
        let why = match self {
            Fault::CutLink => return network.has_link(),
            Fault::DisturbLink => return network.has_netem(),
            Fault::MemoryFiles if options.transport() == TransportName::Sockets => {
                "sockets have none"
            }
            Fault::MemoryFiles if options.segment_bytes() as u64 >= ibex::WINDOW_BYTES => {
                "a segment of the log grows longer than a ring; lower --segment-bytes"
            }
            Fault::LockedMemory if options.medium() != Medium::Device => {
                "only what an RDMA device reads and writes is locked"
            }
            _ => return Ok(()),
        };
        Err(why.to_owned())
    }
}

/// Runs under fire for `seconds` and prints the outcome. Returns whether it is good.
pub(crate) fn run(options: &Options, seconds: u64) -> Result<bool, Error> {
    let medium = options.medium();
    network::move_away(medium);
    resources::survive_full_files();
    if medium == Medium::Device {
        let held = resources::hold_to_locked_memory();
        held.map_err(Error::io("being held to the limit on locked memory"))?;
    }
    let seed = options.seed.unwrap_or_else(Draw::seed);
    eprintln!("fire: seed {seed}");
    let directories = Directories::make(options)?;
    let mut draw = Draw::new(seed);
    let network = Network::of(medium, &mut draw).map_err(Error::io("making a link"))?;
    let mut stage = Stage::set(options, &directories, network, draw)?;
    stage.play(Duration::from_secs(seconds))?;
    let outcome = stage.strike(seed)?;
    if options.json {
        println!(
            "{}",
            serde_json::to_value(&outcome).map_err(Error::subject)?
        );
    } else {
        println!("{outcome}");
    }
    Ok(outcome.is_good)
}

/// All processes of a run under fire, and the faults to inject.
struct Stage {
    draw: Draw,
    network: Network,
    proxy: Proxy,
    /// Number of connections harmed, tried or done.
    harms: u64,
    /// Faults that can be injected, and how often each was.
    faults: BTreeMap<Fault, u64>,
    /// Faults that cannot be injected, and why.
    left_out: BTreeMap<Fault, String>,

    serve: Serve,
    tasks: Vec<Task>,
    primary: Option<Life>,
    replicas: Processes,
    /// Results of the primaries that were killed.
    past: Vec<Past>,
}

impl Stage {
    fn set(
        options: &Options,
        directories: &Directories,
        network: Network,
        mut draw: Draw,
    ) -> Result<Stage, Error> {
        let settings = |name: &str| log_settings(options, directories.of(name));
        let transport = match options.transport() {
            TransportName::Ibex => Transport::Ibex(options.setup()),
            TransportName::Sockets => Transport::Sockets(options.wait),
        };
        let serve = Serve {
            replicas: options.replicas.into(),
            transport,
            address: network.address.ip(),
            namespace: network.far_namespace.clone(),
            device: network.far_device.clone(),
            log: settings("primary"),
            record_bytes: options.record_bytes(),
            pace: options.pace(),
        };
        let primary = Life::start(&serve, 0, Draw::new(draw.word()))?;
        let proxy = Proxy::start(primary.address).map_err(Error::io("starting a proxy"))?;
        let task = |replica| Task {
            replica,
            primary: proxy.address(),
            transport,
            log: settings(&format!("replica-{replica}")),
            patience: PATIENCE,
        };
        let tasks: Vec<Task> = (0..options.replicas.into()).map(task).collect();
        let roles = tasks.iter().cloned().map(Role::Replica).collect();
        let (mut faults, mut left_out) = (BTreeMap::new(), BTreeMap::new());
        for fault in FAULTS {
            match fault.applies(options, &network) {
                Ok(()) => drop(faults.insert(fault, 0)),
                Err(why) => drop(left_out.insert(fault, why)),
            }
        }
        Ok(Stage {
            draw,
            network,
            proxy,
            harms: 0,
            faults,
            left_out,
            serve,
            tasks,
            primary: Some(primary),
            replicas: Processes::start(roles)?,
            past: Vec::new(),
        })
    }

    /// Injects each fault once in any case, then faults as drawn, until `time` is over. Every other
    /// fault, as drawn, waits until records are acknowledged again; the rest come at any time.
    fn play(&mut self, time: Duration) -> Result<(), Error> {
        let begun = Instant::now();
        let kinds: Vec<Fault> = self.faults.keys().copied().collect();
        let mut first = kinds.clone();
        self.draw.shuffle(&mut first);
        let mut first = first.into_iter();
        loop {
            self.pause(50..300);
            let fault = match first.next() {
                Some(fault) => fault,
                None if begun.elapsed() >= time => return Ok(()),
                None => *self.draw.one_of(&kinds),
            };
            if self.draw.once_in(2) {
                self.see_progress()?;
            }
            eprintln!("fire: {:.1} s: {fault:?}", begun.elapsed().as_secs_f64());
            self.inject(fault)?;
            self.check()?;
        }
    }

    fn see_progress(&mut self) -> Result<(), Error> {
        let before = self.acknowledged();
        wait_for("no record is acknowledged any more", || {
            self.check()?;
            Ok(self.acknowledged() > before)
        })
    }

    fn acknowledged(&self) -> u64 {
        self.primary.as_ref().map_or(0, Life::acknowledged)
    }

    /// Returns an error if a process has ended.
    fn check(&mut self) -> Result<(), Error> {
        self.replicas.check()?;
        self.at_primary(Process::check)
    }

    fn inject(&mut self, fault: Fault) -> Result<(), Error> {
        let replica = self.draw.of(0..self.tasks.len() as u64) as usize;
        match fault {
            Fault::KillReplica => self.replicas.kill_and_start(replica)?,
            Fault::StopReplica => {
                self.at_replica(replica, |process| process.stop())?;
                self.pause(50..300);
                self.at_replica(replica, |process| process.resume())?;
            }
            Fault::KillPrimary => self.kill_primary(None)?,
            Fault::StopPrimary => {
                self.at_primary(|process| process.stop())?;
                self.pause(50..300);
                self.at_primary(|process| process.resume())?;
            }
            Fault::ResetConnection => return self.harm(Harm::Reset),
            Fault::CutConnection => return self.harm(Harm::Cut),
            Fault::StallConnection => return self.harm(Harm::Stall),
            Fault::StarveReplica => {
                self.replicas.starve(replica)?;
                self.pause(50..300);
                self.at_replica(replica, |process| process.relieve())?;
            }
            Fault::StarvePrimary => {
                self.at_primary(|process| process.starve())?;
                self.pause(50..300);
                self.at_primary(|process| process.relieve())?;
            }
            Fault::MemoryFiles => {
                let most = self.serve.log.segment_bytes as u64;
                self.withhold(Resource::Fsize, most)?;
            }
            Fault::LockedMemory => self.withhold(Resource::Memlock, LITTLE_LOCKED)?,
            Fault::CutLink => {
                self.network.cut().map_err(Error::io(AT_THE_LINK))?;
                self.pause(50..1000);
                self.network.restore().map_err(Error::io(AT_THE_LINK))?;
            }
            Fault::DisturbLink => {
                let how = *self.draw.one_of(DISTURBANCES);
                self.network.disturb(how).map_err(Error::io(AT_THE_LINK))?;
                self.pause(200..1000);
                self.network.restore().map_err(Error::io(AT_THE_LINK))?;
            }
            Fault::Crowd => {
                let address = self.primary.as_ref().map(|primary| primary.address);
                let connect = |address| TcpStream::connect_timeout(&address, PATIENCE);
                let crowd: io::Result<Vec<_>> = address
                    .into_iter()
                    .cycle()
                    .take(CROWD)
                    .map(connect)
                    .collect();
                self.pause(50..300);
                crowd.map_err(Error::io("connecting to the primary"))?;
            }
        }
        *self.faults.entry(fault).or_default() += 1;
        Ok(())
    }

    /// Kills the primary and starts it again, and limits a resource of every process to `most`
    /// meanwhile and for a while. At first the replicas cannot come back, then the primary has no
    /// room for them.
    fn withhold(&mut self, resource: Resource, most: u64) -> Result<(), Error> {
        self.limit_replicas(resource, Some(most))?;
        self.kill_primary(Some((resource, most)))?;
        self.pause(100..400);
        self.limit_replicas(resource, None)?;
        self.pause(100..400);
        self.at_primary(|process| process.limit(resource, None))
    }

    fn limit_replicas(&mut self, resource: Resource, most: Option<u64>) -> Result<(), Error> {
        (0..self.tasks.len()).try_for_each(|replica| {
            self.at_replica(replica, |process| process.limit(resource, most))
        })
    }

    /// Does something to the primary's process, if there is one.
    fn at_primary(
        &mut self,
        act: impl FnOnce(&mut Process) -> io::Result<()>,
    ) -> Result<(), Error> {
        let primary = self.primary.as_mut();
        let done = primary.map_or(Ok(()), |primary| act(&mut primary.process));
        done.map_err(Error::io("watching or disturbing the primary's process"))
    }

    /// Does something to a replica's process.
    fn at_replica(
        &mut self,
        replica: usize,
        act: impl FnOnce(&mut Process) -> io::Result<()>,
    ) -> Result<(), Error> {
        let done = act(self.replicas.process(replica));
        done.map_err(Error::io("disturbing a replica's process"))
    }

    /// Kills the primary and starts it again. A `limit`, if given, holds before replicas find the
    /// new process.
    fn kill_primary(&mut self, limit: Option<(Resource, u64)>) -> Result<(), Error> {
        if let Some(primary) = self.primary.take() {
            self.past.push(primary.kill()?);
        }
        self.pause(0..100);
        let first = self.past.last().map_or(0, |past| past.given.end);
        let draw = Draw::new(self.draw.word());
        let primary = Life::start(&self.serve, first, draw)?;
        if let Some((resource, most)) = limit {
            let limited = primary.process.limit(resource, Some(most));
            limited.map_err(Error::io(LIMITING))?;
        }
        self.proxy.set_target(primary.address);
        self.primary = Some(primary);
        Ok(())
    }

    /// Harms a connection, and waits until that is done.
    fn harm(&mut self, harm: Harm) -> Result<(), Error> {
        let time = Duration::from_millis(self.draw.of(20..500));
        // All processes may just have been killed, so a connection may first have to appear.
        wait_for(NO_CONNECTION, || Ok(self.proxy.harm_one(harm, time)))?;
        self.harms += 1;
        wait_for(NO_CONNECTION, || {
            let harmed = HARMS.map(|harm| self.proxy.harmed(harm));
            Ok(harmed.iter().sum::<u64>() == self.harms)
        })
    }

    fn pause(&mut self, millis: std::ops::Range<u64>) {
        thread::sleep(Duration::from_millis(self.draw.of(millis)));
    }

    /// Ends the run: the primary completes, the replicas receive everything, and all logs are
    /// checked.
    fn strike(mut self, seed: u64) -> Result<Outcome, Error> {
        if let Some(primary) = self.primary.take() {
            self.past.push(primary.complete()?);
        }
        let reports = self.replicas.finish()?;
        for (fault, harm) in [
            (Fault::ResetConnection, Harm::Reset),
            (Fault::CutConnection, Harm::Cut),
            (Fault::StallConnection, Harm::Stall),
        ] {
            self.faults.insert(fault, self.proxy.harmed(harm));
        }
        let acknowledged: Vec<_> = self
            .past
            .iter()
            .map(|past| past.acknowledged.clone())
            .collect();
        let mut logs = vec![self.serve.log];
        logs.extend(self.tasks.into_iter().map(|task| task.log));
        let mut tips = Vec::new();
        let mut findings = Vec::new();
        for settings in logs {
            let mut log = Log::open(settings).map_err(Error::subject)?;
            findings.push(Findings::of(&mut log, &acknowledged).map_err(Error::subject)?);
            tips.push(log.tip());
        }
        Ok(Outcome::of(
            seed,
            self.faults,
            self.left_out,
            &self.past,
            &reports,
            tips,
            findings,
        ))
    }
}

/// Results of a run under fire.
#[derive(Debug, Serialize)]
struct Outcome {
    carrier: String,
    seed: u64,
    faults: BTreeMap<Fault, u64>,
    /// Faults that cannot be injected here, and why.
    left_out: BTreeMap<Fault, String>,
    /// Number of times that replicas joined, including the first.
    joined: u64,
    /// Records that were given to a primary.
    given: u64,
    /// Records that a primary acknowledged.
    acknowledged: u64,
    /// Findings in the logs, the primary's first.
    logs: Vec<Findings>,
    tips: Vec<Tip>,
    logs_equal: bool,
    is_good: bool,
}

impl Outcome {
    fn of(
        seed: u64,
        faults: BTreeMap<Fault, u64>,
        left_out: BTreeMap<Fault, String>,
        past: &[Past],
        reports: &[Report],
        tips: Vec<Tip>,
        logs: Vec<Findings>,
    ) -> Outcome {
        let complete = past.iter().find_map(|past| past.heard.complete.clone());
        let (carrier, tip) = complete.unwrap_or_default();
        let told = reports.iter().map(|report| report.tip);
        let logs_equal = reports.len() + 1 == tips.len()
            && tips.iter().copied().chain(told).all(|other| other == tip);
        let acknowledged = past
            .iter()
            .map(|past| past.acknowledged.end - past.acknowledged.start)
            .sum();
        let is_good = logs_equal
            && acknowledged > 0
            && logs.iter().all(Findings::are_good)
            && faults.values().all(|&count| count > 0);
        Outcome {
            carrier,
            seed,
            faults,
            left_out,
            joined: past.iter().map(|past| past.heard.joined).sum(),
            given: past.last().map_or(0, |past| past.given.end),
            acknowledged,
            logs,
            tips,
            logs_equal,
            is_good,
        }
    }

    /// Returns the highest count of one kind of fault among the logs.
    fn worst(&self, what: impl Fn(&Findings) -> u64) -> u64 {
        self.logs.iter().map(what).max().unwrap_or(0)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "over {}, seed {}: ", self.carrier, self.seed)?;
        for (fault, count) in &self.faults {
            write!(f, "{fault:?} {count}, ")?;
        }
        writeln!(f, "joined {}", self.joined)?;
        for (fault, why) in &self.left_out {
            writeln!(f, "left out: {fault:?}, since {why}")?;
        }
        writeln!(
            f,
            "records {}, acknowledged {}, lost {}, misplaced {}, garbled {}",
            self.given,
            self.acknowledged,
            self.worst(|log| log.lost),
            self.worst(|log| log.misplaced),
            self.worst(|log| log.garbled),
        )?;
        match &self.tips[..] {
            [tip, ..] if self.logs_equal => {
                write!(
                    f,
                    "all {} logs read back, and equal: {tip}",
                    self.tips.len()
                )
            }
            tips => {
                write!(f, "LOGS DIFFER")?;
                tips.iter().try_for_each(|tip| write!(f, "; {tip}"))
            }
        }
    }
}

fn wait_for(
    problem: &'static str,
    mut is_done: impl FnMut() -> Result<bool, Error>,
) -> Result<(), Error> {
    let patience = Instant::now() + PATIENCE;
    while !is_done()? {
        if Instant::now() >= patience {
            return Err(Error::subject(problem));
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Connections opened at once by stray clients.
const CROWD: usize = 200;
/// Bytes that a process may lock; the receive buffers alone need more.
const LITTLE_LOCKED: u64 = 64 << 10;
const AT_THE_LINK: &str = "doing something to the link";
const NO_CONNECTION: &str = "no replica has a connection any more";
/// The longest wait for a connection, an acknowledgement, or a replica's search for its primary.
const PATIENCE: Duration = Duration::from_secs(60);
