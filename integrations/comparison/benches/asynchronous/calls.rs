//! Unary calls with 64 B each way: tonic's over TCP, ibex's, and the same messages over two
//! channels without a call around them.

use ibex::prelude::*;
use ibex::{Peer, Receiver, RecvErrorKind, Sender, calls::Caller};
use ibex_harness::check;

use crate::{
    end::{Link, Session},
    laps::{self, Exchange},
    order::{Order, Work},
    session::Failure,
    tonic_calls,
};

/// A request, and its reply.
#[ibex::message]
struct Payload {
    bytes: [u8; 64],
}

pub(crate) async fn measure(link: Link, order: Order) -> Result<f64, Failure> {
    match (order.work, link) {
        (Work::Channels, Link::Ibex(Session { peer, .. })) => {
            let requests = peer.sender(REQUESTS)?;
            let replies = peer.receiver(REPLIES)?;
            laps::p50(Channels { requests, replies }, order.count).await
        }
        (Work::Call, Link::Ibex(Session { peer, .. })) => {
            let caller = peer.caller(ECHO)?;
            laps::p50(Calls { caller }, order.count).await
        }
        (_, link) => tonic_calls::measure(link, order.count).await,
    }
}

pub(crate) async fn answer(link: Link, order: Order) -> Result<(), Failure> {
    match (order.work, link) {
        (Work::Channels, Link::Ibex(Session { peer, .. })) => answer_channels(&peer).await,
        (Work::Call, Link::Ibex(Session { peer, .. })) => answer_calls(&peer).await,
        (_, link) => tonic_calls::answer(link).await,
    }
}

struct Calls {
    caller: Caller<Payload, Payload>,
}

impl Exchange for Calls {
    async fn exchange(&mut self, sequence: u64) -> Result<(), Failure> {
        let mut request = Payload { bytes: [0; 64] };
        check::fill(sequence, &mut request.bytes);
        let reply = self.caller.call_async(&request).await?;
        Ok(check::verify(sequence, &reply.bytes)?)
    }
}

async fn answer_calls(peer: &Peer) -> Result<(), Failure> {
    let mut service = peer.service::<Payload, Payload>(ECHO)?;
    while let Some(request) = service.next_async().await? {
        let bytes = request.bytes;
        request.reply_async(&Payload { bytes }).await?;
    }
    Ok(())
}

struct Channels {
    requests: Sender<Payload>,
    replies: Receiver<Payload>,
}

impl Exchange for Channels {
    async fn exchange(&mut self, sequence: u64) -> Result<(), Failure> {
        let mut request = Payload { bytes: [0; 64] };
        check::fill(sequence, &mut request.bytes);
        self.requests.send_async(&request).await?;
        let reply = self.replies.recv_async().await?;
        Ok(check::verify(sequence, &reply.bytes)?)
    }
}

async fn answer_channels(peer: &Peer) -> Result<(), Failure> {
    let mut requests = peer.receiver::<Payload>(REQUESTS)?;
    let mut replies = peer.sender::<Payload>(REPLIES)?;
    loop {
        let reply = match requests.recv_async().await {
            Ok(request) => Payload {
                bytes: request.bytes,
            },
            Err(error) if error.kind() == RecvErrorKind::Ended => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        replies.send_async(&reply).await?;
    }
}

const REQUESTS: &str = "requests";
const ECHO: &str = "echo";
const REPLIES: &str = "replies";
