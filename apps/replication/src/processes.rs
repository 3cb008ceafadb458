//! The other processes: this program again, each in a role of its own.
//!
//! A process is started as `program --role JSON`. It reports in lines of JSON on its standard
//! output, and writes messages for people to standard error. No process outlives its parent: the
//! kernel kills it when the thread that started it ends.

use std::{
    env,
    io::{BufRead, BufReader},
    os::unix::process::parent_id,
    process::{self, Child, ChildStdout, Command, ExitCode, Stdio},
};

use ibex_harness::{Error, resources};
use rustix::process::{Pid, Resource, Signal, kill_process, set_parent_process_death_signal};
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

#[derive(Serialize, Deserialize)]
struct Start {
    parent: u32,
    role: Role,
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
    child: Child,
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
        let Running { child, .. } = &mut self.running[index];
        child
            .kill()
            .and_then(|()| child.wait())
            .map_err(Error::io("killing a replica"))?;
        self.running[index] = Running::start(&self.roles[index])?;
        Ok(())
    }

    /// Stops a process, until [`resume`](Self::resume).
    pub(crate) fn stop(&self, index: usize) -> Result<(), Error> {
        signal(&self.running[index].child, Signal::STOP)
    }

    /// Continues a process.
    pub(crate) fn resume(&self, index: usize) -> Result<(), Error> {
        signal(&self.running[index].child, Signal::CONT)
    }

    /// Denies a replica further files and sockets, until it is [relieved](Self::relieve). Waits
    /// first until the replica has its log, which it cannot do without.
    pub(crate) fn starve(&mut self, index: usize) -> Result<(), Error> {
        self.running[index].wait_for_log()?;
        starve(&self.running[index].child)
    }

    /// Limits a resource of a process to `most`, or resets the limit to this process's own.
    pub(crate) fn limit(
        &self,
        index: usize,
        resource: Resource,
        most: Option<u64>,
    ) -> Result<(), Error> {
        limit(&self.running[index].child, resource, most)
    }

    /// Lets a process open files and sockets again.
    pub(crate) fn relieve(&self, index: usize) -> Result<(), Error> {
        relieve(&self.running[index].child)
    }

    /// Returns an error if a process has ended.
    pub(crate) fn check(&mut self) -> Result<(), Error> {
        for running in &mut self.running {
            let ended = running.child.try_wait();
            if let Some(status) = ended.map_err(Error::io("looking at a process"))? {
                return Err(running.ended(&status.to_string()));
            }
        }
        Ok(())
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
            let status = running.child.wait();
            let status = status.map_err(Error::io("waiting for a process"))?;
            if !status.success() {
                return Err(running.ended(&status.to_string()));
            }
        }
        Ok(reports)
    }
}

impl Running {
    fn start(role: &Role) -> Result<Running, Error> {
        let mut child = spawn_with(role, |command| {
            command.stdin(Stdio::null());
        })?;
        let output = child.stdout.take().expect("it was asked for as a pipe");
        Ok(Running {
            child,
            output: BufReader::new(output),
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
            pid: self.child.id(),
            status: status.to_owned(),
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for Running { child, .. } in &mut self.running {
            // Both calls fail only if the process was already waited for.
            let _ = child.kill();
            let _ = child.wait();
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
            eprintln!("replication, process {}: {error}", process::id());
            ExitCode::FAILURE
        }
    })
}

fn run(start: &str) -> Result<(), Error> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(Error::io("asking to be killed with the parent process"))?;
    let Start { parent, role } = serde_json::from_str(start).map_err(Error::subject)?;
    if parent_id() != parent {
        return Err(Error::subject(format!(
            "the parent, process {parent}, is gone"
        )));
    }
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

/// Sends a signal to a process.
pub(crate) fn signal(child: &Child, signal: Signal) -> Result<(), Error> {
    kill_process(Pid::from_child(child), signal).map_err(Error::io("sending a signal"))
}

/// Limits a resource of a process to `most`, or resets the limit to this process's own.
pub(crate) fn limit(child: &Child, resource: Resource, most: Option<u64>) -> Result<(), Error> {
    resources::limit(child, resource, most).map_err(Error::io(LIMITING))
}

/// Limits a process's descriptors to those that it has open.
pub(crate) fn starve(child: &Child) -> Result<(), Error> {
    resources::starve(child).map_err(Error::io(LIMITING))
}

/// Resets a process's limit of descriptors to this process's own.
pub(crate) fn relieve(child: &Child) -> Result<(), Error> {
    resources::relieve(child).map_err(Error::io(LIMITING))
}

/// Starts a process after `prepare` has set its input and anything else of its own.
pub(crate) fn spawn_with(role: &Role, prepare: impl FnOnce(&mut Command)) -> Result<Child, Error> {
    let start = Start {
        parent: process::id(),
        role: role.clone(),
    };
    let start = serde_json::to_string(&start).map_err(Error::subject)?;
    let program = env::current_exe().map_err(Error::io("finding this program's file"))?;
    let mut command = Command::new(program);
    command.args([ROLE_ARGUMENT, &start]).stdout(Stdio::piped());
    prepare(&mut command);
    command.spawn().map_err(Error::io("starting a process"))
}

const LIMITING: &str = "limiting what a process may have";
const ROLE_ARGUMENT: &str = "--role";
