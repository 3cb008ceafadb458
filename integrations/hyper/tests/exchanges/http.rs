//! Requests whose bodies come back, over HTTP/1.1, HTTP/2, and HTTP/1.1 within TLS.

use std::{error::Error, future::Future, io, ops::Range, sync::Arc};

use bytes::Bytes;
use http::{Request, Response, header::HOST};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
    server, service,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use ibex::io::{Listener, Stream};
use ibex_integrations_testing::Meeting;
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::{JoinHandle, JoinSet},
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::watch::Progress;

/// Makes exchanges over HTTP/1.1.
pub(crate) async fn one(meeting: &Meeting, count: u64, progress: &Progress) {
    let serving = serve(meeting, count, |stream| async { serve_one(stream).await });
    connections(meeting, count, |stream, numbers| {
        ask_one(stream, numbers, progress.clone())
    })
    .await;
    serving.await.expect("all were served");
}

/// Makes exchanges over HTTP/2, several at a time.
pub(crate) async fn two(meeting: &Meeting, count: u64, progress: &Progress) {
    let serving = serve(meeting, count, |stream| async {
        server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), service::service_fn(echo))
            .await
    });
    connections(meeting, count, |stream, numbers| {
        ask_two(stream, numbers, progress.clone())
    })
    .await;
    serving.await.expect("all were served");
}

/// Makes exchanges over HTTP/1.1 in TLS.
pub(crate) async fn within_tls(meeting: &Meeting, count: u64, progress: &Progress) {
    let (server, client) = certified();
    let (acceptor, connector) = (TlsAcceptor::from(server), TlsConnector::from(client));
    let serving = serve(meeting, count, move |stream| {
        let acceptor = acceptor.clone();
        async move {
            let stream = acceptor.accept(stream).await.expect("a handshake");
            serve_one(stream).await
        }
    });
    connections(meeting, count, |stream, numbers| {
        let (connector, progress) = (connector.clone(), progress.clone());
        async move {
            let name = ServerName::try_from("localhost").expect("a name");
            let stream = connector.connect(name, stream).await.expect("a handshake");
            ask_one(stream, numbers, progress).await;
        }
    })
    .await;
    serving.await.expect("all were served");
}

/// Accepts the streams of `count` exchanges and serves each in a task of its own, to its end.
fn serve<S>(
    meeting: &Meeting,
    count: u64,
    serve: impl Fn(Stream) -> S + Send + 'static,
) -> JoinHandle<()>
where
    S: Future<Output = hyper::Result<()>> + Send + 'static,
{
    let mut listener = Listener::bind(&meeting.nodes()[1], NAME).expect("a name");
    tokio::spawn(async move {
        let mut serving = JoinSet::new();
        for _ in streams(0..count / 2).chain(streams(count / 2..count)) {
            let (stream, _) = listener.accept_async().await.expect("a stream");
            serving.spawn(serve(stream));
        }
        for served in serving.join_all().await {
            match served {
                // The client leaves once it has its answers, and what the server still says (that
                // it takes more bytes, that TLS ends) finds nobody.
                Err(error) if client_left(&error) => {}
                served => served.expect("served to its end"),
            }
        }
    })
}

fn client_left(error: &hyper::Error) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref());
    cause.is_some_and(|cause: &io::Error| cause.kind() == io::ErrorKind::BrokenPipe)
}

/// Returns the exchanges of each stream.
fn streams(exchanges: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = exchanges.end;
    let begins = exchanges.step_by(PER_STREAM);
    begins.map(move |begin| begin..end.min(begin + PER_STREAM as u64))
}

/// Connects again and again, two streams at a time, until all exchanges are made.
async fn connections<A>(meeting: &Meeting, count: u64, ask: impl Fn(Stream, Range<u64>) -> A)
where
    A: Future<Output = ()> + Send + 'static,
{
    let half = |exchanges: Range<u64>| {
        let ask = &ask;
        async move {
            for numbers in streams(exchanges) {
                let stream = Stream::connect_async(&meeting.peer, NAME)
                    .await
                    .expect("accepted");
                let asking = tokio::spawn(ask(stream, numbers));
                asking.await.expect("every answer comes");
            }
        }
    };
    tokio::join!(half(0..count / 2), half(count / 2..count));
}

