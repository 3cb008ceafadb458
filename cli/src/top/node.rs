//! Nodes that answer at their sockets.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::answer::Answer;
use crate::Failure;

/// A node that answers.
pub(crate) struct Node {
    pub(crate) path: PathBuf,
    pub(crate) connection: Connection,
    /// The first answer, as it came.
    pub(crate) line: String,
    /// The last answer, as it was read.
    pub(crate) answer: Answer,
}

/// A connection to a node's socket.
pub(crate) struct Connection(BufReader<UnixStream>);

/// The nodes that are looked for.
enum Wanted<'a> {
    All,
    Process(u32),
    Socket(&'a Path),
}

impl<'a> Wanted<'a> {
    fn new(text: Option<&'a str>) -> Result<Self, Failure> {
        let Some(text) = text else {
            return Ok(Self::All);
        };
        if let Ok(pid) = text.parse() {
            return Ok(Self::Process(pid));
        }
        let path = Path::new(text);
        if text.contains('/') || path.exists() {
            return Ok(Self::Socket(path));
        }
        Err(Failure::usage(format!(
            "`{text}` is neither the number of a process nor the path of a socket; `ibex top` alone \
             shows or lists the nodes of this user"
        )))
    }
}

/// Returns the nodes of that process or socket, or all nodes of this user: one at least.
pub(crate) fn find(wanted: Option<&str>) -> Result<Vec<Node>, Failure> {
    let wanted = Wanted::new(wanted)?;
    let nodes: Vec<_> = match wanted {
        Wanted::Socket(path) => Node::at(path).map(|node| node.into_iter().collect()),
        Wanted::All | Wanted::Process(_) => find_in_folders(&wanted),
    }
    .map_err(Failure::said)?;
    match nodes.is_empty() {
        true => Err(Failure {
            text: nothing(&wanted),
            code: 4,
        }),
        false => Ok(nodes),
    }
}

fn find_in_folders(wanted: &Wanted<'_>) -> Result<Vec<Node>, String> {
    let sockets = ibex::inspect::sockets()
        .map_err(|error| format!("the folder of sockets cannot be read: {error}"))?;
    let is_wanted = |path: &&PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let pid = name.split('-').next().and_then(|pid| pid.parse().ok());
        matches!(wanted, Wanted::All) || matches!(wanted, Wanted::Process(of) if pid == Some(*of))
    };
    let nodes = sockets.iter().filter(is_wanted).map(|path| Node::at(path));
    nodes.filter_map(Result::transpose).collect()
}

/// Says why there is no such node, and what to do.
fn nothing(wanted: &Wanted<'_>) -> String {
    let folders = ibex::inspect::folders();
    let folders: Vec<_> = folders
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    let searched = format!(
        "looked in {}; build the node with `Node::builder().inspect()` (ibex's feature `inspect`, and \
         `use ibex::prelude::*`), run `ibex top` as the same user, and name the socket's path if it is \
         elsewhere",
        folders.join(", ")
    );
    match wanted {
        Wanted::All => format!("no node of this user that runs can be inspected: {searched}"),
        Wanted::Process(pid) if !Path::new(&format!("/proc/{pid}")).exists() => {
            format!(
                "no process {pid} runs here; `ibex top` alone shows or lists the nodes that run"
            )
        }
        Wanted::Process(pid) => {
            format!("process {pid} runs, and no node of it can be inspected: {searched}")
        }
        Wanted::Socket(path) => {
            let why = match path.metadata() {
                Ok(found) if found.file_type().is_socket() => {
                    "nobody listens at this socket: its node has ended"
                }
                Ok(_) => "this is no socket",
                Err(_) => "there is no such socket: its node has ended, or listens elsewhere",
            };
            format!(
                "{}: {why}; `ibex top` alone shows or lists the nodes that run",
                path.display()
            )
        }
    }
}

impl Node {
    /// Returns the node that listens at a path, if one does.
    fn at(path: &Path) -> Result<Option<Self>, String> {
        let socket = match UnixStream::connect(path) {
            Ok(socket) => socket,
            // The node has ended since, or its process was killed.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound
                ) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(format!("{}: {error}", path.display())),
        };
        let limited = socket.set_read_timeout(Some(PATIENCE));
        limited.map_err(|error| error.to_string())?;
        let mut connection = Connection(BufReader::new(socket));
        let named = |why: String| format!("{}: {why}", path.display());
        let (line, answer) = connection.answer().map_err(named)?;
        Ok(Some(Self {
            path: path.to_owned(),
            connection,
            line,
            answer,
        }))
    }
}

impl Connection {
    /// Asks for another answer.
    pub(crate) fn ask(&mut self) -> Result<Answer, String> {
        let asked = self.0.get_mut().write_all(b"\n");
        asked.map_err(|_| ENDED.to_owned())?;
        self.answer().map(|(_, answer)| answer)
    }

    fn answer(&mut self) -> Result<(String, Answer), String> {
        let mut line = String::new();
        let read = (&mut self.0).take(MOST_BYTES).read_line(&mut line);
        match read {
            Ok(_) if line.ends_with('\n') => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(format!(
                    "the node does not answer within {} s; its process may be stopped, or serve 8 \
                     others already",
                    PATIENCE.as_secs()
                ));
            }
            _ => return Err(ENDED.to_owned()),
        }
        let strange = |error| format!("what answers is no node: {error}");
        let value: Value = serde_json::from_str(&line).map_err(strange)?;
        match &value["version"] {
            version if *version == 1 => {}
            other => {
                return Err(format!(
                    "the node answers in version {other}, and this program knows version 1; use \
                     the `ibex` of the node's release"
                ));
            }
        }
        let answer = serde_json::from_value(value).map_err(strange)?;
        Ok((line, answer))
    }
}

const ENDED: &str = "the node has ended";
/// The time that a node has for an answer. It answers at once, unless its process is stopped.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest answer that is read: many times that of a node with all sessions that it may have.
const MOST_BYTES: u64 = 1 << 30;
