//! The processes of a measurement, and the work that each of them does.

use std::{net::SocketAddr, time::Duration};

use ibex_harness::{
    Error,
    check::Tally,
    cores::Cores,
    pair::{Pair, Task},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::{runtime::Runtime, time::timeout};

use crate::{
    calls,
    end::{End, Link},
    http, idle,
    order::{Order, Work},
    ping_pong, raft, streams,
};

/// An error of the subject that is measured.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The task of an answering process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Start {
    order: Order,
    /// The process's number among those that answer, from 1.
    number: u64,
}

/// Starts the other processes, does the work of `order` with them, and returns the figure in the
/// unit of the work.
pub(crate) fn measure(cores: Cores, order: Order) -> Result<f64, Error> {
    let mut pairs = Vec::new();
    for number in 1..=order.work.peers() {
        let start = Start { order, number };
        let task = serde_json::to_value(start).map_err(Error::subject)?;
        pairs.push(Pair::start(cores, Task::Subject(task))?);
    }
    let addresses = pairs
        .iter_mut()
        .map(|pair| pair.receive("the address where it listens"));
    let addresses: Vec<SocketAddr> = addresses.collect::<Result<_, _>>()?;
    let runtime = order.runtime.build().map_err(Error::subject)?;
    let figure = run(&runtime, async move {
        let (end, links) = End::connect(order.over, &addresses).await?;
        let figure = measure_over(links, order).await?;
        end.close().await?;
        Ok(figure)
    })?;
    for pair in pairs {
        pair.finish()?;
    }
    Ok(figure)
}

/// Answers the one measurement that the other process was started for.
pub(crate) fn answer(_: Cores, task: Value) -> Result<Tally, Error> {
    let Start { order, number } = serde_json::from_value(task).map_err(Error::subject)?;
    let runtime = order.runtime.build().map_err(Error::subject)?;
    run(&runtime, async move {
        let (end, link) = End::accept(order.over).await?;
        answer_over(link, order, number).await?;
        end.close().await
    })?;
    Ok(Tally::default())
}

async fn measure_over(mut links: Vec<Link>, order: Order) -> Result<f64, Failure> {
    let mut link = || links.pop().ok_or("there is no other process");
    match order.work {
        Work::PingPong => ping_pong::measure(link()?, order).await,
        Work::Get | Work::Bodies => http::measure(link()?, order).await,
        Work::Call | Work::Tonic | Work::Channels => calls::measure(link()?, order).await,
        Work::Stream | Work::StreamInPlace | Work::RawChannel => {
            streams::measure(link()?, order).await
        }
        Work::IdlePolls | Work::IdleCost => idle::measure(link()?, order).await,
        Work::RaftOne | Work::RaftMany => raft::measure(links, order).await,
    }
}

async fn answer_over(link: Link, order: Order, number: u64) -> Result<(), Failure> {
    match order.work {
        Work::PingPong => ping_pong::answer(link).await,
        Work::Get | Work::Bodies => http::answer(link, order).await,
        Work::Call | Work::Tonic | Work::Channels => calls::answer(link, order).await,
        Work::Stream | Work::StreamInPlace | Work::RawChannel => streams::answer(link, order).await,
        Work::IdlePolls | Work::IdleCost => idle::answer(link, order).await,
        Work::RaftOne | Work::RaftMany => raft::answer(link, number).await,
    }
}

/// Runs `work` as a task, like a program that keeps its connections in tasks.
fn run<T: Send + 'static>(
    runtime: &Runtime,
    work: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Result<T, Error> {
    let task = async { tokio::spawn(timeout(PATIENCE, work)).await };
    runtime
        .block_on(task)
        .map_err(Error::subject)?
        .map_err(|_| Error::subject(format!("nothing came of it within {PATIENCE:?}")))?
        .map_err(Error::subject)
}

/// A measurement that takes longer than this hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
