//! Unary calls of tonic over a socket or a byte stream, with 64 B as they are in place of protobuf.

use std::{
    convert::Infallible,
    future::{Future, ready},
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use ibex_harness::check;
use ibex_integrations_testing::AsBytes;
use ibex_tonic::Incoming;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Notify,
};
use tonic::{
    Request, Response, Status,
    body::Body,
    client, server,
    transport::{Channel, Endpoint, Server, server::Connected},
};
use tower::{Service, service_fn};

use crate::{
    end::Link,
    laps::{self, Exchange},
    session::Failure,
};

pub(crate) async fn measure(link: Link, count: u64) -> Result<f64, Failure> {
    match link {
        Link::Socket(stream) => measure_over(stream, count).await,
        Link::Ibex(session) => measure_over(session.connect_stream().await?, count).await,
    }
}

/// Answers each request with its bytes, until an empty one.
pub(crate) async fn answer(link: Link) -> Result<(), Failure> {
    match link {
        Link::Socket(stream) => answer_over(stream::iter([Ok::<_, Infallible>(stream)])).await,
        Link::Ibex(session) => answer_over(Incoming::from(session.listener()?)).await,
    }
}

async fn measure_over(
    io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    count: u64,
) -> Result<f64, Failure> {
    let stream = Mutex::new(Some(TokioIo::new(io)));
    let connector = service_fn(move |_| {
        let stream = stream.lock().ok().and_then(|mut stream| stream.take());
        ready(stream.ok_or("the only connection is gone"))
    });
    let channel = Endpoint::from_static("http://localhost")
        .connect_with_connector(connector)
        .await?;
    let mut calls = Calls {
        client: client::Grpc::new(channel),
    };
    let figure = laps::p50(&mut calls, count).await?;
    calls.call(Bytes::new()).await?;
    Ok(figure)
}

async fn answer_over<I, E>(
    incoming: impl Stream<Item = Result<I, E>> + Send + 'static,
) -> Result<(), Failure>
where
    I: AsyncRead + AsyncWrite + Connected + Send + Unpin + 'static,
    E: Into<Failure> + Send + 'static,
{
    let ended = Arc::new(Notify::new());
    let echo = Echo {
        ended: ended.clone(),
    };
    // The end of this stream would end the server while its connection is open.
    let incoming = incoming.chain(stream::pending());
    let end = async move { ended.notified().await };
    Server::builder()
        .serve_with_incoming_shutdown(echo, incoming, end)
        .await?;
    Ok(())
}

struct Calls {
    client: client::Grpc<Channel>,
}

impl Calls {
    async fn call(&mut self, request: Bytes) -> Result<Bytes, Failure> {
        self.client.ready().await?;
        let path = PathAndQuery::from_static("/bench.Echo/Echo");
        let reply = self
            .client
            .unary(Request::new(request), path, AsBytes)
            .await?;
        Ok(reply.into_inner())
    }
}

impl Exchange for &mut Calls {
    async fn exchange(&mut self, sequence: u64) -> Result<(), Failure> {
        let mut request = [0; 64];
        check::fill(sequence, &mut request);
        let reply = self.call(Bytes::copy_from_slice(&request)).await?;
        Ok(check::verify(sequence, &reply)?)
    }
}

/// The service, with its one method.
#[derive(Clone)]
struct Echo {
    ended: Arc<Notify>,
}

impl Service<http::Request<Body>> for Echo {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let ended = self.ended.clone();
        let method = service_fn(move |request: Request<Bytes>| {
            let bytes = request.into_inner();
            if bytes.is_empty() {
                ended.notify_one();
            }
            ready(Ok::<_, Status>(Response::new(bytes)))
        });
        Box::pin(async { Ok(server::Grpc::new(AsBytes).unary(method, request).await) })
    }
}
