//! Requests of clients, a line each, and their answers; `nc` is a client.
//!
//! | request | answer |
//! |---|---|
//! | `put KEY VALUE` | `ok` when a majority has it on disk |
//! | `get KEY` | `value VALUE` or `none`, linearizable |
//! | `init ID=ADDRESS ...` | `ok`: the node and these are a new cluster |
//! | `learner ID ADDRESS` | `ok`: that node gets the log |
//! | `members ID ...` | `ok`: these vote from now on |
//! | `status` | `leader ID, term TERM, applied INDEX` |
//! | `full` | `ok`: the disk is full from now on |
//! | `bench OUTSTANDING COUNT` | `rate WRITES_PER_SECOND p50 MICROSECONDS`, or `deposed` when another node was elected meanwhile |
//!
//! Instead, `elsewhere ID` says that another node leads, and the request did nothing; `unknown WHY`
//! that a write may have been done or may yet be.

use std::{collections::BTreeMap, io, time::Instant};

use openraft::{BasicNode, ReadPolicy, async_runtime::WatchReceiver};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::{
    store::{Machine, Space},
    types::{Failure, Node, Put},
};

/// The answering end of a node.
#[derive(Clone, Debug)]
pub struct Answerer {
    /// The raft node.
    pub raft: Node,
    /// The state machine of the node.
    pub machine: Machine,
    /// The space of its disk.
    pub space: Space,
}

impl Answerer {
    /// Answers clients.
    ///
    /// # Errors
    ///
    /// No more connections can be accepted.
    pub async fn serve(self, listener: TcpListener) -> io::Result<()> {
        loop {
            let (stream, _) = listener.accept().await?;
            let answerer = self.clone();
            tokio::spawn(async move {
                // A client that goes away does no harm.
                let _ = answerer.answer_all(stream).await;
            });
        }
    }

    async fn answer_all(&self, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut stream = BufReader::new(stream);
        loop {
            let mut line = String::new();
            let mut limited = (&mut stream).take(MAX_LINE_BYTES);
            limited.read_line(&mut line).await?;
            if !line.ends_with('\n') {
                return Ok(()); // the client is gone, or its line too long
            }
            let mut answer = self.answer(line.trim()).await.replace('\n', " ");
            answer.push('\n');
            stream.write_all(answer.as_bytes()).await?;
        }
    }

    async fn answer(&self, line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        let answered = match words[..] {
            ["put", key, value] => return self.put(key, value).await,
            ["get", key] => return self.get(key).await,
            ["status"] => return self.status(),
            ["init", ref nodes @ ..] => self.init(nodes).await,
            ["learner", id, address] => self.add_learner(id, address).await,
            ["members", ref ids @ ..] => self.change_members(ids).await,
            ["full"] => {
                self.space.use_up();
                Ok("ok".to_owned())
            }
            ["bench", outstanding, count] => self.bench(outstanding, count).await,
            _ => Err("no such request; see the documentation of `lines`".into()),
        };
        answered.unwrap_or_else(|error| format!("unknown {error}"))
    }

    /// Names the leader if it is another node, before anything is done.
    fn elsewhere(&self) -> Option<String> {
        if self.raft.is_leader() {
            return None;
        }
        let leader = self.raft.metrics().borrow_watched().current_leader;
        Some(match leader {
            Some(leader) if leader != *self.raft.node_id() => format!("elsewhere {leader}"),
            _ => "elsewhere -".to_owned(),
        })
    }

    async fn put(&self, key: &str, value: &str) -> String {
        if let Some(elsewhere) = self.elsewhere() {
            return elsewhere;
        }
        let put = Put {
            key: key.to_owned(),
            value: value.to_owned(),
        };
        match self.raft.client_write(put).await {
            Ok(_) => "ok".to_owned(),
            // The write may be in the log of a node that leads next.
            Err(error) => format!("unknown {error}"),
        }
    }

