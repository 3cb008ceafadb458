//! The messages through tokio-rustls, between two tasks of a runtime with two threads.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::{Configs, Outcome, Shape, check, payload};

pub(crate) fn measure(shape: Shape, configs: &Configs) -> Outcome<Duration> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let (client, server, name) = (
        configs.client.clone(),
        configs.server.clone(),
        configs.name(),
    );
    runtime.block_on(async move {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address: SocketAddr = listener.local_addr()?;
        let answering = tokio::spawn(async move {
            let (socket, _) = listener.accept().await?;
            socket.set_nodelay(true)?;
            answer(TlsAcceptor::from(server).accept(socket).await?, shape).await
        });
        let asking = tokio::spawn(async move {
            let socket = tokio::net::TcpStream::connect(address).await?;
            socket.set_nodelay(true)?;
            ask(
                TlsConnector::from(client).connect(name, socket).await?,
                shape,
            )
            .await
        });
        let took = asking.await??;
        answering.await??;
        Ok(took)
    })
}

async fn answer<S>(mut stream: S, shape: Shape) -> Outcome
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut message = vec![0; shape.size];
    for number in 0..shape.messages {
        stream.read_exact(&mut message).await?;
        check(&message, number, shape)?;
        if !shape.is_stream {
            stream.write_all(&message).await?;
            stream.flush().await?;
        }
    }
    stream.write_all(&[1]).await?;
    stream.shutdown().await?;
    Ok(())
}

async fn ask<S>(mut stream: S, shape: Shape) -> Outcome<Duration>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (mut bytes, mut answer) = (payload(0, shape), vec![0; shape.size]);
    let begun = Instant::now();
    for number in 0..shape.messages {
        bytes[0] = number as u8;
        stream.write_all(&bytes).await?;
        stream.flush().await?;
        if !shape.is_stream {
            stream.read_exact(&mut answer).await?;
            check(&answer, number, shape)?;
        }
    }
    stream.read_exact(&mut [0]).await?;
    Ok(begun.elapsed())
}
