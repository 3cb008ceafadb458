//! An axum server and a hyper client in one program, over the fabric that the two nodes choose.
//!
//! `cargo run --release -p ibex-hyper --example hello`

use std::error::Error;

use axum::{Router, extract::Path, routing::get};
use http_body_util::{BodyExt, Empty};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use ibex::{Driver, Node};
use ibex_hyper::{Connector, Incoming};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = Node::builder()
        .driver(Driver::Tasks)
        .listen("127.0.0.1:0")
        .build()?;
    let address = server.local_addr().ok_or("it listens")?;
    let hello = |Path(name): Path<String>| async move { format!("hello, {name}\n") };
    let app = Router::new().route("/{name}", get(hello));
    let incoming = Incoming::bind(&server)?;
    let serving = tokio::spawn(async { axum::serve(incoming, app).await });

    let node = Node::builder().driver(Driver::Tasks).build()?;
    let client = Client::builder(TokioExecutor::new());
    let client = client.build::<_, Empty<axum::body::Bytes>>(Connector::new(node.clone()));
    let answer = client
        .get(format!("http://{address}/world").parse()?)
        .await?;
    let body = answer.into_body().collect().await?.to_bytes();
    print!("{}", String::from_utf8_lossy(&body));
    for session in node.stats().sessions {
        println!("over {}", session.fabric);
    }
    serving.abort();
    Ok(())
}
