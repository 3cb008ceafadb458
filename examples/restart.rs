//! A service that is restarted while clients call it, without one failed call.
//!
//! The processes of the service share a listening socket, as under systemd's socket activation. To
//! end, the old process drains: it stops accepting, so that new connections reach the new process.
//! The old process answers the calls that it has begun, refuses later ones, and exits. A refused
//! call was certainly not executed, so the client connects again and repeats it.
//!
//! `cargo run --release --example restart`

use std::{
    env,
    net::{SocketAddr, TcpListener},
    os::fd::{AsFd, OwnedFd},
    process::{Child, Command, Stdio},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use ibex::prelude::*;
use ibex::{
    Node,
    calls::{CallError, CallOptions, Caller, Execution},
};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Serves on the socket passed as standard input, until a call tells the process to end.
fn serve() -> Result<(), Error> {
    let socket = TcpListener::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let node = Node::builder().listen_on(socket).build()?;
    let doubles = node.service::<u64, (u64, u32)>("double")?;
    let mut ends = node.service::<u64, u64>("end")?;

    thread::scope(|scope| {
        let answering = scope.spawn(|| {
            doubles.serve_blocking(1, |number| Ok((2 * number.to_native(), std::process::id())))
        });
        if let Some(request) = ends.next()? {
            node.stop_accepting();
            request.reply(&0)?;
        }
        let drained = node.drain(DRAIN_TIMEOUT);
        if !drained.is_complete() {
            println!("{drained}");
        }
        let report = node.close(DRAIN_TIMEOUT);
        if !report.is_complete() {
            println!("{report:?}");
        }
        answering.join().map_err(|_| "the service panicked")??;
        Ok(())
    })
}

/// Starts a process of the service.
fn start(socket: &TcpListener) -> Result<Child, Error> {
    let socket = OwnedFd::from(socket.try_clone()?);
    let mut program = Command::new(env::current_exe()?);
    Ok(program.arg("serve").stdin(Stdio::from(socket)).spawn()?)
}

/// A caller whose replies are the doubled number and the id of the process that answered.
type Double = Caller<u64, (u64, u32)>;

/// Connects a client to the process that serves now.
fn connect(address: SocketAddr) -> Result<(Node, Double), Error> {
    let node = Node::client()?;
    let soon = CallOptions::new().timeout(Duration::from_secs(30));
    let caller = node.connect(address)?.caller("double")?.with(soon);
    Ok((node, caller))
}

/// Calls until `is_over`, and sends the id of the answering process to `served_by` whenever it
/// changes. Returns the number of calls answered, and of calls sent twice.
fn call(
    address: SocketAddr,
    is_over: &AtomicBool,
    served_by: &mpsc::Sender<u32>,
) -> Result<(u64, u64), Error> {
    let (mut node, mut double) = connect(address)?;
    let (mut answered, mut repeated, mut last) = (0, 0, 0);
    while !is_over.load(Ordering::Relaxed) {
        let (result, process) = match double.call(&answered) {
            Ok(reply) => (u64::from(reply.0), u32::from(reply.1)),
            // The call was not executed and never will be, so it is repeated at the next process.
            Err(error) if CallError::execution(&error) == Execution::NotExecuted => {
                repeated += 1;
                (node, double) = connect(address)?;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        assert_eq!(result, 2 * answered);
        answered += 1;
        if process != last {
            last = process;
            served_by.send(process)?;
        }
    }
    drop((double, node));
    Ok((answered, repeated))
}

fn main() -> Result<(), Error> {
    if env::args().nth(1).as_deref() == Some("serve") {
        return serve();
    }
    let socket = TcpListener::bind("127.0.0.1:0")?;
    let address = socket.local_addr()?;
    let is_over = AtomicBool::new(false);
    let mut current = start(&socket)?;
    let (served_by, processes) = mpsc::channel();
    let (answered, repeated) = thread::scope(|scope| {
        let client = scope.spawn(|| call(address, &is_over, &{ served_by }));
        let restarts = (|| -> Result<(), Error> {
            for restart in 1..=RESTARTS {
                let serving = processes.recv()?;
                assert_eq!(serving, current.id());
                // No other process accepts yet, so this call reaches the process that is to end.
                let operator = Node::client()?;
                let end = operator.connect(address)?.caller::<u64, u64>("end")?;
                let new = start(&socket)?;
                end.call(&0)?;
                drop((end, operator));
                let old = std::mem::replace(&mut current, new).wait()?;
                println!("restart {restart}: process {serving} has ended, {old}");
            }
            assert_eq!(processes.recv()?, current.id());
            Ok(())
        })();
        is_over.store(true, Ordering::Relaxed);
        // If both failed, the client's error is the cause.
        let called = client.join().map_err(|_| "the client panicked")??;
        restarts.map(|()| called)
    })?;
    current.kill()?;
    current.wait()?;
    println!(
        "{answered} calls answered over {RESTARTS} restarts, {repeated} of them sent again, \
         0 failed"
    );
    Ok(())
}

const RESTARTS: u32 = 3;
/// Time that calls under way may take after the process is told to end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
