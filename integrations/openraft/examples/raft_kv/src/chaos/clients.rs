//! Clients that write and read, and record the answers.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use ibex_harness::draw::Draw;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    harness::Cluster,
    history::{Begun, History, Value},
    lines::Lines,
    types::Failure,
};

/// Clients at work.
pub(super) struct Clients {
    record: Arc<Mutex<Recorded>>,
    running: JoinSet<()>,
}

/// The record of all clients' work.
#[derive(Clone, Debug, Default)]
pub(super) struct Recorded {
    history: History,
    /// Keys that were written once, and acknowledged.
    journal: BTreeSet<String>,
    begun: u64,
    pub(super) acknowledged: u64,
    pub(super) unknown: u64,
    pub(super) reads: u64,
    is_over: bool,
}

impl Clients {
    pub(super) fn start(lines: BTreeMap<u64, String>, draw: &mut Draw) -> Clients {
        let record = Arc::<Mutex<Recorded>>::default();
        let mut running = JoinSet::new();
        for _ in 0..CLIENTS {
            let client = Client {
                nodes: lines.clone(),
                at: 1,
                connection: None,
                record: record.clone(),
                draw: draw.fork(),
            };
            running.spawn(client.run());
        }
        Clients { record, running }
    }

    /// Lets the clients finish their operations under way.
    pub(super) async fn finish(mut self) -> Result<Recorded, Failure> {
        lock(&self.record).is_over = true;
        while let Some(ended) = self.running.join_next().await {
            ended?;
        }
        Ok(lock(&self.record).clone())
    }
}

impl Recorded {
    /// Reads all keys once more. Returns the whole history, and how many of the acknowledged
    /// writes of a single key are not there.
    pub(super) async fn read_all(&self, cluster: &Cluster) -> Result<(History, u64), Failure> {
        let mut last_reader = LastReader {
            cluster,
            connection: None,
        };
        let mut history = self.history.clone();
        for number in 0..=register_of(self.begun) {
            let key = format!("register-{number}");
            let begun = history.begin_read(&key);
            history.read(begun, last_reader.read(&key).await?);
        }
        let mut lost = 0;
        for key in &self.journal {
            if last_reader.read(key).await?.is_none() {
                lost += 1;
            }
        }
        Ok((history, lost))
    }
}

/// A client that reads from the node that leads, whichever that is by now: a busy machine may delay
/// a leader's heartbeats until the others elect one of themselves.
struct LastReader<'a> {
    cluster: &'a Cluster,
    connection: Option<Lines>,
}

impl LastReader<'_> {
    /// Reads a key, and asks again until a node answers with its value.
    ///
    /// # Errors
    ///
    /// No node does within three minutes.
    async fn read(&mut self, key: &str) -> Result<Value, Failure> {
        let reading = async {
            loop {
                match self.ask(key).await {
                    Ok(value) => return value,
                    Err(_) => sleep(PAUSE).await,
                }
            }
        };
        let read = timeout(CLUSTER_PATIENCE, reading).await;
        read.map_err(|_| format!("nobody answers \"get {key}\"").into())
    }

    async fn ask(&mut self, key: &str) -> Result<Value, Failure> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let leader = self.cluster.leader().await?;
                Lines::connect(&self.cluster.lines()[&leader]).await?
            }
        };
        let answer = connection.ask(&format!("get {key}")).await?;
        let value = value_of(&answer).ok_or(answer)?;
        self.connection = Some(connection);
        Ok(value)
    }
}

struct Client {
    nodes: BTreeMap<u64, String>,
    at: u64,
    connection: Option<Lines>,
    record: Arc<Mutex<Recorded>>,
    draw: Draw,
}

enum Work {
    Write(Begun),
    Read(Begun),
    /// A key of its own.
    Journal(u64),
}

/// A client's knowledge of a request that has ended.
enum Heard {
    Done(Value),
    Nothing,
    /// The operation was not executed, and will not be.
    Refused,
}