async fn serve_one(stream: impl AsyncRead + AsyncWrite + Unpin) -> hyper::Result<()> {
    server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service::service_fn(echo))
        .await
}

/// Sends a body back, as it comes or once it is complete.
async fn echo(
    request: Request<Incoming>,
) -> Result<Response<http_body_util::Either<Incoming, Full<Bytes>>>, hyper::Error> {
    let whole = request.uri().path() == "/whole";
    let body = request.into_body();
    Ok(Response::new(match whole {
        true => http_body_util::Either::Right(Full::new(body.collect().await?.to_bytes())),
        false => http_body_util::Either::Left(body),
    }))
}

async fn ask_one(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    numbers: Range<u64>,
    progress: Progress,
) {
    let (mut requests, connection) = http1::handshake(TokioIo::new(stream)).await.expect("ready");
    let connection = tokio::spawn(connection);
    for number in numbers {
        requests.ready().await.expect("ready for another");
        let (request, sent) = request(number);
        let answer = requests.send_request(request).await.expect("an answer");
        let body = answer.into_body().collect().await.expect("a body");
        assert!(body.to_bytes() == sent, "exchange {number}");
        progress.made();
    }
    // When the requests are dropped, the connection ends.
    drop(requests);
    let ended = connection.await.expect("it ends");
    ended.expect("in order");
}

async fn ask_two(stream: Stream, numbers: Range<u64>, progress: Progress) {
    let executor = TokioExecutor::new();
    let handshake = http2::handshake(executor, TokioIo::new(stream)).await;
    let (requests, connection) = handshake.expect("ready");
    let connection = tokio::spawn(connection);
    let numbers = Arc::new(tokio::sync::Mutex::new(numbers));
    let asking = (0..AT_A_TIME).map(|_| {
        let (mut requests, numbers) = (requests.clone(), numbers.clone());
        let progress = progress.clone();
        tokio::spawn(async move {
            loop {
                let Some(number) = numbers.lock().await.next() else {
                    return;
                };
                requests.ready().await.expect("ready for another");
                let (request, sent) = request(number);
                let answer = requests.send_request(request).await.expect("an answer");
                let body = answer.into_body().collect().await.expect("a body");
                assert!(body.to_bytes() == sent, "exchange {number}");
                progress.made();
            }
        })
    });
    for asking in asking.collect::<Vec<_>>() {
        asking.await.expect("every answer comes");
    }
    drop(requests);
    let ended = connection.await.expect("it ends");
    ended.expect("in order");
}

/// Returns the request of exchange `number`: most bodies are short, and now and then one is longer
/// than the channels hold.
fn request(number: u64) -> (Request<Full<Bytes>>, Bytes) {
    let length = match number % 16 {
        15 => 300_000 + number as usize % 1000,
        7 => 70_000,
        3 => 0,
        few => few as usize * 97,
    };
    let body: Vec<u8> = (0..length)
        .map(|index| (index as u64 ^ number) as u8)
        .collect();
    let body = Bytes::from(body);
    let path = match number % 3 {
        0 => "http://localhost/whole",
        _ => "http://localhost/",
    };
    let request = Request::post(path).header(HOST, "localhost");
    let request = request.body(Full::new(body.clone()));
    (request.expect("a request"), body)
}

/// Returns a server's configuration, and that of a client that trusts it.
fn certified() -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]);
    let rcgen::CertifiedKey { cert, signing_key } = certified.expect("a certificate");
    let key = PrivatePkcs8KeyDer::from(signing_key.serialize_der());
    let server = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], PrivateKeyDer::from(key))
        .expect("a certificate with its key");
    let mut roots = RootCertStore::empty();
    roots.add(cert.der().clone()).expect("a root");
    let client = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    (Arc::new(server), Arc::new(client))
}

/// Exchanges over one stream.
const PER_STREAM: usize = 50;
/// Requests of HTTP/2 that are out at a time.
const AT_A_TIME: usize = 4;

/// The name of the listener.
const NAME: &str = "http";
