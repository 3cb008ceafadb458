//! Events of `tracing`, without a filter or a format between them and a test.
#![forbid(unsafe_code)]

use std::fmt::{self, Write as _};

use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span, subscriber,
};

/// A subscriber that hands each logged event to a function.
#[derive(Debug)]
pub struct Each<F>(pub F);

impl<F: Fn(&Event<'_>) + Send + Sync + 'static> Each<F> {
    /// Takes over this process's log, which a process can do once.
    ///
    /// # Panics
    /// If the process has a subscriber already.
    pub fn take_over(self) {
        subscriber::set_global_default(self).expect("nobody keeps the log yet");
    }
}

impl<F: Fn(&Event<'_>) + 'static> Subscriber for Each<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
    }

    fn event(&self, event: &Event<'_>) {
        (self.0)(event);
    }

    // ibex opens no spans.
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// Returns an event as a line: its level, and then each field with its value.
#[must_use]
pub fn line(event: &Event<'_>) -> String {
    let mut line = Line(event.metadata().level().to_string());
    event.record(&mut line);
    line.0
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, " {}={value:?}", field.name()).expect("memory");
    }
}
