//! A run: the processes, the faults, and the end.
#![forbid(unsafe_code)]

use std::{
    collections::BTreeMap,
    io,
    net::TcpStream,
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use ibex_harness::{
    draw::Draw,
    network::{DISTURBANCES, Network},
    proxy::{HARMS, Harm, Proxy},
};
use rustix::process::Resource;

use crate::{
    checker::{self, Checker, Progress},
    fact::Feed,
    fault::{self, Fault},
    options::{Carrier, RunOptions},
    processes::{Player, Recipe},
    report::Report,
};

/// Runs the soak test. Returns its report.
pub(crate) fn run(options: &RunOptions) -> io::Result<Report> {
    let checker_finds = checker::prove()?;
    let seed = options.seed.unwrap_or_else(Draw::seed);
    eprintln!("soak: seed {seed}");
    let mut draw = Draw::new(seed);
    let network = Network::of(options.fabric.medium(), &mut draw)?;
    let (kinds, left_out) = choose(options, &network)?;
    let (checker, feed) = Checker::start()?;
    let mut stage = Stage::set(options, network, draw, feed, checker.progress())?;
    let mut failures = Vec::new();
    let mut faults: BTreeMap<_, _> = kinds.iter().map(|kind| (kind.name(), 0)).collect();
    if let Err(failure) = stage.play(&kinds, options, &mut faults) {
        failures.push(failure.to_string());
    }
    let places_harmed = stage.prober_proxy.covered();
    for harm in HARMS {
        let name = match harm {
            Harm::Reset => "reset_at_byte",
            Harm::Cut => "cut_at_byte",
            Harm::Stall => "stall_at_byte",
        };
        faults.insert(name, stage.prober_proxy.harmed(harm));
    }
    failures.extend(stage.strike());
    let verdict = checker.verdict()?;
    let mut report = Report {
        fabric: options.fabric.name(),
        seed,
        seconds: options.seconds,
        faults,
        left_out,
        places_harmed,
        checker_finds,
        verdict,
        failures,
    };
    report.judge(
        options.at_least,
        kinds.iter().any(|kind| kind.is_survived()),
    );
    Ok(report)
}

/// Chooses the kinds of faults that can be injected, and notes why the others cannot.
#[allow(clippy::type_complexity, reason = "two lists")]
fn choose(
    options: &RunOptions,
    network: &Network,
) -> io::Result<(Vec<Fault>, BTreeMap<&'static str, String>)> {
    let (mut kinds, mut left_out) = (Vec::new(), BTreeMap::new());
    if let Some(unknown) = options
        .faults
        .iter()
        .find(|name| fault::ALL.iter().all(|kind| kind.name() != *name))
    {
        let names = fault::ALL.map(Fault::name).join(", ");
        return Err(io::Error::other(format!(
            "there is no fault {unknown}; there are {names}"
        )));
    }
    for kind in fault::ALL {
        let is_wanted =
            options.faults.is_empty() || options.faults.iter().any(|name| name == kind.name());
        match kind.applies(options.fabric, network) {
            _ if !is_wanted => {}
            Ok(()) => kinds.push(kind),
            Err(why) => drop(left_out.insert(kind.name(), why)),
        }
    }
    Ok((kinds, left_out))
}

/// Everything that takes part in the run.
struct Stage {
    feed: Feed,
    network: Network,
    draw: Draw,
    carrier: Carrier,
    next_process: u64,
    /// What the checker has reported.
    progress: Arc<Progress>,

    hub: Player,
    senders: Vec<Player>,
    /// Processes that connect repeatedly through the second proxy, for a few messages each.
    probers: Vec<Player>,
    proxy: Proxy,
    prober_proxy: Proxy,
}

impl Stage {
    fn set(
        options: &RunOptions,
        network: Network,
        mut draw: Draw,
        feed: Feed,
        progress: Arc<Progress>,
    ) -> io::Result<Self> {
        let carrier = options.fabric;
        let proxy = Proxy::start(network.address)?;
        let prober_proxy = Proxy::at_every_byte(network.address, FIRST_BYTES, &mut draw)?;
        let recipe = |role: &'static str, address, more: String| Recipe {
            role,
            address,
            fabric: carrier,
            namespace: None,
            device: network.near_device.clone(),
            more: more.split_whitespace().map(String::from).collect(),
            is_nobody: false,
        };
        let (count, rarity) = match carrier {
            // A busy guest takes seconds for a session.
            Carrier::Verbs => (4, "--rarity 20 --patience-ms 20000"),
            Carrier::Shm | Carrier::Tcp => (16, ""),
        };
        let hub = Recipe {
            namespace: network.far_namespace.clone(),
            device: network.far_device.clone(),
            ..recipe("hub", network.address, rarity.to_owned())
        };
        let hub = Player::start(hub, 0, 0, &feed)?;
        let prober = recipe(
            "sender",
            prober_proxy.address(),
            "--messages 2 --rarity 1000 --patience-ms 500".to_owned(),
        );
        let mut next_process = 1;
        let mut probers = Vec::new();
        for _ in 0..PROBERS {
            let prober = prober.clone();
            probers.push(Player::start(prober, next_process, draw.word(), &feed)?);
            next_process += 1;
        }
        let mut senders = Vec::new();
        for index in 0..options.senders.unwrap_or(count) {
            let driver = if index % 2 == 0 { "" } else { "--caller" };
            let address = match index % 4 {
                0 | 1 => network.address,
                _ => proxy.address(),
            };
            let sender = recipe("sender", address, format!("{rarity} {driver}"));
            senders.push(Player::start(sender, next_process, draw.word(), &feed)?);
            next_process += 1;
        }
        Ok(Self {
            feed,
            network,
            draw,
            carrier,
            next_process,
            progress,
            hub,
            senders,
            probers,
            proxy,
            prober_proxy,
        })
    }

    /// Injects faults until the time is over: each kind once in any case, survivable ones until a
    /// session has resumed, then as drawn until there were as many messages as the run must have.
    fn play(
        &mut self,
        kinds: &[Fault],
        options: &RunOptions,
        counts: &mut BTreeMap<&'static str, u64>,
    ) -> io::Result<()> {
        let begun = Instant::now();
        let mut first = kinds.to_vec();
        self.draw.shuffle(&mut first);
        let time = Duration::from_secs(options.seconds);
        let is_short = |progress: &Progress| {
            progress.messages.load(Ordering::Relaxed) < options.at_least
                && begun.elapsed() < time + SURVIVAL_PATIENCE
        };
        while begun.elapsed() < time || !first.is_empty() || is_short(&self.progress) {
            self.pause(50..300);
            let next = first.pop();
            let kind = next.unwrap_or_else(|| self.draw_kind(kinds));
            eprintln!(
                "soak: {:.1} s: {}",
                begun.elapsed().as_secs_f64(),
                kind.name()
            );
            let count = match next {
                Some(kind) if kind.is_survived() => self.inject_until_survived(kind)?,
                _ => self.inject(kind)?,
            };
            *counts.entry(kind.name()).or_default() += count;
            self.check()?;
        }
        Ok(())
    }

    /// Injects a survivable fault until a session has resumed. A harmed connection may be too new
    /// to have a session, and another fault could end the session before it resumes, so no other
    /// kind is injected meanwhile.
    fn inject_until_survived(&mut self, kind: Fault) -> io::Result<u64> {
        let mut looks = LOOKS;
        let before = self.progress.resumes.load(Ordering::Relaxed);
        let deadline = Instant::now() + SURVIVAL_PATIENCE;
        let mut count = 0;
        while Instant::now() < deadline {
            count += self.inject(kind)?;
            for _ in 0..looks {
                thread::sleep(KILL_PAUSE);
                if self.progress.resumes.load(Ordering::Relaxed) > before {
                    return Ok(count);
                }
            }
            self.check()?;
            // The next fault may have hit an attempt to resume: a slow machine needs more time.
            looks *= 2;
        }
        Ok(count)
    }

    fn draw_kind(&mut self, kinds: &[Fault]) -> Fault {
        let kind = *self.draw.one_of(kinds);
        // A crowd takes as long as several other faults.
        match kind {
            Fault::Crowd | Fault::CrowdKilled if !self.draw.once_in(4) => *self.draw.one_of(kinds),
            kind => kind,
        }
    }

    /// Injects a fault. Returns how often it was done.
    fn inject(&mut self, kind: Fault) -> io::Result<u64> {
        match kind {
            Fault::KillSenders => {
                let kills = match self.carrier {
                    Carrier::Verbs => 3,
                    Carrier::Shm | Carrier::Tcp => KILLS,
                };
                for _ in 0..kills {
                    let index = self.draw.of(0..self.senders.len() as u64) as usize;
                    self.senders[index].kill(&self.feed)?;
                    let recipe = self.senders[index].recipe();
                    self.senders[index] = self.start(recipe)?;
                    thread::sleep(KILL_PAUSE);
                }
                return Ok(kills);
            }
            Fault::KillHub => {
                self.hub.kill(&self.feed)?;
                self.pause(0..300);
                let recipe = self.hub.recipe();
                self.hub = self.start(recipe)?;
            }
            Fault::StopSender => {
                let index = self.draw.of(0..self.senders.len() as u64) as usize;
                self.senders[index].process.stop()?;
                self.pause(50..1500);
                self.senders[index].process.resume()?;
            }
            Fault::StopHub => {
                self.hub.process.stop()?;
                self.pause(50..1000);
                self.hub.process.resume()?;
            }
            Fault::CutLink => {
                self.network.cut()?;
                self.pause(50..1500);
                self.network.restore()?;
            }
            Fault::DisturbLink => {
                let how = *self.draw.one_of(DISTURBANCES);
                self.network.disturb(how)?;
                self.pause(500..1500);
                self.network.restore()?;
            }
            Fault::ResetConnection => return Ok(self.harm(Harm::Reset)),
            Fault::CutConnection => return Ok(self.harm(Harm::Cut)),
            Fault::StallConnection => return Ok(self.harm(Harm::Stall)),
            Fault::Descriptors => {
                self.await_hub()?;
                self.hub.process.starve()?;
                self.pause(50..800);
                self.hub.process.relieve()?;
            }
            Fault::MemoryFiles => {
                let index = self.draw.of(0..self.senders.len() as u64 + 1) as usize;
                self.of_all(index)
                    .process
                    .limit(Resource::Fsize, Some(4096))?;
                self.pause(50..800);
                self.of_all(index).process.limit(Resource::Fsize, None)?;
            }
            Fault::LockedMemory => {
                let mut recipe = self.senders[0].recipe();
                recipe.is_nobody = true;
                recipe
                    .more
                    .extend(["--locked-bytes", "65536"].map(String::from));
                let process = self.start(recipe)?;
                self.pause(300..800);
                process.finish()?;
            }
            Fault::Crowd => {
                let crowd = self.start_crowd()?;
                crowd.finish()?;
            }
            Fault::CrowdKilled => {
                let mut crowd = self.start_crowd()?;
                self.pause(20..1000);
                crowd.kill(&self.feed)?;
            }
        }
        Ok(1)
    }

    /// Waits until the hub listens: a program that is still being loaded needs descriptors.
    fn await_hub(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = TcpStream::connect_timeout(&self.network.address, PATIENCE) {
            self.hub.process.check()?;
            if Instant::now() > deadline {
                let why = format!(
                    "the hub does not listen at {}: {error}",
                    self.network.address
                );
                return Err(io::Error::other(why));
            }
            thread::sleep(KILL_PAUSE);
        }
        Ok(())
    }

    /// Returns a sender, or the hub for the index behind them.
    fn of_all(&self, index: usize) -> &Player {
        self.senders.get(index).unwrap_or(&self.hub)
    }

    fn harm(&mut self, harm: Harm) -> u64 {
        let time = Duration::from_millis(self.draw.of(20..1000));
        // All processes may just have been killed, so a connection may first have to appear.
        let deadline = Instant::now() + PATIENCE;
        while !self.proxy.harm_one(harm, time) {
            if Instant::now() > deadline {
                return 0;
            }
            thread::sleep(KILL_PAUSE);
        }
        1
    }

    /// Starts a process with many connections at once, each for a few messages.
    fn start_crowd(&mut self) -> io::Result<Player> {
        let mut recipe = self.senders[0].recipe();
        let count = match self.carrier {
            Carrier::Shm | Carrier::Tcp => 1000,
            // The guest is slow with each connection.
            Carrier::Verbs => 32,
        };
        let more = format!("--crowd {count} --messages 2 --rarity 1000 --patience-ms 20000");
        recipe.more = more.split_whitespace().map(String::from).collect();
        self.start(recipe)
    }

    fn start(&mut self, recipe: Recipe) -> io::Result<Player> {
        let number = self.next_process;
        self.next_process += 1;
        Player::start(recipe, number, self.draw.word(), &self.feed)
    }

    fn pause(&mut self, millis: std::ops::Range<u64>) {
        thread::sleep(Duration::from_millis(self.draw.of(millis)));
    }

    /// Returns an error if a process has ended by itself.
    fn check(&mut self) -> io::Result<()> {
        self.hub.process.check()?;
        self.probers
            .iter_mut()
            .try_for_each(|player| player.process.check())?;
        self.senders
            .iter_mut()
            .try_for_each(|player| player.process.check())
    }

    /// Ends everything in order. Returns the failures.
    fn strike(self) -> Vec<String> {
        let Self {
            mut senders,
            mut probers,
            hub,
            ..
        } = self;
        probers
            .iter_mut()
            .for_each(|player| player.process.close_stdin());
        senders
            .iter_mut()
            .for_each(|player| player.process.close_stdin());
        senders.extend(probers);
        // The hub ends last, since it waits for connected processes.
        let all = senders.into_iter().chain([hub]);
        all.filter_map(|process| process.finish().err())
            .map(|error| error.to_string())
            .collect()
    }
}

/// Bytes at the beginning of each direction of a connection that are harmed one by one.
const FIRST_BYTES: u64 = 1500;
/// Processes whose connections are harmed in their first bytes.
const PROBERS: usize = 2;
/// Processes killed in a row, and the pause between them.
const KILLS: u64 = 10;
const KILL_PAUSE: Duration = Duration::from_millis(100);
/// Pauses that suffice for a session to resume, for a first fault.
const LOOKS: u32 = 30;
/// The longest time for a session to resume, after several faults, and for the messages of a run.
const SURVIVAL_PATIENCE: Duration = Duration::from_secs(600);
/// The longest wait for a connection, or for the hub.
const PATIENCE: Duration = Duration::from_secs(60);
