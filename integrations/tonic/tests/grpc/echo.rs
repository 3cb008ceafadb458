//! A service whose messages are bytes, as a code generator would write it: each kind of method.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    future::{Future, pending, ready},
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::{
    Stream, StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use http::uri::PathAndQuery;
use ibex_integrations_testing::AsBytes;
use ibex_tonic::CalledBy;
use tokio::sync::Notify;
use tonic::{
    Request, Response, Status, Streaming,
    body::Body,
    client,
    server::{self, NamedService},
    transport::Channel,
};
use tower::{Service, service_fn};

/// The server's observations.
#[derive(Default)]
pub(crate) struct Seen {
    callers: Mutex<BTreeSet<String>>,
    /// Notified when a call of `never` has begun.
    pub(crate) begun: Notify,
    /// Notified when a call of `never` was dropped.
    pub(crate) dropped: Notify,
}

impl Seen {
    /// Returns the peers that called.
    pub(crate) fn callers(&self) -> BTreeSet<String> {
        self.callers.lock().expect("nobody panicked").clone()
    }
}

/// The server.
#[derive(Clone)]
pub(crate) struct Echo {
    seen: Arc<Seen>,
}

impl Echo {
    pub(crate) fn new(seen: Arc<Seen>) -> Self {
        Self { seen }
    }
}

impl NamedService for Echo {
    const NAME: &'static str = "test.Echo";
}

type Replying = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

impl Service<http::Request<Body>> for Echo {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Replying;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Replying {
        let seen = self.seen.clone();
        Box::pin(async move {
            let mut grpc = server::Grpc::new(AsBytes)
                .max_decoding_message_size(MOST_BYTES)
                .max_encoding_message_size(MOST_BYTES);
            Ok(match request.uri().path() {
                "/test.Echo/Unary" => grpc.unary(service_fn(|it| echo(&seen, it)), request).await,
                "/test.Echo/ClientStreaming" => {
                    grpc.client_streaming(service_fn(count), request).await
                }
                "/test.Echo/ServerStreaming" => {
                    grpc.server_streaming(service_fn(numbers), request).await
                }
                "/test.Echo/Bidirectional" => grpc.streaming(service_fn(back), request).await,
                _ => grpc.unary(service_fn(|_| never(&seen)), request).await,
            })
        })
    }
}

fn echo(
    seen: &Seen,
    request: Request<Bytes>,
) -> impl Future<Output = Result<Response<Bytes>, Status>> + use<> {
    let caller = request.extensions().get::<CalledBy>();
    let caller = caller.expect("the connection says it").0;
    let mut callers = seen.callers.lock().expect("nobody panicked");
    callers.insert(caller.to_string());
    ready(Ok(Response::new(request.into_inner())))
}

async fn count(request: Request<Streaming<Bytes>>) -> Result<Response<Bytes>, Status> {
    let pieces = request.into_inner();
    let count = |(pieces, bytes), piece: Bytes| ready(Ok((pieces + 1, bytes + piece.len())));
    let (pieces, bytes) = pieces.try_fold((0, 0), count).await?;
    let reply = format!("{pieces} pieces, {bytes} bytes");
    Ok(Response::new(reply.into()))
}

type Replies = BoxStream<'static, Result<Bytes, Status>>;

async fn numbers(request: Request<Bytes>) -> Result<Response<Replies>, Status> {
    let text = String::from_utf8_lossy(request.get_ref()).into_owned();
    let most: u64 = text
        .parse()
        .map_err(|_| Status::invalid_argument("no number"))?;
    let numbers = (0..most).map(|number| Ok(Bytes::from(number.to_string())));
    Ok(Response::new(stream::iter(numbers).boxed()))
}

async fn back(request: Request<Streaming<Bytes>>) -> Result<Response<Replies>, Status> {
    Ok(Response::new(request.into_inner().boxed()))
}

/// Returns a future that never replies.
fn never(seen: &Arc<Seen>) -> impl Future<Output = Result<Response<Bytes>, Status>> + use<> {
    struct Told(Arc<Seen>);
    impl Drop for Told {
        fn drop(&mut self) {
            self.0.dropped.notify_one();
        }
    }
    let told = Told(seen.clone());
    async move {
        told.0.begun.notify_one();
        pending().await
    }
}

/// The client.
#[derive(Clone)]
pub(crate) struct Client(client::Grpc<Channel>);

impl Client {
    pub(crate) fn new(channel: Channel) -> Self {
        let grpc = client::Grpc::new(channel)
            .max_decoding_message_size(MOST_BYTES)
            .max_encoding_message_size(MOST_BYTES);
        Self(grpc)
    }

    pub(crate) async fn unary(&mut self, request: Request<Bytes>) -> Result<Bytes, Status> {
        self.one(request, "/test.Echo/Unary").await
    }

    pub(crate) async fn never(&mut self, request: Request<Bytes>) -> Result<Bytes, Status> {
        self.one(request, "/test.Echo/Never").await
    }

    async fn one(&mut self, request: Request<Bytes>, path: &'static str) -> Result<Bytes, Status> {
        self.ready().await?;
        let path = PathAndQuery::from_static(path);
        let reply = self.0.unary(request, path, AsBytes).await?;
        Ok(reply.into_inner())
    }

    pub(crate) async fn client_streaming(
        &mut self,
        pieces: impl Stream<Item = Bytes> + Send + 'static,
    ) -> Result<Bytes, Status> {
        self.ready().await?;
        let path = PathAndQuery::from_static("/test.Echo/ClientStreaming");
        let reply = self.0.client_streaming(Request::new(pieces), path, AsBytes);
        Ok(reply.await?.into_inner())
    }

    pub(crate) async fn server_streaming(
        &mut self,
        request: Bytes,
    ) -> Result<Streaming<Bytes>, Status> {
        self.ready().await?;
        let path = PathAndQuery::from_static("/test.Echo/ServerStreaming");
        let replies = self
            .0
            .server_streaming(Request::new(request), path, AsBytes);
        Ok(replies.await?.into_inner())
    }

    pub(crate) async fn bidirectional(
        &mut self,
        pieces: impl Stream<Item = Bytes> + Send + 'static,
    ) -> Result<Streaming<Bytes>, Status> {
        self.ready().await?;
        let path = PathAndQuery::from_static("/test.Echo/Bidirectional");
        let replies = self.0.streaming(Request::new(pieces), path, AsBytes);
        Ok(replies.await?.into_inner())
    }

    async fn ready(&mut self) -> Result<(), Status> {
        let ready = self.0.ready().await;
        ready.map_err(|error| Status::unavailable(error.to_string()))
    }
}

/// The most bytes of a message, longer than tonic's usual 4 MiB.
const MOST_BYTES: usize = 65 << 20;
