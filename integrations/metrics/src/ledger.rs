//! The counts of a node by fabric, channel and peer, which stay when sessions and channels go.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::SystemTime,
};

use ibex::{
    Address, Role,
    stats::{NodeSession, NodeStats, SessionState},
};

use crate::{
    collected::{Labels, Value},
    table::{Read, TABLE},
};

/// A sample: the index of its metric, its labels and value.
pub(crate) type Sample = (usize, Labels, Value);

/// What is known of a node from earlier readings.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// The numbers of what was there at the last reading, by the index of the metric.
    seen: HashMap<Source, BTreeMap<usize, u64>>,
    /// The sums by labels, to which each reading adds what has risen since the one before.
    sums: BTreeMap<(usize, Labels), u64>,
    /// What the node's totals have beyond those sums.
    rests: BTreeMap<usize, u64>,
}

/// The labels of channels and peers that are in use.
#[derive(Debug)]
pub(crate) struct Names {
    pub(crate) has_peers: bool,
    pub(crate) limit: usize,
    known: HashSet<(Option<String>, Option<String>)>,
}

/// Something that counts from 0 on, and ends.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Source {
    Session(u64),
    /// Ends that follow on each other in a session, under one name.
    Channel(u64, String, bool),
    /// A device port of an engine.
    Port(usize, String, u8),
}

impl Default for Names {
    fn default() -> Self {
        Self {
            has_peers: false,
            limit: 256,
            known: HashSet::new(),
        }
    }
}

/// Returns an address without its port, which is another one for each connection.
fn host_of(address: Address) -> String {
    match address {
        Address::Inet(address) => address.ip().to_string(),
        Address::Vsock { cid, .. } => format!("vsock:{cid}"),
        _ => address.to_string(),
    }
}

impl Names {
    /// Adds the labels of a channel, if it is one, and of a peer, if peers have labels.
    fn label(&mut self, labels: Labels, channel: Option<&str>, session: &NodeSession) -> Labels {
        let peer = self.has_peers.then(|| {
            let name = session.names.name.as_deref();
            name.map_or_else(|| host_of(session.address), str::to_owned)
        });
        let pair = (channel.map(str::to_owned), peer);
        let (channel, peer) = match self.known.contains(&pair) || pair == (None, None) {
            true => pair,
            false if self.known.len() < self.limit => {
                self.known.insert(pair.clone());
                pair
            }
            false => (pair.0.map(|_| OTHER.into()), pair.1.map(|_| OTHER.into())),
        };
        labels.with("channel", channel).with("peer", peer)
    }
}

impl Ledger {
    /// Takes in a reading of the node, and returns all samples.
    pub(crate) fn read(&mut self, stats: &NodeStats, names: &mut Names) -> Vec<Sample> {
        let node = Labels::default().with("node", stats.name.as_deref());
        let mut samples = Vec::new();
        read_node(stats, &node, &mut samples);

        let mut sources = BTreeMap::new();
        for session in &stats.sessions {
            let fabric = node.clone().with("fabric", Some(session.fabric.name()));
            read_session(session, &node, &fabric, names, &mut sources);
            read_gauges(session, &fabric, names, &mut samples);
        }
        self.take_in(sources);

        let sums = self.sums.iter();
        samples.extend(sums.map(|((metric, labels), sum)| number(*metric, labels.clone(), *sum)));
        self.take_rests(stats);
        for (metric, rest) in &self.rests {
            let mut labels = node.clone().with("fabric", Some(OTHER));
            if let Read::Channel(..) = TABLE[*metric].read {
                labels = labels.with("channel", Some(OTHER));
            }
            let labels = labels.with("peer", names.has_peers.then_some(OTHER));
            samples.push(number(*metric, labels, *rest));
        }
        samples
    }

    /// Adds what has risen since the last reading, and forgets what is gone.
    fn take_in(&mut self, sources: BTreeMap<Source, (Labels, BTreeMap<usize, u64>)>) {
        let mut seen = HashMap::new();
        for (source, (labels, numbers)) in sources {
            let before = self.seen.remove(&source).unwrap_or_default();
            for (metric, number) in &numbers {
                // One of several ends of the name may be gone, with its part of the sum.
                let more = number.saturating_sub(before.get(metric).copied().unwrap_or(0));
                *self.sums.entry((*metric, labels.clone())).or_default() += more;
            }
            seen.insert(source, numbers);
        }
        self.seen = seen;
    }

