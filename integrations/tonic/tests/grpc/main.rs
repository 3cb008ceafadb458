//! gRPC of each kind over each fabric. A trial is called `what/fabric/driver`; `verbs` runs if
//! there is a device.

mod echo;

use std::{future::Future, pin::Pin, process::ExitCode, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use ibex_integrations_testing::{Cell, DriverName, Meeting, trials};
use ibex_tonic::{Connector, Incoming};
use libtest_mimic::Arguments;
use tonic::{
    Code, Request,
    transport::{Channel, Endpoint, Server},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use echo::{Client, Echo, Seen};

type Work = fn(Called) -> Pin<Box<dyn Future<Output = ()>>>;

const WORKS: [(&str, Work); 8] = [
    ("unary", |called| Box::pin(unary(called))),
    ("client_streaming", |called| {
        Box::pin(client_streaming(called))
    }),
    ("server_streaming", |called| {
        Box::pin(server_streaming(called))
    }),
    ("bidirectional", |called| Box::pin(bidirectional(called))),
    ("cancelled", |called| Box::pin(cancelled(called))),
    ("deadline", |called| Box::pin(deadline(called))),
    ("long_messages", |called| Box::pin(long_messages(called))),
    ("generated_code", |called| Box::pin(generated_code(called))),
];

/// A server's channel, and the record of its calls.
struct Called {
    channel: Channel,
    seen: Arc<Seen>,
}

fn main() -> ExitCode {
    let trials = trials(&WORKS, &[DriverName::Tasks], |cell, work| {
        cell.driver.runtime().block_on(play(cell, work));
    });
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

async fn play(cell: Cell, work: Work) {
    let meeting = Meeting::over(cell).await;
    let [dialer, listener] = meeting.nodes();
    let seen = Arc::<Seen>::default();
    let (_, health) = tonic_health::server::health_reporter();
    let server = Server::builder()
        .add_service(Echo::new(seen.clone()))
        .add_service(health)
        .serve_with_incoming(Incoming::bind(listener).expect("a name"));
    let serving = tokio::spawn(server);
    let endpoint = Endpoint::from_shared(format!("http://{}", meeting.address()));
    let channel = endpoint
        .expect("an address")
        .connect_with_connector(Connector::new(dialer.clone()))
        .await
        .expect("a connection");
    work(Called { channel, seen }).await;
    meeting.part().await;
    // Without its node the server has nothing more to accept, and ends.
    serving.await.expect("it ends").expect("in order");
}

async fn unary(called: Called) {
    let mut client = Client::new(called.channel);
    for number in 0..100 {
        let request = Bytes::from(format!("request {number}"));
        let reply = client.unary(Request::new(request.clone())).await;
        assert_eq!(reply.expect("a reply"), request);
    }
    let callers = called.seen.callers();
    assert_eq!(callers.len(), 1, "all came from one session: {callers:?}");
}

async fn client_streaming(called: Called) {
    let pieces = stream::iter((0..1000).map(|number| Bytes::from(vec![number as u8; 100])));
    let reply = Client::new(called.channel).client_streaming(pieces).await;
    assert_eq!(reply.expect("a reply"), "1000 pieces, 100000 bytes");
}

async fn server_streaming(called: Called) {
    let request = Bytes::from_static(b"1000");
    let replies = Client::new(called.channel).server_streaming(request).await;
    let replies: Vec<_> = replies.expect("replies").collect().await;
    let numbers = replies.into_iter().map(|reply| reply.expect("a piece"));
    assert!(numbers.eq((0..1000).map(|number| Bytes::from(number.to_string()))));
}

async fn bidirectional(called: Called) {
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    let requests = stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|piece| (piece, receiver))
    });
    let replies = Client::new(called.channel).bidirectional(requests).await;
    let mut replies = replies.expect("replies");
    // The client waits for each reply before the next request.
    for number in 0..100 {
        let piece = Bytes::from(number.to_string());
        sender.send(piece.clone()).await.expect("it takes");
        let reply = replies.next().await.expect("a reply").expect("in order");
        assert_eq!(reply, piece);
    }
    drop(sender);
    assert!(replies.next().await.is_none());
}

/// A caller that gives up: the server's work is dropped.
async fn cancelled(called: Called) {
    let mut client = Client::new(called.channel);
    let mut other = client.clone();
    let call = tokio::spawn(async move { other.never(Request::new(Bytes::new())).await });
    called.seen.begun.notified().await;
    call.abort();
    called.seen.dropped.notified().await;
    let reply = client.unary(Request::new(Bytes::from_static(b"on"))).await;
    assert_eq!(reply.expect("a reply"), "on");
}

/// A deadline that passes at the server.
async fn deadline(called: Called) {
    let mut request = Request::new(Bytes::new());
    request.set_timeout(Duration::from_millis(50));
    let status = Client::new(called.channel).never(request).await;
    let code = status.expect_err("its time is up").code();
    let codes = [Code::Cancelled, Code::DeadlineExceeded];
    assert!(codes.contains(&code), "{code}");
    called.seen.dropped.notified().await;
}

async fn long_messages(called: Called) {
    let bytes: Vec<u8> = (0..64_u32 << 20)
        .map(|number| (number % 251) as u8)
        .collect();
    let bytes = Bytes::from(bytes);
    let reply = Client::new(called.channel)
        .unary(Request::new(bytes.clone()))
        .await;
    assert!(reply.expect("a reply") == bytes);
}

/// The health service, whose client and server were generated by tonic.
async fn generated_code(called: Called) {
    let mut client = HealthClient::new(called.channel);
    let answer = client.check(HealthCheckRequest::default()).await;
    assert_eq!(answer.expect("an answer").into_inner().status, 1);
    let watched = client.watch(HealthCheckRequest::default()).await;
    let first = watched.expect("a stream").into_inner().next().await;
    assert_eq!(first.expect("a piece").expect("in order").status, 1);
}
