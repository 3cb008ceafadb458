//! Receiving futures that wait for a message that does not come: their polls and their
//! processor time.

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use ibex::{Peer, Raw, RecvErrorKind};
use rustix::time::{ClockId, clock_gettime};
use tokio::{task::JoinSet, time::sleep};

use crate::{
    end::{Link, Session},
    order::{Order, Work},
    session::Failure,
};

pub(crate) async fn measure(link: Link, order: Order) -> Result<f64, Failure> {
    let Link::Ibex(Session { peer, .. }) = link else {
        return Err("sockets have no idle row".into());
    };
    let watching = peer.channel(WATCHING).codec::<Raw>().sender::<[u8]>()?;
    let polls = Arc::new(AtomicU64::new(0));
    let mut waiting = JoinSet::new();
    for number in 0..futures(order.work) {
        let mut receiver = peer
            .channel(&number.to_string())
            .codec::<Raw>()
            .receiver::<[u8]>()?;
        let polls = polls.clone();
        waiting.spawn(async move {
            let inner = pin!(receiver.recv_async());
            Counted { inner, polls }.await.map(drop)
        });
    }
    let window = Duration::from_millis(order.count);
    // Opening the channels causes work for a while.
    sleep(window.min(SETTLING)).await;
    let (start, polls_before, used_before) = (Instant::now(), count(&polls), processor_time());
    sleep(window).await;
    let (elapsed, used) = (start.elapsed(), processor_time() - used_before);
    let polls = count(&polls) - polls_before;
    if let Some(ended) = waiting.try_join_next() {
        ended??;
        return Err("a message came that nobody sent".into());
    }
    waiting.shutdown().await;
    drop(watching);
    Ok(match order.work {
        Work::IdlePolls => polls as f64 / elapsed.as_secs_f64(),
        _ => 100.0 * used.as_secs_f64() / elapsed.as_secs_f64(),
    })
}

/// Holds the sending ends until the measurement is over.
pub(crate) async fn answer(link: Link, order: Order) -> Result<(), Failure> {
    let Link::Ibex(Session { peer, .. }) = link else {
        return Err("sockets have no idle row".into());
    };
    let _senders = senders(&peer, futures(order.work))?;
    let mut watching = peer.channel(WATCHING).codec::<Raw>().receiver::<[u8]>()?;
    match watching.recv_async().await {
        Err(error) if error.kind() == RecvErrorKind::Ended => Ok(()),
        Err(error) => Err(error.into()),
        Ok(_) => Err("a message came that nobody sent".into()),
    }
}

fn senders(peer: &Peer, count: u32) -> Result<Vec<ibex::Sender<[u8], Raw>>, Failure> {
    let channels = (0..count).map(|number| peer.channel(&number.to_string()).codec::<Raw>());
    let senders = channels.map(ibex::ChannelBuilder::sender);
    Ok(senders.collect::<Result<_, _>>()?)
}

fn futures(work: Work) -> u32 {
    match work {
        Work::IdlePolls => 1,
        _ => 1000,
    }
}

/// A future that counts its polls.
struct Counted<'a, F> {
    inner: Pin<&'a mut F>,
    polls: Arc<AtomicU64>,
}

impl<F: Future> Future for Counted<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        // The counter orders nothing.
        self.polls.fetch_add(1, Ordering::Relaxed);
        self.inner.as_mut().poll(context)
    }
}

fn count(polls: &AtomicU64) -> u64 {
    polls.load(Ordering::Relaxed)
}

/// Returns the processor time of this process so far, over all its threads.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

const WATCHING: &str = "watching";
const SETTLING: Duration = Duration::from_secs(2);
