//! A service and its caller, whose spans are one trace: `traced serve`, and `traced call ADDRESS`.
//!
//! Each process says on its standard output which spans it finished, as a collector would get them.
//! A program of your own has the exporter of `opentelemetry-otlp` in the place of `Lines`.

use std::{env, error::Error, process::ExitCode, time::Duration};

use ibex::prelude::*;
use ibex::{
    Node,
    calls::{Metadata, MetadataValue},
};
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::{
    error::OTelSdkResult,
    trace::{SdkTracerProvider, SpanData, SpanExporter},
};
use tracing_subscriber::layer::SubscriberExt;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> ExitCode {
    let done = match env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [role] if role == "serve" => traced(serve),
        [role, address] if role == "call" => traced(|| call(address)),
        _ => Err("traced serve, or traced call ADDRESS".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a program under a subscriber that makes spans of OpenTelemetry out of those of `tracing`.
fn traced(program: impl FnOnce() -> Result<()>) -> Result<()> {
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(Lines)
        .build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("traced"));
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer))?;
    let done = program();
    provider.shutdown()?;
    done
}

/// Answers two calls, and takes in a message.
fn serve() -> Result<()> {
    let node = Node::listen("127.0.0.1:0")?;
    let address = node.local_addr().ok_or("it listens")?;
    println!("listening on {address}");
    let peer = node.accept()?;
    let notes = peer.channel("notes").trace_context(true);
    let mut notes = notes.receiver::<String>()?;
    let mut service = peer.service::<u64, u64>("double")?;
    while let Some(request) = service.next()? {
        let span = tracing::info_span!("double");
        ibex_tracing::set_parent(&span, request.trace_context());
        let _entered = span.enter();
        let number = match request.metadata().get("times") {
            Some(MetadataValue::Integer(times)) => request.to_native() << times,
            _ => request.to_native() * 2,
        };
        request.reply(&number)?;
    }
    while let Some(note) = notes.next()? {
        let span = tracing::info_span!("take_note");
        ibex_tracing::set_parent(&span, note.trace_context());
        span.in_scope(|| note.ack());
    }
    Ok(())
}

/// Calls within a span, with metadata and without, and sends a message.
fn call(address: &str) -> Result<()> {
    let node = Node::builder()
        .trace_context(ibex_tracing::current)
        .build()?;
    let peer = node.connect(address)?;
    let notes = peer.channel("notes").trace_context(true);
    let mut notes = notes.sender::<String>()?;
    let double = peer.caller::<u64, u64>("double")?;
    tracing::info_span!("purchase").in_scope(|| -> Result<()> {
        assert_eq!(double.call(&21)?.to_native(), 42);
        let mut metadata = Metadata::new();
        metadata.insert("times", 3)?;
        tracing::info_span!("discount").in_scope(|| -> Result<()> {
            let reply = double.with_metadata(metadata).call(&1)?;
            assert_eq!(reply.to_native(), 8);
            Ok(())
        })?;
        let last = notes.send(&"sold".to_owned())?;
        drop(double);
        Ok(notes.wait_acked(last)?)
    })?;
    notes.close()?;
    let report = node.close(Duration::from_secs(10));
    assert!(report.undelivered.is_empty(), "{report:?}");
    Ok(())
}

/// Writes each finished span as a line: its name, its trace, itself and its parent.
#[derive(Debug)]
struct Lines;

impl SpanExporter for Lines {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        for span in batch {
            let context = &span.span_context;
            println!(
                "span {} trace {} id {} parent {}",
                span.name,
                context.trace_id(),
                context.span_id(),
                span.parent_span_id,
            );
        }
        Ok(())
    }
}