    /// Sets the rests to what the totals have and no session or channel was seen to count. The
    /// totals were read before the sessions, so a rest is never too large.
    fn take_rests(&mut self, stats: &NodeStats) {
        for (metric, row) in TABLE.iter().enumerate() {
            let total = match row.read {
                Read::Session(read) => read(&stats.totals.counters),
                Read::Channel(_, _, Some(read)) => read(&stats.totals),
                _ => continue,
            };
            let first = (metric, Labels::default());
            let of_metric = self
                .sums
                .range(first..)
                .take_while(|((one, _), _)| *one == metric);
            let seen: u64 = of_metric.map(|(_, sum)| sum).sum();
            let rest = self.rests.get(&metric).copied().unwrap_or(0);
            let rest = rest.max(total.saturating_sub(seen));
            if rest > 0 {
                self.rests.insert(metric, rest);
            }
        }
    }
}

/// Reads what the node counts as a whole.
fn read_node(stats: &NodeStats, node: &Labels, samples: &mut Vec<Sample>) {
    for (metric, row) in TABLE.iter().enumerate() {
        match row.read {
            Read::Node(read) => samples.push(number(metric, node.clone(), read(stats))),
            Read::Time(read) => {
                let since =
                    read(stats).and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
                let nanoseconds = since.and_then(|since| u64::try_from(since.as_nanos()).ok());
                samples.extend(nanoseconds.map(|time| number(metric, node.clone(), time)));
            }
            Read::Handshakes => {
                let Some(security) = &stats.security else {
                    continue;
                };
                let outcomes = [
                    ("accepted", security.handshakes),
                    ("other_mode", security.other_mode),
                    ("wrong_secret", security.wrong_secret),
                    ("unknown_issuer", security.unknown_issuer),
                    ("expired", security.expired),
                    ("revoked", security.revoked),
                    ("not_authorized", security.not_authorized),
                    ("other_failure", security.other_failures),
                ];
                samples.extend(outcomes.map(|(outcome, count)| {
                    let labels = node.clone().with("outcome", Some(outcome));
                    number(metric, labels, count)
                }));
            }
            Read::Durations(measured) => {
                let of_kind = stats.histograms.iter();
                let of_kind = of_kind.filter(|histogram| histogram.measured == measured);
                samples.extend(of_kind.map(|histogram| {
                    let name = Some(histogram.name.as_str());
                    let labels = match row.labels() {
                        [_, label] => node.clone().with(label, name),
                        _ => node
                            .clone()
                            .with("rpc_system_name", Some("ibex"))
                            .with("rpc_method", name)
                            .with("error_type", histogram.error.as_deref()),
                    };
                    let durations = histogram.durations.clone();
                    (metric, labels, Value::Histogram(durations))
                }));
            }
            #[cfg(feature = "verbs")]
            Read::PortCounters => {
                for port in stats.port_counters() {
                    let labels = Labels::default()
                        .with("device", Some(port.device))
                        .with("port", Some(port.port.to_string()));
                    samples.extend(port.counters.into_iter().map(|(name, count)| {
                        number(metric, labels.clone().with("counter", Some(name)), count)
                    }));
                }
            }
            _ => {}
        }
    }
}

