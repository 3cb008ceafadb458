//! The promises of a service and its callers, over each fabric and under each driver.

mod again;
mod carrying;
mod certainty;
mod hostile;
mod late;
mod names;
mod outage;
mod roles;
mod serving;
mod streams;
mod towers;
mod traces;
#[path = "../turning/mod.rs"]
mod turning;
mod unary;
mod untaken;

use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll},
    thread,
    time::Duration,
};

use ibex::{Driver, Fabric, Node, Peer, Policy};

use turning::{run, until, waker};

/// The conditions of a test: a fabric, a driver, and the engines of each node.
type Cell = (Fabric, Driver, usize);

const CELLS: [Cell; 6] = [
    (Fabric::Shm, Driver::Threads, 1),
    (Fabric::Shm, Driver::Threads, 2),
    (Fabric::Shm, Driver::Caller, 1),
    (Fabric::Tcp, Driver::Threads, 1),
    (Fabric::Tcp, Driver::Threads, 2),
    (Fabric::Tcp, Driver::Caller, 1),
];

/// Runs caller and service in each cell, each side in a thread of its own.
fn in_each_cell(calls: fn(&Node, &Peer), serves: fn(&Node, &Peer)) {
    for cell in CELLS {
        in_cell(cell, calls, serves);
    }
}

fn in_cell(cell: Cell, calls: fn(&Node, &Peer), serves: fn(&Node, &Peer)) {
    eprintln!("{cell:?}");
    let there = builder(cell).listen("127.0.0.1:0").build().unwrap();
    let address = there.local_addr().unwrap();
    let serving = thread::spawn(move || {
        let peer = there.accept().unwrap();
        serves(&there, &peer);
        let _ = there.close(FOR_EVER);
    });
    let here = builder(cell).build().unwrap();
    let peer = here.connect(address).unwrap();
    calls(&here, &peer);
    let _ = here.close(FOR_EVER);
    serving.join().unwrap();
}

fn builder((fabric, driver, engines): Cell) -> ibex::NodeBuilder {
    Node::builder()
        .fabric(fabric, Policy::Require)
        .driver(driver)
        .io_threads(engines)
        .connect_timeout(FOR_EVER)
        .open_timeout(FOR_EVER)
        .session_timeout(FOR_EVER)
}

/// A time-out that is longer than any test, for calls that must not time out.
const FOR_EVER: Duration = Duration::from_secs(600);
/// A time-out that is meant to pass.
const MOMENT: Duration = Duration::from_millis(30);

/// Polls a task once.
fn poll_once<F: Future + Unpin>(task: &mut F) -> Poll<F::Output> {
    pin!(task).poll(&mut Context::from_waker(&waker()))
}

#[ibex::message]
struct Question {
    number: u64,
    text: String,
}

#[ibex::message]
struct Answer {
    number: u64,
    text: String,
}

fn question(number: u64) -> Question {
    let text = "x".repeat((number % 1000 * 37 % 500) as usize);
    Question { number, text }
}
