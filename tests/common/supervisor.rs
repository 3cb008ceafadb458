//! The supervisor starts the two processes of a scenario, watches over them and judges how they
//! ended.
//!
//! The supervisor plays no side itself. Each side is this same program, started again with [`PART`]
//! in its environment. If both sides are threads of one process, that process is started and
//! watched in the same way. A side passes by returning, or by dying as the scenario says. Scenarios
//! have no time limit; the watchdog is for those that hang, and shows their stacks.

use std::{
    env, fmt, fs,
    io::{self, Read, Seek},
    os::fd::OwnedFd,
    panic,
    process::{ExitCode, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use ibex_harness::process::{self, Process, wait_for_any};
use rustix::fs::{MemfdFlags, memfd_create};

#[cfg(feature = "fake-device")]
use super::fake;
use super::{
    device::Device,
    line::Line,
    scenario::{Cell, Side},
    secured::Keys,
    stage::Stage,
    task,
};

/// The variable that names the part a process plays: `order/shm/caller Dialer`.
const PART: &str = "IBEX_CONFORMANCE_PART";
/// A time far longer than any scenario takes on any busy machine.
const WATCHDOG: Duration = Duration::from_secs(480);
/// Time for a side to end by itself after the other has failed.
pub(crate) const GRACE: Duration = Duration::from_secs(3);

/// Plays a cell in processes of its own. The error contains the output of each.
pub(crate) fn supervise(cell: Cell) -> Result<(), String> {
    if cell.takes_device() {
        return Device::of_this_run()?.carries(|| watch_over(cell));
    }
    watch_over(cell)
}

fn watch_over(cell: Cell) -> Result<(), String> {
    let mut players = Player::start_all(cell).map_err(|error| error.to_string())?;

    let mut remarks = String::new();
    let mut deadline = Instant::now() + WATCHDOG;
    let mut is_over = false;
    loop {
        for player in &mut players {
            player.look().map_err(|error| error.to_string())?;
        }
        if players.iter().all(|player| player.ended.is_some()) {
            break;
        }
        if !is_over && players.iter().any(Player::has_failed) {
            is_over = true;
            deadline = Instant::now() + GRACE;
        }
        if Instant::now() >= deadline {
            if !is_over {
                remarks = format!("the watchdog bit after {WATCHDOG:?}\n");
            }
            // Both players are shown before the end of one changes what the other does.
            let running = || players.iter().filter(|player| player.ended.is_none());
            remarks.extend(running().map(Player::stacks));
            let running = players.iter_mut().filter(|player| player.ended.is_none());
            let killed: io::Result<Vec<_>> = running.map(|player| player.process.kill()).collect();
            killed.map_err(|error| error.to_string())?;
            is_over = true;
            deadline += WATCHDOG;
        }
        let processes = players.iter().map(|player| &player.process);
        wait_for_any(processes, deadline).map_err(|error| error.to_string())?;
    }
    if !is_over && !players.iter().any(Player::has_failed) {
        return Ok(());
    }
    for player in &mut players {
        remarks += &player.report();
    }
    Err(remarks)
}

/// Plays the part that the environment names, if it names one.
pub(crate) fn play_part(cells: &[Cell]) -> Option<ExitCode> {
    let part = env::var(PART).ok()?;
    // The supervisor's thread may be gone already; then the result is not needed.
    if process::stay_with_parent().is_err() {
        return Some(ExitCode::FAILURE);
    }
    let parts = cells.iter().flat_map(|&cell| Part::of(cell));
    let found = parts.into_iter().find(|one| part == one.to_string());
    let found = found.unwrap_or_else(|| panic!("there is no part \"{part}\""));
    Some(match panic::catch_unwind(|| found.play()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    })
}

/// The part of a cell that one process plays: a side, or both.
#[derive(Clone, Copy)]
struct Part {
    cell: Cell,
    side: Option<Side>,
}

impl Part {
    fn of(cell: Cell) -> Vec<Self> {
        if cell.is_of_one_process() {
            return vec![Self { cell, side: None }];
        }
        let side = |side| Self {
            cell,
            side: Some(side),
        };
        Side::BOTH.map(side).to_vec()
    }

    fn play(self) {
        let Self { cell, side } = self;
        if let Some(side) = side {
            let line = Line::inherited().expect("the supervisor gave us a line");
            let _runtime = task::runtime_for(cell.driver);
            (cell.scenario.play)(&mut Stage::enter(cell, side, line));
        }
        #[cfg(feature = "fake-device")]
        if let Some(between) = cell.between {
            fake::play_both(cell, between);
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.side {
            Some(side) => write!(f, "{} {side:?}", self.cell),
            None => write!(f, "{}", self.cell),
        }
    }
}

/// A process that plays its part.
struct Player {
    part: Part,
    process: Process,
    /// The file for its standard output and error.
    said: fs::File,
    ended: Option<ExitStatus>,
}

impl Player {
    /// Starts all processes of a cell, with a line between them.
    fn start_all(cell: Cell) -> io::Result<Vec<Self>> {
        let (dialer, listener) = Line::pair()?;
        let parts = Part::of(cell).into_iter().zip([dialer, listener]);
        parts.map(|(part, line)| Self::start(part, line)).collect()
    }

    fn start(part: Part, line: OwnedFd) -> io::Result<Self> {
        let said = fs::File::from(memfd_create("said", MemfdFlags::CLOEXEC)?);
        let mut command = process::again()?;
        if part.cell.takes_device() {
            let device = Device::of_this_run().map_err(io::Error::other)?;
            let (variable, port) = device.for_a_player();
            command.env(variable, port);
        }
        Keys::tell(&mut command);
        command
            .env(PART, part.to_string())
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::from(line))
            .stdout(Stdio::from(said.try_clone()?))
            .stderr(Stdio::from(said.try_clone()?));
        let process = Process::start(part, &mut command)?;
        Ok(Self {
            part,
            process,
            said,
            ended: None,
        })
    }

    fn look(&mut self) -> io::Result<()> {
        self.ended = self.process.ended()?;
        Ok(())
    }

    /// Returns whether the process ended in another way than the scenario says.
    fn has_failed(&self) -> bool {
        self.ended.is_some_and(|status| {
            let Part { cell, side } = self.part;
            if side.is_some() && cell.scenario.killed == side {
                !process::was_killed(status)
            } else {
                !status.success()
            }
        })
    }

    /// Returns the stacks of all its threads.
    fn stacks(&self) -> String {
        format!("{} is at\n{}\n", self.part, self.process.stacks())
    }

    fn report(&mut self) -> String {
        let mut said = Vec::new();
        let read = self
            .said
            .rewind()
            .and_then(|()| self.said.read_to_end(&mut said));
        let said = match read {
            Ok(_) => String::from_utf8_lossy(&said).into_owned(),
            Err(error) => error.to_string(),
        };
        let how = match self.ended {
            Some(status) => status.to_string(),
            None => "still running".to_owned(),
        };
        format!("--- {} ({how})\n{said}", self.part)
    }
}
