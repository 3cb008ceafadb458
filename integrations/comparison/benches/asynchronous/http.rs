//! HTTP/1.1 by hyper: GETs with a short answer, and with a long one.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response, header::HOST};
use http_body_util::{BodyExt, Empty, Full};
use hyper::{
    body::Incoming,
    client::conn::http1::{self as client, SendRequest},
    server::conn::http1 as server,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    end::Link,
    laps::{self, Exchange},
    order::{Order, Unit},
    pattern::Pattern,
    session::Failure,
};

pub(crate) async fn measure(link: Link, order: Order) -> Result<f64, Failure> {
    match link {
        Link::Socket(stream) => get(stream, order).await,
        Link::Ibex(session) => get(session.connect_stream().await?, order).await,
    }
}

pub(crate) async fn answer(link: Link, order: Order) -> Result<(), Failure> {
    match link {
        Link::Socket(stream) => serve(stream, order).await,
        Link::Ibex(session) => serve(session.accept_stream().await?, order).await,
    }
}

async fn get(
    io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    order: Order,
) -> Result<f64, Failure> {
    let (requests, connection) = client::handshake(TokioIo::new(io)).await?;
    let connection = tokio::spawn(connection);
    let length = order.work.exchange_bytes();
    let gets = Gets {
        requests,
        pattern: Pattern::new(),
        length,
    };
    let figure = match order.work.unit() {
        Unit::Nanoseconds => laps::p50(gets, order.count).await?,
        _ => laps::rate(gets, order.count, length).await?,
    };
    // When the requests are dropped, the connection ends.
    connection.await??;
    Ok(figure)
}

struct Gets {
    requests: SendRequest<Empty<Bytes>>,
    pattern: Pattern,
    length: usize,
}

impl Exchange for Gets {
    async fn exchange(&mut self, _: u64) -> Result<(), Failure> {
        self.requests.ready().await?;
        let request = Request::get("/").header(HOST, "localhost");
        let response = self.requests.send_request(request.body(Empty::new())?);
        let mut body = response.await?.into_body();
        let mut came = 0;
        while let Some(frame) = body.frame().await {
            if let Ok(piece) = frame?.into_data() {
                self.pattern.verify(came, &piece)?;
                came += piece.len();
            }
        }
        if came != self.length {
            return Err(format!("a body of {} bytes came with {came}", self.length).into());
        }
        Ok(())
    }
}

async fn serve(
    io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    order: Order,
) -> Result<(), Failure> {
    let body = Bytes::from(Pattern::new().bytes(order.work.exchange_bytes()));
    let answer = service_fn(move |_: Request<Incoming>| {
        let body = Full::new(body.clone());
        async { Ok::<_, Infallible>(Response::new(body)) }
    });
    server::Builder::new()
        .serve_connection(TokioIo::new(io), answer)
        .await?;
    Ok(())
}
