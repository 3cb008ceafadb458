//! hyper-util's client by a `Connector`, against hyper's and axum's servers by an `Incoming`, over
//! each fabric. A trial is called `what/fabric/driver`; `verbs` runs if there is a device.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{Router, body::Bytes, routing::post};
use futures_util::future::join_all;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body, service::service_fn};
use hyper_util::{
    client::legacy::{Client, Error},
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use ibex::{Driver, Node};
use ibex_hyper::{Connector, Incoming};
use ibex_integrations_testing::{DriverName, Meeting, trials};
use libtest_mimic::{Arguments, Trial};
use tokio::task::JoinHandle;

type Work = for<'a> fn(&'a Meeting) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

const WORKS: [(&str, Work); 5] = [
    ("http1", |meeting| Box::pin(many_requests(meeting, false))),
    ("http2", |meeting| Box::pin(many_requests(meeting, true))),
    ("long_bodies", |meeting| Box::pin(long_bodies(meeting))),
    ("axum", |meeting| Box::pin(axum(meeting))),
    ("nobody_listens", |meeting| {
        Box::pin(nobody_listens(meeting))
    }),
];

fn main() -> std::process::ExitCode {
    let mut trials = trials(&WORKS, &[DriverName::Tasks], |cell, work: Work| {
        cell.driver.runtime().block_on(async {
            let meeting = Meeting::over(cell).await;
            work(&meeting).await;
            meeting.part().await;
        });
    });
    trials.push(Trial::test("a_server_that_comes_again/tcp/tasks", || {
        let runtime = DriverName::Tasks.runtime();
        runtime.block_on(a_server_that_comes_again());
        Ok(())
    }));
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Sends requests at once, whose bodies come back; they share one session.
async fn many_requests(meeting: &Meeting, is_http2: bool) {
    let connections = Arc::new(AtomicUsize::new(0));
    let serving = serve(&meeting.nodes()[1], connections.clone());
    let client = Client::builder(TokioExecutor::new())
        .http2_only(is_http2)
        .build(Connector::new(meeting.nodes()[0].clone()));
    let requests = (0..REQUESTS).map(|number| {
        let body = Bytes::from(format!("request {number}"));
        let answer = ask(&client, meeting, body.clone());
        async move { assert_eq!(answer.await.expect("an answer"), body) }
    });
    join_all(requests).await;
    let connections = connections.load(Ordering::Relaxed);
    match is_http2 {
        true => assert!(connections < REQUESTS, "{connections} connections"),
        false => assert!(connections <= REQUESTS, "{connections} connections"),
    }
    // One session is the meeting's, the other the connector's.
    assert_eq!(meeting.nodes()[1].stats().sessions.len(), 2);
    serving.abort();
}

/// A body of 64 MiB to the server and back, by HTTP/2.
async fn long_bodies(meeting: &Meeting) {
    let serving = serve(&meeting.nodes()[1], Arc::default());
    let client = Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build(Connector::new(meeting.nodes()[0].clone()));
    let body: Vec<u8> = (0..64_u32 << 20)
        .map(|number| (number % 251) as u8)
        .collect();
    let body = Bytes::from(body);
    let answer = ask(&client, meeting, body.clone()).await;
    assert!(answer.expect("an answer") == body);
    serving.abort();
}

/// axum's server.
async fn axum(meeting: &Meeting) {
    let router = Router::new().route("/", post(|body: Bytes| async { body }));
    let incoming = Incoming::bind(&meeting.nodes()[1]).expect("a name");
    let serving = tokio::spawn(async { axum::serve(incoming, router).await });
    let client = Client::builder(TokioExecutor::new());
    let client = client.build(Connector::new(meeting.nodes()[0].clone()));
    let answer = ask(&client, meeting, Bytes::from_static(b"hello")).await;
    assert_eq!(answer.expect("an answer"), "hello");
    serving.abort();
}

/// A node without a listener of the name.
async fn nobody_listens(meeting: &Meeting) {
    let serving = serve(&meeting.nodes()[1], Arc::default());
    let connector = Connector::new(meeting.nodes()[0].clone());
    let client = Client::builder(TokioExecutor::new()).build(connector.clone());
    // A session exists by then, so that the time-out is for the listener alone.
    let answer = ask(&client, meeting, Bytes::from_static(b"hello")).await;
    assert_eq!(answer.expect("an answer"), "hello");
    serving.abort();
    let connector = connector.named("nobody");
    let connector = connector.connect_timeout(Duration::from_millis(20));
    let client = Client::builder(TokioExecutor::new()).build(connector);
    let error = ask(&client, meeting, Bytes::new()).await;
    let error = error.expect_err("nobody accepts");
    let mut within: &(dyn std::error::Error + 'static) = &error;
    while let Some(source) = within.source() {
        within = source;
    }
    let text = within.to_string();
    assert!(text.contains("no listener \"nobody\""), "{text}");
}

/// A client whose server's node is closed, and another in its place.
async fn a_server_that_comes_again() {
    let listen = |address: &str| {
        let builder = Node::builder().driver(Driver::Tasks).listen(address);
        builder.build().expect("a node")
    };
    let first = listen("127.0.0.1:0");
    let address = first.local_addr().expect("it listens").to_string();
    let serving = serve(&first, Arc::default());
    let node = Node::builder().driver(Driver::Tasks).build();
    let client = Client::builder(TokioExecutor::new());
    let client = client.build(Connector::new(node.expect("a node")));
    let ask = |body: &'static str| {
        let request = Request::post(format!("http://{address}/"));
        client.request(
            request
                .body(Full::new(Bytes::from_static(body.as_bytes())))
                .expect("one"),
        )
    };
    ask("first").await.expect("an answer");
    serving.abort();
    let _ = first.close_async(Duration::ZERO).await;
    drop(first);

    let second = listen(&address);
    let _serving = serve(&second, Arc::default());
    // A pooled connection may be found closed only when a request is under way on it.
    let mut answer = ask("second").await;
    while answer.is_err() {
        answer = ask("second").await;
    }
    let body = answer.expect("an answer").into_body().collect().await;
    assert_eq!(body.expect("a body").to_bytes(), "second");
}

/// Serves connections to this node, whose requests' bodies come back, and counts them.
fn serve(node: &Node, connections: Arc<AtomicUsize>) -> JoinHandle<()> {
    let mut incoming = Incoming::bind(node).expect("a name");
    tokio::spawn(async move {
        while let Ok((stream, _)) = incoming.accept().await {
            connections.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(async move {
                let connection = auto::Builder::new(TokioExecutor::new());
                let echo = service_fn(echo);
                let served = connection
                    .serve_connection(TokioIo::new(stream), echo)
                    .await;
                drop(served);
            });
        }
    })
}

async fn echo(request: Request<body::Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let body = request.into_body().collect().await?.to_bytes();
    Ok(Response::new(Full::new(body)))
}

async fn ask(
    client: &Client<Connector, Full<Bytes>>,
    meeting: &Meeting,
    body: Bytes,
) -> Result<Bytes, Error> {
    let request = Request::post(format!("http://{}/", meeting.address()));
    let request = request.body(Full::new(body)).expect("a request");
    let body = client.request(request).await?.into_body();
    Ok(body.collect().await.expect("a body").to_bytes())
}

const REQUESTS: usize = 64;
