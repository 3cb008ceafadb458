//! The other processes: this program again, each with a role of its own.
//!
//! A process is started as `program --role JSON` and says what came of it in one line of
//! JSON on its standard output; whatever a person should see goes to standard error. None
//! outlives its parent: the kernel kills it when the thread that started it ends.

use std::{
    env,
    os::unix::process::parent_id,
    process::{self, Child, Command, ExitCode, Stdio},
};

use ibex_harness::{Error, resources};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use crate::{
    fire::Serve,
    raw_copy::Receive,
    replica::{Report, Task},
};

/// What a process is there for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Role {
    /// Follows a primary.
    Replica(Task),
    /// Is a primary, of what comes on its standard input.
    Primary(Serve),
    /// Takes what a raw copy sends.
    RawCopy(Receive),
}

#[derive(Serialize, Deserialize)]
struct Start {
    parent: u32,
    role: Role,
}

/// Processes of one role each.
pub(crate) struct Processes {
    roles: Vec<Role>,
    children: Vec<Child>,
}

impl Processes {
    /// Starts one for each role.
    pub(crate) fn start(roles: Vec<Role>) -> Result<Processes, Error> {
        let mut processes = Processes {
            roles: Vec::new(),
            children: Vec::new(),
        };
        for role in roles {
            processes.children.push(spawn(&role)?);
            processes.roles.push(role);
        }
        Ok(processes)
    }

    /// Ends one as `kill -9` does, in the middle of whatever it does, and starts it again.
    pub(crate) fn kill_and_start(&mut self, index: usize) -> Result<(), Error> {
        let child = &mut self.children[index];
        child
            .kill()
            .and_then(|()| child.wait())
            .map_err(Error::io("killing a replica"))?;
        *child = spawn(&self.roles[index])?;
        Ok(())
    }

    /// Stops one, until [`resume`](Self::resume).
    pub(crate) fn stop(&self, index: usize) -> Result<(), Error> {
        signal(&self.children[index], Signal::STOP)
    }

    /// Lets it go on.
    pub(crate) fn resume(&self, index: usize) -> Result<(), Error> {
        signal(&self.children[index], Signal::CONT)
    }

    /// Lets one open no more files and sockets, until it is [relieved](Self::relieve).
    pub(crate) fn starve(&self, index: usize) -> Result<(), Error> {
        starve(&self.children[index])
    }

    /// Lets it open what it likes again.
    pub(crate) fn relieve(&self, index: usize) -> Result<(), Error> {
        relieve(&self.children[index])
    }

    /// An error if one of them has ended.
    pub(crate) fn check(&mut self) -> Result<(), Error> {
        for child in &mut self.children {
            let ended = child
                .try_wait()
                .map_err(Error::io("looking at a process"))?;
            if let Some(status) = ended {
                return Err(Error::PeerEnded {
                    pid: child.id(),
                    status: status.to_string(),
                });
            }
        }
        Ok(())
    }

    /// Waits until all have ended, and gives what the replicas among them reported.
    pub(crate) fn finish(mut self) -> Result<Vec<Report>, Error> {
        let mut reports = Vec::new();
        for child in self.children.drain(..) {
            let pid = child.id();
            let output = child
                .wait_with_output()
                .map_err(Error::io("waiting for a process"))?;
            if !output.status.success() {
                let status = output.status.to_string();
                return Err(Error::PeerEnded { pid, status });
            }
            let line = String::from_utf8_lossy(&output.stdout).into_owned();
            if line.is_empty() {
                continue;
            }
            reports.push(
                serde_json::from_str(&line).map_err(|source| Error::PeerSpoke {
                    expected: "a replica's report",
                    line,
                    source,
                })?,
            );
        }
        Ok(reports)
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Both fail only if it was already waited for.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Does this process's role, if it was started for one.
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
            let report = serde_json::to_string(&task.run()?).map_err(Error::subject)?;
            println!("{report}");
            Ok(())
        }
        Role::Primary(serve) => serve.run(),
        Role::RawCopy(receive) => receive.run(),
    }
}

/// Sends a signal to a process.
pub(crate) fn signal(child: &Child, signal: Signal) -> Result<(), Error> {
    kill_process(Pid::from_child(child), signal).map_err(Error::io("sending a signal"))
}

/// Lets a process have no more descriptors than it has open.
pub(crate) fn starve(child: &Child) -> Result<(), Error> {
    resources::starve(child).map_err(Error::io(LIMITING))
}

/// Lets a process have as many descriptors as this one may.
pub(crate) fn relieve(child: &Child) -> Result<(), Error> {
    resources::relieve(child).map_err(Error::io(LIMITING))
}

fn spawn(role: &Role) -> Result<Child, Error> {
    spawn_with(role, |command| {
        command.stdin(Stdio::null());
    })
}

/// Starts one whose input, and whatever else is its own, `prepare` has said.
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

const LIMITING: &str = "limiting a process's descriptors";
const ROLE_ARGUMENT: &str = "--role";