impl Client {
    async fn run(mut self) {
        while let Some((request, work)) = self.begin() {
            let heard = self.ask(&request).await;
            self.end(work, heard);
        }
    }

    fn begin(&mut self) -> Option<(String, Work)> {
        let mut record = lock(&self.record);
        if record.is_over {
            return None;
        }
        let number = record.begun;
        let key = format!("register-{}", register_of(number));
        record.begun += 1;
        Some(match self.draw.below(4) {
            0 | 1 => {
                let begun = record.history.begin_write(&key, number);
                (format!("put {key} {number}"), Work::Write(begun))
            }
            2 => (
                format!("get {key}"),
                Work::Read(record.history.begin_read(&key)),
            ),
            _ => (
                format!("put journal-{number} {number}"),
                Work::Journal(number),
            ),
        })
    }

    fn end(&self, work: Work, heard: Heard) {
        let mut record = lock(&self.record);
        match (work, heard) {
            (Work::Write(begun), Heard::Done(_)) => {
                record.history.written(begun);
                record.acknowledged += 1;
            }
            (Work::Read(begun), Heard::Done(value)) => {
                record.history.read(begun, value);
                record.reads += 1;
            }
            (Work::Journal(number), Heard::Done(_)) => {
                record.journal.insert(format!("journal-{number}"));
                record.acknowledged += 1;
            }
            (Work::Write(..) | Work::Journal(_), Heard::Nothing) => record.unknown += 1,
            // A read without an answer shows nothing.
            (Work::Write(begun) | Work::Read(begun), _) => record.history.withdrawn(begun),
            (Work::Journal(_), Heard::Refused) => {}
        }
    }

    async fn ask(&mut self, request: &str) -> Heard {
        let Some(mut connection) = self.connect().await else {
            self.go_on(None).await;
            return Heard::Refused;
        };
        let answer = timeout(PATIENCE, connection.ask(request)).await;
        let Ok(Ok(answer)) = answer else {
            self.go_on(None).await;
            return Heard::Nothing;
        };
        if let Some(leader) = answer.strip_prefix("elsewhere ") {
            self.go_on(leader.parse().ok()).await;
            return Heard::Refused;
        }
        self.connection = Some(connection);
        match value_of(&answer) {
            Some(value) => Heard::Done(value),
            None => Heard::Nothing,
        }
    }

    async fn connect(&mut self) -> Option<Lines> {
        match self.connection.take() {
            Some(connection) => Some(connection),
            None => {
                let connecting = Lines::connect(self.nodes.get(&self.at)?);
                timeout(PATIENCE, connecting).await.ok()?.ok()
            }
        }
    }

    /// Turns to the node that is said to lead, or to the next node after a moment.
    async fn go_on(&mut self, leader: Option<u64>) {
        match leader {
            Some(leader) => self.at = leader,
            None => self.at = self.at % self.nodes.len() as u64 + 1,
        }
        sleep(PAUSE).await;
    }
}

/// Returns the value in an answer that says that the request was done.
fn value_of(answer: &str) -> Option<Value> {
    match answer {
        "ok" | "none" => Some(None),
        _ => {
            let value = answer.strip_prefix("value ")?;
            Some(Some(value.parse().ok()?))
        }
    }
}

/// Returns the register that all clients use at the `number`th request.
fn register_of(number: u64) -> u64 {
    number / REQUESTS_PER_REGISTER
}

fn lock(record: &Mutex<Recorded>) -> MutexGuard<'_, Recorded> {
    record.lock().unwrap_or_else(PoisonError::into_inner)
}

const CLIENTS: u64 = 4;
/// Most requests in one history: the search for an order takes time that grows with its length.
const REQUESTS_PER_REGISTER: u64 = 24;
/// The last reader's wait for an answer: the cluster may have to elect a leader first.
const CLUSTER_PATIENCE: Duration = Duration::from_secs(180);
/// A client's wait for an answer, before it gives up.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(10);