/// Reads what a session, its channels and its device port have counted.
fn read_session(
    session: &NodeSession,
    node: &Labels,
    fabric: &Labels,
    names: &mut Names,
    sources: &mut BTreeMap<Source, (Labels, BTreeMap<usize, u64>)>,
) {
    let labels = names.label(fabric.clone(), None, session);
    let (_, numbers) = sources
        .entry(Source::Session(session.number))
        .or_insert_with(|| (labels, BTreeMap::new()));
    for (metric, row) in TABLE.iter().enumerate() {
        if let Read::Session(read) = row.read {
            numbers.insert(metric, read(&session.counters));
        }
    }
    if let Some((device, port)) = &session.rdma_port {
        let labels = node
            .clone()
            .with("device", Some(device))
            .with("port", Some(port.to_string()));
        let (_, numbers) = sources
            .entry(Source::Port(session.engine, device.clone(), *port))
            .or_insert_with(|| (labels, BTreeMap::new()));
        for (metric, row) in TABLE.iter().enumerate() {
            if let Read::Port(read) = row.read {
                // Sessions are read one after the other, and the last has the newest count.
                let count = numbers.entry(metric).or_default();
                *count = read(&session.counters).max(*count);
            }
        }
    }
    for channel in &session.channels {
        let labels = names.label(fabric.clone(), Some(&channel.name), session);
        let sends = channel.end == Role::Sender;
        let (_, numbers) = sources
            .entry(Source::Channel(session.number, channel.name.clone(), sends))
            .or_insert_with(|| (labels, BTreeMap::new()));
        for (metric, row) in TABLE.iter().enumerate() {
            if let Read::Channel(role, read, _) = row.read
                && role == channel.end
            {
                *numbers.entry(metric).or_default() += read(channel);
            }
        }
    }
}

/// Reads what rises and falls. Samples of the same labels are added up by the reader.
fn read_gauges(
    session: &NodeSession,
    fabric: &Labels,
    names: &mut Names,
    samples: &mut Vec<Sample>,
) {
    let state = match session.state {
        SessionState::Up => "up",
        SessionState::Suspended => "suspended",
        _ => "gone",
    };
    for (metric, row) in TABLE.iter().enumerate() {
        match row.read {
            Read::Sessions => {
                let labels = names.label(fabric.clone(), None, session);
                samples.push(number(metric, labels.with("state", Some(state)), 1));
            }
            Read::ChannelNow(role, read) => {
                for channel in session
                    .channels
                    .iter()
                    .filter(|channel| channel.end == role)
                {
                    let labels = names.label(fabric.clone(), Some(&channel.name), session);
                    samples.push(number(metric, labels, read(channel)));
                }
            }
            _ => {}
        }
    }
}

fn number(metric: usize, labels: Labels, number: u64) -> Sample {
    (metric, labels, Value::Number(number))
}

/// The value of labels for all that has none of its own.
const OTHER: &str = "other";

#[cfg(test)]
mod tests {
    use ibex::{Fabric, Node, Policy, Raw};

    use super::*;

    /// Returns the statistics of a node that has sent `messages` over one channel.
    fn stats_of_sender(messages: u64) -> NodeStats {
        let node = || Node::builder().fabric(Fabric::Tcp, Policy::Require);
        let listener = node().listen("127.0.0.1:0").build().expect("a node");
        let dialer = node().build().expect("a node");
        let address = listener.local_addr().expect("it listens");
        let peer = dialer.connect(address).expect("a session");
        let other = listener.accept().expect("a session");
        let log = peer.channel("log").codec::<Raw>();
        let mut log = log.sender::<[u8]>().expect("a sender");
        let entries = other.channel("log").codec::<Raw>();
        let mut entries = entries.receiver::<[u8]>().expect("a receiver");
        for _ in 0..messages {
            log.send(b"entry").expect("room");
        }
        for _ in 0..messages {
            entries.next().expect("a message").expect("a message").ack();
        }
        log.wait_acked(messages).expect("they were acknowledged");
        dialer.stats()
    }

