//! Nodes that are busy: calls, messages short and long, and acknowledgements, over each fabric.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use ibex::prelude::*;
use ibex::{Fabric, Node, NodeBuilder, Pod, Policy, Raw, Receiver, Sender};
use ibex_metrics::Metrics;

use crate::metrics_page;

/// A store and a client over each fabric, and the threads that use them.
pub(crate) struct Nodes {
    nodes: Vec<Node>,
    threads: Vec<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
}

impl Nodes {
    /// Joins the nodes and begins.
    pub(crate) fn busy() -> Self {
        let mut nodes = Self {
            nodes: Vec::new(),
            threads: Vec::new(),
            is_over: Arc::default(),
        };
        let over = |fabric| Node::builder().fabric(fabric, Policy::Require);
        nodes.join("shm", || over(Fabric::Shm));
        nodes.join("tcp", || over(Fabric::Tcp));
        #[cfg(feature = "fake-device")]
        {
            let device = ibex_integrations_testing::MemoryDevice::new();
            nodes.join("verbs", || device.carries(over(Fabric::Verbs)));
        }
        nodes
    }

    fn join(&mut self, fabric: &str, builder: impl Fn() -> NodeBuilder) {
        let node = |name: &str| builder().name(format!("{name}-{fabric}")).histograms(true);
        let store = node("store").listen("127.0.0.1:0").build();
        let store = store.expect("a node");
        let client = node("client").build().expect("a node");
        let to_store = client.connect(store.local_addr().expect("it listens"));
        let to_store = to_store.expect("a session");
        assert_eq!(
            to_store.fabric().name(),
            fabric,
            "{}",
            to_store.fabric_reason()
        );
        let of_client = store.accept().expect("a session");

        let prices = store.channel("prices").codec::<Pod>().service();
        let prices = prices.expect("a service");
        let log = to_store.channel("log").codec::<Raw>().sender();
        let entries = of_client.channel("log").codec::<Raw>().receiver();
        let (log, entries) = (log.expect("a sender"), entries.expect("a receiver"));
        self.nodes.extend([store, client]);

        // Each ends when the nodes are closed under it.
        self.spawn(move |_| drop(metrics_page::answer(prices)));
        self.spawn(move |is_over| {
            let rest = || pause(is_over);
            drop(metrics_page::call(&to_store, rest));
        });
        self.spawn(move |is_over| send(log, is_over));
        self.spawn(move |_| receive(entries));
    }

    fn spawn(&mut self, work: impl FnOnce(&AtomicBool) + Send + 'static) {
        let is_over = self.is_over.clone();
        self.threads.push(thread::spawn(move || work(&is_over)));
    }

    pub(crate) fn metrics(&self) -> Metrics {
        let nodes = self.nodes.iter();
        nodes.fold(Metrics::new(), Metrics::watch)
    }

    /// Closes the nodes, and waits for the threads.
    pub(crate) fn rest(self) {
        self.is_over.store(true, Ordering::Relaxed);
        for node in &self.nodes {
            let _report = node.close(Duration::ZERO);
        }
        for thread in self.threads {
            thread.join().expect("it ends in order");
        }
    }
}

/// Leaves the cores to Prometheus, which has the work of this test.
fn pause(is_over: &AtomicBool) {
    if !is_over.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(5));
    }
}

fn send(mut log: Sender<[u8], Raw>, is_over: &AtomicBool) {
    for length in [64, 4 << 10, 2 << 20].into_iter().cycle() {
        let sent = log.send(&vec![7; length]);
        let Ok(sequence) = sent else { return };
        if log.wait_acked(sequence).is_err() {
            return;
        }
        pause(is_over);
    }
}

fn receive(mut entries: Receiver<[u8], Raw>) {
    while let Ok(Some(entry)) = entries.next() {
        entry.ack();
    }
}
