//! The other processes: this program again, each in a role of its own.
//!
//! A process is started as `program --role JSON`. It reports in lines of JSON on its standard
//! output, and writes messages for people to standard error.

use std::{
    env,
    io::{BufRead, BufReader},
    process::{ChildStdout, Command, ExitCode, Stdio},
};

use ibex_harness::{
    Error,
    process::{self, Process},
};
use serde::{Deserialize, Serialize};

use crate::{
    fire::Serve,
    raw_copy::Receive,
    replica::{Report, Task},
};

/// The role of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Role {
    /// Follows a primary.
    Replica(Task),
    /// Is a primary, and replicates the records on its standard input.
    Primary(Serve),
    /// Receives the bytes of a raw copy.
    RawCopy(Receive),
}

impl Role {
    fn name(&self) -> &'static str {
        match self {
            Role::Replica(_) => "a replica",
            Role::Primary(_) => "a primary",
            Role::RawCopy(_) => "the receiver of a raw copy",
        }
    }
}

/// A report of a replica.
#[derive(Serialize, Deserialize)]
enum Said {
    /// The replica has opened its log, and looks for its primary.
    HasLog,
    /// Results, at the end.
    Report(Report),
}

/// Processes with one role each.
pub(crate) struct Processes {
    roles: Vec<Role>,
    running: Vec<Running>,
}

/// A running process.
struct Running {
    process: Process,
    output: BufReader<ChildStdout>,
    has_log: bool,
}

impl Processes {
    /// Starts a process for each role.
    pub(crate) fn start(roles: Vec<Role>) -> Result<Processes, Error> {
        let mut processes = Processes {
            roles: Vec::new(),
            running: Vec::new(),
        };
        for role in roles {
            processes.running.push(Running::start(&role)?);
            processes.roles.push(role);
        }
        Ok(processes)
    }

    /// Kills a process as `kill -9` does, at any point of its work, and starts it again.
    pub(crate) fn kill_and_start(&mut self, index: usize) -> Result<(), Error> {
        let killed = self.process(index).kill();
        killed.map_err(Error::io("killing a replica"))?;
        self.running[index] = Running::start(&self.roles[index])?;
        Ok(())
    }

    /// Returns a process, to disturb it.
    pub(crate) fn process(&mut self, index: usize) -> &mut Process {
        &mut self.running[index].process
    }

    /// Denies a replica further files and sockets, until it is [relieved](Process::relieve). Waits
    /// first until the replica has its log, which it cannot do without.
    pub(crate) fn starve(&mut self, index: usize) -> Result<(), Error> {
        self.running[index].wait_for_log()?;
        self.process(index).starve().map_err(Error::io(LIMITING))
    }

    /// Returns an error if a process has ended.
    pub(crate) fn check(&mut self) -> Result<(), Error> {
        let mut running = self.running.iter_mut();
        let checked = running.try_for_each(|running| running.process.check());
        checked.map_err(Error::io("looking at the processes"))
    }

    /// Waits until all processes have ended. Returns the reports of the replicas among them.
    pub(crate) fn finish(mut self) -> Result<Vec<Report>, Error> {
        let mut reports = Vec::new();
        for mut running in self.running.drain(..) {
            while let Some(said) = running.hear()? {
                if let Said::Report(report) = said {
                    reports.push(report);
                }
            }
            let finished = running.process.finish();
            finished.map_err(Error::io("waiting for the processes"))?;
        }
        Ok(reports)
    }
}

impl Running {
    fn start(role: &Role) -> Result<Running, Error> {
        let mut process = start_with(role, |command| {
            command.stdin(Stdio::null());
        })?;
        let output = BufReader::new(process.stdout());
        Ok(Running {
            process,
            output,
            has_log: false,
        })
    }

    fn wait_for_log(&mut self) -> Result<(), Error> {
        while !self.has_log {
            match self.hear()? {
                Some(Said::HasLog) => self.has_log = true,
                Some(Said::Report(_)) | None => return Err(self.ended("without a log")),
            }
        }
        Ok(())
    }

    /// Reads the next report; `None` if the process has ended.
    fn hear(&mut self) -> Result<Option<Said>, Error> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line);
        if read.map_err(Error::io("listening to a process"))? == 0 {
            return Ok(None);
        }
        let said = serde_json::from_str(&line).map_err(|source| Error::PeerSpoke {
            expected: "what a replica says",
            line,
            source,
        })?;
        Ok(Some(said))
    }

    fn ended(&self, status: &str) -> Error {
        Error::PeerEnded {
            pid: self.process.id(),
            status: status.to_owned(),
        }
    }
}

/// Runs this process's role, if it was started for one.
pub(crate) fn run_if_started() -> Option<ExitCode> {
    let mut arguments = env::args().skip(1);
    if arguments.next()? != ROLE_ARGUMENT {
        return None;
    }
    Some(match run(&arguments.next().unwrap_or_default()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("replication, process {}: {error}", std::process::id());
            ExitCode::FAILURE
        }
    })
}

fn run(role: &str) -> Result<(), Error> {
    process::stay_with_parent().map_err(Error::io("staying with the parent process"))?;
    let role = serde_json::from_str(role).map_err(Error::subject)?;
    match role {
        Role::Replica(task) => {
            let log = task.open_log()?;
            say(&Said::HasLog)?;
            say(&Said::Report(task.follow(log)?))
        }
        Role::Primary(serve) => serve.run(),
        Role::RawCopy(receive) => receive.run(),
    }
}

fn say(said: &Said) -> Result<(), Error> {
    println!("{}", serde_json::to_string(said).map_err(Error::subject)?);
    Ok(())
}

/// Starts a process after `prepare` has set its input and anything else of its own.
pub(crate) fn start_with(
    role: &Role,
    prepare: impl FnOnce(&mut Command),
) -> Result<Process, Error> {
    let text = serde_json::to_string(role).map_err(Error::subject)?;
    let mut command = process::again().map_err(Error::io("finding this program's file"))?;
    command.args([ROLE_ARGUMENT, &text]).stdout(Stdio::piped());
    prepare(&mut command);
    Process::start(role.name(), &mut command).map_err(Error::io("starting a process"))
}

pub(crate) const LIMITING: &str = "limiting what a process may have";
const ROLE_ARGUMENT: &str = "--role";