    /// Returns the samples of a metric, by the value of a label.
    fn sent<'a>(samples: &'a [Sample], label: &str) -> BTreeMap<&'a str, u64> {
        let of_metric = samples.iter().filter_map(|(metric, labels, value)| {
            let is_it = TABLE[*metric].name == "ibex_sent_messages_total";
            match value {
                Value::Number(number) if is_it => Some((labels.get(label)?, *number)),
                _ => None,
            }
        });
        of_metric.collect()
    }

    #[test]
    fn counts_stay_when_their_session_goes() {
        let mut stats = stats_of_sender(5);
        let (mut ledger, mut names) = (Ledger::default(), Names::default());
        let samples = ledger.read(&stats, &mut names);
        assert_eq!(sent(&samples, "channel"), [("log", 5)].into());

        // Two more messages are sent, and the session ends and is forgotten before it is read.
        let session = stats.sessions.remove(0);
        stats.totals.sent += 2;
        let samples = ledger.read(&stats, &mut names);
        assert_eq!(sent(&samples, "channel"), [("log", 5), ("other", 2)].into());

        // The next session of that peer counts from 0 on.
        let mut next = session;
        next.number += 1;
        next.channels[0].sent = 3;
        stats.sessions.push(next);
        stats.totals.sent += 3;
        let samples = ledger.read(&stats, &mut names);
        assert_eq!(sent(&samples, "channel"), [("log", 8), ("other", 2)].into());
    }

    #[test]
    fn an_end_that_follows_on_another_is_not_counted_twice() {
        let mut stats = stats_of_sender(5);
        let (mut ledger, mut names) = (Ledger::default(), Names::default());
        ledger.read(&stats, &mut names);
        // The channel was opened again, and both ends are in the list for a while.
        let channels = &mut stats.sessions[0].channels;
        let mut again = channels[0].clone();
        again.sent = 4;
        channels.push(again);
        stats.totals.sent = 9;
        let samples = ledger.read(&stats, &mut names);
        assert_eq!(sent(&samples, "channel"), [("log", 9)].into());
        stats.sessions[0].channels.remove(0);
        let samples = ledger.read(&stats, &mut names);
        assert_eq!(sent(&samples, "channel"), [("log", 9)].into());
    }

    #[test]
    fn label_values_are_bounded() {
        let mut stats = stats_of_sender(1);
        let mut names = Names {
            limit: 3,
            ..Names::default()
        };
        let mut ledger = Ledger::default();
        let channel = stats.sessions[0].channels[0].clone();
        for number in 0..10 {
            stats.sessions[0].channels.push(channel.clone());
            let last = stats.sessions[0]
                .channels
                .last_mut()
                .expect("it was pushed");
            last.name = format!("invented {number}");
        }
        stats.totals.sent += 10;
        for _ in 0..2 {
            let samples = ledger.read(&stats, &mut names);
            let sent = sent(&samples, "channel");
            assert_eq!(sent.len(), 4, "{sent:?}");
            assert_eq!(sent["other"], 8);
            assert_eq!(sent.values().sum::<u64>(), 11);
        }
    }

    #[test]
    fn peers_have_labels_if_the_program_asks() {
        let mut stats = stats_of_sender(1);
        let (mut ledger, mut names) = (Ledger::default(), Names::default());
        let samples = ledger.read(&stats, &mut names);
        assert!(sent(&samples, "peer").is_empty());

        names.has_peers = true;
        let mut ledger = Ledger::default();
        let samples = ledger.read(&stats, &mut names);
        assert_eq!(sent(&samples, "peer"), [("127.0.0.1", 1)].into());
        stats.sessions[0].names.name = Some("replica 2".into());
        let mut ledger = Ledger::default();
        let samples = ledger.read(&stats, &mut names);
        assert_eq!(sent(&samples, "peer"), [("replica 2", 1)].into());
    }

    #[cfg(feature = "verbs")]
    #[test]
    fn a_port_that_sessions_share_is_counted_once() {
        let mut stats = stats_of_sender(1);
        stats.sessions[0].rdma_port = Some(("mlx5_0".to_owned(), 1));
        stats.sessions[0].counters.polls = 10;
        let mut second = stats.sessions[0].clone();
        second.number += 1;
        second.counters.polls = 11;
        stats.sessions.push(second);
        let (mut ledger, mut names) = (Ledger::default(), Names::default());
        let mut polls = |stats: &NodeStats| {
            let samples = ledger.read(stats, &mut names);
            let polls = samples.iter().filter_map(|(metric, labels, value)| {
                let is_it = TABLE[*metric].name == "ibex_completion_polls_total";
                is_it.then(|| (labels.get("device").map(str::to_owned), value.clone()))
            });
            polls.collect::<Vec<_>>()
        };
        let of_device = |count| vec![(Some("mlx5_0".to_owned()), Value::Number(count))];
        assert_eq!(polls(&stats), of_device(11));

        // The first session ends, and the port goes on.
        stats.sessions.remove(0);
        stats.sessions[0].counters.polls = 13;
        assert_eq!(polls(&stats), of_device(13));
    }
}
