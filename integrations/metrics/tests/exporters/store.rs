//! A store and its client, two nodes of this process, joined over tcp.

use std::{
    sync::mpsc,
    thread::{self, JoinHandle},
    time::Duration,
};

use ibex::prelude::*;
use ibex::{
    Fabric, Node, NodeBuilder, Peer, Pod, Policy, Raw, Receiver, Sender,
    calls::{CallErrorKind, CallOptions, Caller},
    stats::Histogram,
};
use ibex_metrics::{Metrics, Value};

/// The nodes, with a service that one calls, and a channel.
pub(crate) struct Store {
    store: Node,
    client: Node,
    to_store: Peer,
    of_client: Peer,
    log: Sender<[u8], Raw>,
    entries: Receiver<[u8], Raw>,
    /// Has an entry for each request that the service has answered and dropped.
    answered: mpsc::Receiver<()>,
    serving: Option<JoinHandle<()>>,
}

impl Store {
    /// Joins nodes that keep histograms.
    pub(crate) fn open() -> Self {
        Self::open_with(|builder| builder.histograms(true))
    }

    pub(crate) fn open_with(set: fn(NodeBuilder) -> NodeBuilder) -> Self {
        let node = |name| {
            let builder = Node::builder().name(name);
            set(builder.fabric(Fabric::Tcp, Policy::Require))
        };
        let store = node("store").listen("127.0.0.1:0").build().expect("a node");
        let client = node("client").build().expect("a node");
        let address = store.local_addr().expect("it listens");
        let to_store = client.connect(address).expect("a session");
        let of_client = store.accept().expect("a session");
        let log = to_store.channel("log").codec::<Raw>().sender();
        let entries = of_client.channel("log").codec::<Raw>().receiver();
        let mut prices = store
            .channel("prices")
            .codec::<Pod>()
            .service::<u64, u64>()
            .expect("a service");
        let (has_answered, answered) = mpsc::channel();
        let serving = thread::spawn(move || {
            while let Some(request) = prices.next().expect("no session ends it") {
                let price = *request * 3;
                request.reply(&price).expect("it is waited for");
                has_answered.send(()).expect("the test counts");
            }
        });
        Self {
            store,
            client,
            to_store,
            of_client,
            log: log.expect("a sender"),
            entries: entries.expect("a receiver"),
            answered,
            serving: Some(serving),
        }
    }

    pub(crate) fn metrics(&self) -> Metrics {
        Metrics::new().watch(&self.store).watch(&self.client)
    }

    /// Makes calls. When it returns, the service has dropped each request, and the caller is open.
    pub(crate) fn call(&self, calls: u64) -> Caller<u64, u64, Pod> {
        let prices = self.to_store.channel("prices").codec::<Pod>();
        let prices = prices.caller::<u64, u64>().expect("a caller");
        for symbol in 0..calls {
            assert_eq!(*prices.call(&symbol).expect("a reply"), symbol * 3);
            self.answered.recv().expect("the service goes on");
        }
        prices
    }

    /// Makes calls that fail, each in another way.
    pub(crate) fn fail(&self) {
        let failing = || self.to_store.channel("failing").codec::<Pod>();
        let failing = failing().caller::<u64, u64>().expect("a caller");
        let mut service = self
            .store
            .channel("failing")
            .codec::<Pod>()
            .service::<u64, u64>()
            .expect("a service");
        thread::scope(|scope| {
            scope.spawn(move || {
                let mut next = || service.next().expect("a session").expect("a call");
                next().fail(7, "there is no such symbol");
                drop(next());
            });
            for kind in [CallErrorKind::Failed, CallErrorKind::Unanswered] {
                assert_eq!(failing.call(&0).expect_err("no reply").kind(), kind);
            }
        });
        let absent = self.to_store.channel("absent").codec::<Pod>();
        let absent = absent.caller::<u64, u64>().expect("a caller");
        let absent = absent.with(CallOptions::new().timeout(Duration::from_millis(1)));
        let late = absent.call(&0).expect_err("nobody serves it").kind();
        assert_eq!(late, CallErrorKind::DeadlineExceeded);
    }

    /// Returns how many calls failed by a metric, by service and kind of error.
    pub(crate) fn failures(&self, metrics: &Metrics, name: &str) -> Vec<(String, String, u64)> {
        let families = metrics.read();
        let family = families.iter().find(|family| family.metric.name == name);
        let samples = &family.unwrap_or_else(|| panic!("no {name}")).samples;
        let failures = samples.iter().filter_map(|(labels, value)| {
            let label = |name| labels.get(name).map(str::to_owned);
            let Value::Histogram(durations) = value else {
                return None;
            };
            Some((
                label("rpc_method")?,
                label("error_type")?,
                durations.count(),
            ))
        });
        failures.collect()
    }

    /// Sends messages and waits for the acknowledgement of each.
    pub(crate) fn send_acknowledged(&mut self, messages: u64) {
        for _ in 0..messages {
            let sequence = self.log.send(b"entry").expect("room");
            self.entries
                .next()
                .expect("a message")
                .expect("a message")
                .ack();
            self.log.wait_acked(sequence).expect("it was acknowledged");
        }
    }

    /// Sends messages to a group of one member, and waits for it as a quorum each time.
    pub(crate) fn send_to_group(&self, messages: u64) {
        let group = self.client.channel("wal").codec::<Raw>();
        let mut group = group.group::<[u8]>().expect("a group");
        group.join(&self.to_store).expect("a member");
        let entries = self.of_client.channel("wal").codec::<Raw>();
        let mut entries = entries.receiver::<[u8]>().expect("a receiver");
        for _ in 0..messages {
            let sequence = group.send(b"entry").expect("room");
            entries.next().expect("a message").expect("a message").ack();
            let waited = group.wait_acked(sequence, 1);
            waited.expect("it was acknowledged");
        }
    }

    /// Returns the durations of a metric, of both nodes together.
    pub(crate) fn durations(&self, metrics: &Metrics, name: &str) -> Histogram {
        let families = metrics.read();
        let family = families.iter().find(|family| family.metric.name == name);
        let samples = &family.unwrap_or_else(|| panic!("no {name}")).samples;
        let mut histograms = samples.iter().filter_map(|(_, value)| match value {
            Value::Histogram(histogram) => Some(histogram.clone()),
            Value::Number(_) => None,
        });
        let mut all = histograms.next().expect("a sample");
        histograms.for_each(|more| all.merge(&more));
        all
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _report = self.store.close(Duration::ZERO);
        if let Some(serving) = self.serving.take() {
            serving.join().expect("it ends in order");
        }
    }
}
