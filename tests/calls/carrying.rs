//! Metadata and trace context travel with calls of each kind.

use ibex::prelude::*;
use ibex::{
    TraceContext,
    calls::{Metadata, MetadataValue},
};

use super::*;

fn metadata(number: u64) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.insert("number", number as i64).unwrap();
    metadata.insert("word", "blue").unwrap();
    metadata
}

fn trace(number: u64) -> TraceContext {
    TraceContext::new([1; 16], (number + 1).to_le_bytes(), 1).unwrap()
}

#[test]
fn each_call_carries_its_own_metadata_and_trace() {
    const CALLS: u64 = 100;
    in_each_cell(
        |here, peer| {
            let plain = peer.caller::<Question, Answer>("echo").unwrap();
            for number in 0..CALLS {
                let echo = match number % 4 {
                    0 => plain.clone(),
                    1 => plain.with_metadata(metadata(number)),
                    2 => plain.with_trace_context(trace(number)),
                    _ => {
                        let traced = plain.with_trace_context(trace(number));
                        traced.with_metadata(metadata(number))
                    }
                };
                let question = question(number);
                let reply = match number % 3 {
                    0 => echo.call(&question),
                    1 => run(here, echo.call_async(&question)),
                    _ => echo.stream(&question).unwrap().next().map(Option::unwrap),
                };
                assert_eq!(reply.unwrap().number, number);
            }
            assert_eq!(plain.strays(), 0);
        },
        |there, _| {
            let mut service = there.service::<Question, Answer>("echo").unwrap();
            for _ in 0..CALLS {
                let request = service.next().unwrap().unwrap();
                let number = request.number.to_native();
                let has_trace = number % 4 > 1;
                assert_eq!(request.trace_context(), has_trace.then(|| trace(number)));
                let has_metadata = number % 2 == 1;
                assert_eq!(request.metadata().is_empty(), !has_metadata);
                if has_metadata {
                    assert_eq!(*request.metadata(), metadata(number));
                    let word = request.metadata().get("word");
                    assert_eq!(word, Some(MetadataValue::Text("blue")));
                }
                let text = String::new();
                request.reply(&Answer { number, text }).unwrap();
            }
            assert_eq!((service.refused(), service.strays()), (0, 0));
        },
    );
}
