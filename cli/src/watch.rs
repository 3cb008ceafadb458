//! `ibex watch`: events of RDMA devices, and of a session with a node, as they come.
//!
//! A thread for each source waits for its events; this one prints them in the order in which they
//! were seen.

use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, SystemTime};

use ibex::{Event, Node, Security};
use serde::Serialize;

use crate::options::WatchOptions;
use crate::{Failure, date, session};

/// Something that was seen.
#[derive(Debug, Serialize)]
struct Seen {
    time: String,
    /// The name of a device, or the address of a node.
    source: String,
    event: String,
}

impl Seen {
    fn now(source: &str, event: impl ToString) -> Self {
        Self {
            time: date::text(SystemTime::now()),
            source: source.to_owned(),
            event: event.to_string(),
        }
    }
}

/// Runs the subcommand.
pub(crate) fn run(options: &WatchOptions) -> Result<u8, Failure> {
    let security = session::security(&options.identity);
    let security = security.map_err(|error| Failure::said(error.to_string()))?;
    let (seen, events) = mpsc::channel();
    let devices = watch_devices(&seen);
    let session = options.to.as_deref().map(|to| connect(to, security, &seen));
    drop(seen);
    let mut sources = 0;
    for started in devices.into_iter().chain(session) {
        match started {
            Ok(line) => {
                sources += 1;
                eprintln!("{line}");
            }
            Err(why) => eprintln!("ibex: {why}"),
        }
    }
    if sources == 0 {
        return Ok(4);
    }
    for (count, seen) in events.iter().enumerate() {
        let line = match options.json {
            true => serde_json::to_string(&seen).expect("a line has only strings"),
            false => format!("{} {}: {}", seen.time, seen.source, seen.event),
        };
        crate::print(&(line + "\n"))?;
        if options.count == Some(count as u64 + 1) {
            break;
        }
    }
    Ok(0)
}

/// Begins a session with a node and watches it, until it is over.
fn connect(to: &str, security: Option<Security>, seen: &Sender<Seen>) -> Result<String, String> {
    if let Some(why) = session::closed(to) {
        return Err(why);
    }
    let mut builder = Node::builder().name("ibex watch");
    if let Some(security) = security {
        builder = builder.security(security);
    }
    let node = builder.build().map_err(|error| error.to_string())?;
    let peer = node.connect(to).map_err(|error| error.to_string())?;
    let (source, seen) = (to.to_owned(), seen.clone());
    thread::spawn(move || {
        let mut events = node.events();
        // The node has this session alone, which lasts for as long as the peer's handle.
        let _peer = peer;
        loop {
            let Some(event) = events.next_timeout(Duration::from_secs(3600)) else {
                continue;
            };
            let is_over = matches!(event, Event::Gone { .. });
            if seen.send(Seen::now(&source, &event)).is_err() || is_over {
                return;
            }
        }
    });
    Ok(format!("watching a session with {to}"))
}

/// Watches each RDMA device of this machine. Returns what is watched, and what cannot be.
#[cfg(feature = "verbs")]
fn watch_devices(seen: &Sender<Seen>) -> Vec<Result<String, String>> {
    use std::sync::Arc;

    use ibex_verbs::provider::{Libibverbs, Provider};

    let entries = Libibverbs::load().and_then(|library| {
        let provider: Arc<dyn Provider> = Arc::new(library);
        let entries = provider.devices()?;
        Ok((provider, entries))
    });
    let (provider, entries) = match entries {
        Ok(found) => found,
        Err(error) => return vec![Err(error.to_string())],
    };
    let each = entries.iter().map(|entry| {
        let events = open(&provider, &entry.name)?;
        let (name, seen) = (entry.name.clone(), seen.clone());
        thread::spawn(move || forward(events, &name, &seen));
        Ok(format!("watching {}", entry.name))
    });
    each.collect()
}

#[cfg(not(feature = "verbs"))]
fn watch_devices(_: &Sender<Seen>) -> Vec<Result<String, String>> {
    vec![Err(
        "this build lacks the feature `verbs`, so it sees no events of RDMA devices".to_owned(),
    )]
}

#[cfg(feature = "verbs")]
fn open(
    provider: &std::sync::Arc<dyn ibex_verbs::provider::Provider>,
    name: &str,
) -> Result<ibex_verbs::AsyncEvents, String> {
    let device = ibex_verbs::Device::open(provider, name).map_err(|error| error.to_string())?;
    let events = ibex_verbs::AsyncEvents::of(&device).map_err(|error| error.to_string())?;
    events.ok_or_else(|| format!("{name}: another reader of this process has its events"))
}

/// Passes a device's events on until it is gone, or nobody takes them.
#[cfg(feature = "verbs")]
fn forward(mut events: ibex_verbs::AsyncEvents, name: &str, seen: &Sender<Seen>) {
    use rustix::event::{PollFd, PollFlags, poll};

    loop {
        let event = match events.take() {
            Ok(Some(event)) => Seen::now(name, event),
            Ok(None) => {
                // A signal only wakes the loop early.
                let _ = poll(&mut [PollFd::new(&events, PollFlags::IN)], None);
                continue;
            }
            Err(error) => {
                let _ = seen.send(Seen::now(name, error));
                return;
            }
        };
        if seen.send(event).is_err() {
            return;
        }
    }
}
