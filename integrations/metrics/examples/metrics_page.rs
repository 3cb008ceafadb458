//! A service that answers calls over ibex, and Prometheus over HTTP.
//!
//! `cargo run --release -p ibex-metrics --example metrics_page` serves the page at <http://127.0.0.1:9464/metrics>,
//! or at the address that is given, and calls its own service all the time, so that there is
//! something to see. A Prometheus with these lines scrapes it:
//!
//! ```yaml
//! scrape_configs:
//!   - job_name: ibex
//!     static_configs:
//!       - targets: [127.0.0.1:9464]
//! ```

use std::{
    env,
    error::Error,
    io::{self, BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::Duration,
};

use ibex::prelude::*;
use ibex::{
    Node, Peer, Pod,
    calls::{CallErrorKind, Service},
};
use ibex_metrics::Metrics;
use prometheus_client::{
    encoding::prometheus_text::{self, CONTENT_TYPE},
    registry::Registry,
};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[cfg_attr(test, allow(dead_code, reason = "the test has the parts below"))]
fn main() -> Outcome<()> {
    let address = env::args().nth(1);
    let address = address.as_deref().unwrap_or("127.0.0.1:9464");
    let page = TcpListener::bind(address)?;
    println!("http://{}/metrics", page.local_addr()?);

    let store = Node::builder().name("store").listen("127.0.0.1:0");
    let store = store.histograms(true).build()?;
    let client = Node::builder().name("client").histograms(true);
    let client = client.build()?;
    let metrics = Metrics::new().watch(&store).watch(&client);
    thread::spawn(move || serve_page(&page, metrics));

    let prices = store.channel("prices").codec::<Pod>().service()?;
    thread::spawn(move || answer(prices));
    let store = client.connect(store.local_addr().expect("it listens"))?;
    call(&store, || thread::sleep(Duration::from_millis(1)))
}

/// Answers the calls of all peers, until the node is closed.
pub(crate) fn answer(mut prices: Service<u64, u64, Pod>) -> Outcome<()> {
    while let Some(request) = prices.next()? {
        match *request {
            symbol if symbol % 16 == 15 => request.fail(404, "there is no such symbol"),
            symbol => drop(request.reply(&(symbol * 3))?),
        }
    }
    Ok(())
}

/// Calls a store again and again, sometimes for a symbol that it does not have.
pub(crate) fn call(store: &Peer, mut rest: impl FnMut()) -> Outcome<()> {
    let prices = store.channel("prices").codec::<Pod>();
    let prices = prices.caller::<u64, u64>()?;
    for symbol in 0.. {
        match prices.call(&symbol) {
            Err(error) if error.kind() == CallErrorKind::Failed => {}
            answer => drop(answer?),
        }
        rest();
    }
    Ok(())
}

/// Answers each `GET /metrics` with the metrics as they are then.
pub(crate) fn serve_page(page: &TcpListener, metrics: Metrics) -> io::Result<()> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(metrics));
    for visitor in page.incoming() {
        // A visitor that hangs up or says nonsense is no reason to end.
        if let Err(error) = visitor.and_then(|visitor| answer_visitor(visitor, &registry)) {
            eprintln!("/metrics: {error}");
        }
    }
    Ok(())
}

fn answer_visitor(visitor: TcpStream, registry: &Registry) -> io::Result<()> {
    visitor.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut lines = BufReader::new((&visitor).take(MOST_REQUEST_BYTES)).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    // The headers, up to the empty line.
    while lines
        .next()
        .transpose()?
        .is_some_and(|line| !line.is_empty())
    {}
    let (status, kind, body) = match request.starts_with("GET /metrics ") {
        true => ("200 OK", CONTENT_TYPE, encoded(registry)),
        false => ("404 Not Found", "text/plain", "see /metrics\n".to_owned()),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: \
         close\r\n\r\n"
    );
    (&visitor).write_all((head + &body).as_bytes())
}

fn encoded(registry: &Registry) -> String {
    let mut text = String::new();
    prometheus_text::encode(&mut text, registry).expect("a string takes everything");
    text
}

/// The longest request that is read, with its headers.
const MOST_REQUEST_BYTES: u64 = 16 << 10;