    async fn get(&self, key: &str) -> String {
        if let Some(elsewhere) = self.elsewhere() {
            return elsewhere;
        }
        if let Err(error) = self.raft.ensure_linearizable(ReadPolicy::ReadIndex).await {
            return format!("unknown {error}");
        }
        match self.machine.get(key) {
            Ok(Some(value)) => format!("value {value}"),
            Ok(None) => "none".to_owned(),
            Err(error) => format!("unknown {error}"),
        }
    }

    fn status(&self) -> String {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let leader = match metrics.current_leader {
            Some(leader) => leader.to_string(),
            None => "-".to_owned(),
        };
        let applied = metrics.last_applied.map_or(0, |applied| applied.index());
        format!(
            "leader {leader}, term {}, applied {applied}",
            metrics.current_term
        )
    }

    async fn init(&self, nodes: &[&str]) -> Result<String, Failure> {
        let mut members = BTreeMap::new();
        for node in nodes {
            let (id, address) = node.split_once('=').ok_or("expected ID=ADDRESS")?;
            members.insert(id.parse::<u64>()?, BasicNode::new(address));
        }
        self.raft.initialize(members).await?;
        Ok("ok".to_owned())
    }

    async fn add_learner(&self, id: &str, address: &str) -> Result<String, Failure> {
        let node = BasicNode::new(address);
        self.raft.add_learner(id.parse()?, node, true).await?;
        Ok("ok".to_owned())
    }

    /// Makes these nodes the voters; earlier voters still get the log.
    async fn change_members(&self, ids: &[&str]) -> Result<String, Failure> {
        let mut members = Vec::new();
        for id in ids {
            members.push(id.parse::<u64>()?);
        }
        self.raft.change_membership(members, true).await?;
        Ok("ok".to_owned())
    }

    async fn bench(&self, outstanding: &str, count: &str) -> Result<String, Failure> {
        let (outstanding, count): (u64, u64) = (outstanding.parse()?, count.parse()?);
        let each = (count / outstanding.max(1)).max(1);
        let mut writers = JoinSet::new();
        let start = Instant::now();
        for number in 0..outstanding {
            let raft = self.raft.clone();
            writers.spawn(async move {
                let mut laps = Vec::new();
                for _ in 0..each {
                    let put = Put {
                        key: format!("bench {number}"),
                        value: "0123456789abcdef".repeat(4),
                    };
                    let start = Instant::now();
                    match raft.client_write(put).await {
                        Ok(_) => laps.push(start.elapsed()),
                        Err(error) if error.forward_to_leader().is_some() => return Ok(None),
                        Err(error) => return Err(error.into()),
                    }
                }
                Ok::<_, Failure>(Some(laps))
            });
        }
        let mut laps = Vec::new();
        while let Some(ended) = writers.join_next().await {
            match ended?? {
                Some(of_one) => laps.extend(of_one),
                None => return Ok(DEPOSED.to_owned()),
            }
        }
        let rate = laps.len() as f64 / start.elapsed().as_secs_f64();
        laps.sort_unstable();
        let middle = laps.get(laps.len() / 2).ok_or("nothing was written")?;
        Ok(format!("rate {rate:.0} p50 {}", middle.as_micros()))
    }
}

/// The end of a client.
#[derive(Debug)]
pub struct Lines {
    stream: BufReader<TcpStream>,
}

impl Lines {
    /// Connects to a node.
    ///
    /// # Errors
    ///
    /// No process listens there.
    pub async fn connect(address: &str) -> io::Result<Lines> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Lines {
            stream: BufReader::new(stream),
        })
    }

    /// Asks, and returns the answer.
    ///
    /// # Errors
    ///
    /// The connection broke: whether the node has done the request is unknown.
    pub async fn ask(&mut self, request: &str) -> io::Result<String> {
        self.stream
            .write_all(format!("{request}\n").as_bytes())
            .await?;
        let mut answer = String::new();
        self.stream.read_line(&mut answer).await?;
        match answer.strip_suffix('\n') {
            Some(answer) => Ok(answer.to_owned()),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// The answer to `bench` of a node that lost its leadership meanwhile.
pub(crate) const DEPOSED: &str = "deposed";

const MAX_LINE_BYTES: u64 = 64 << 10;
