//! The thread that answers at a node's socket, and sleeps while nobody asks.

use std::{
    fs, io, mem,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
};

use ibex_core::{
    ListenError,
    extend::{NodeView, errors, fork, threads, user_of_peer, warn_limited},
};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io::{Errno, retry_on_intr, write},
    net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send},
    process::geteuid,
};

use crate::{
    answer::answer,
    socket_place::{SocketPlace, UnusablePath, next_step},
};

/// A node's socket and its thread. Dropping it removes the socket and ends the thread.
pub(crate) struct Inspector {
    path: PathBuf,
    /// An event, which ends the thread.
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Inspector {
    /// Listens at `place`, and answers what there is to see. `None` if there can be no inspector at
    /// the default place, which the log then tells: the node does its work in any case.
    pub(crate) fn start(place: &SocketPlace, view: NodeView) -> Result<Option<Self>, ListenError> {
        match Self::listen(place, view) {
            Err(error) if *place == SocketPlace::Default => {
                warn_limited!(error, %error, "the node begins, and nobody can inspect it");
                Ok(None)
            }
            started => started.map(Some),
        }
    }

    fn listen(place: &SocketPlace, view: NodeView) -> Result<Self, ListenError> {
        let listening = place.listen(view.name());
        let (listener, path) = listening.map_err(|UnusablePath { path, source }| {
            let (path, step) = (path.display(), next_step(&source));
            let text = format!("the node cannot be inspected at {path}: {source}; {step}");
            errors::no_part(io::Error::new(source.kind(), text))
        })?;
        // From here on, dropping this value removes the socket.
        let mut inspector = Self {
            path,
            stop: Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(io::Error::from)?),
            thread: None,
        };
        let server = Server {
            listener,
            stop: inspector.stop.clone(),
            clients: Vec::new(),
            view,
        };
        inspector.thread = Some(threads::spawn("ibex-inspect", move || server.run())?);
        Ok(inspector)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Inspector {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if fork::is_child() {
            // The socket and the thread are the parent's.
            mem::forget((thread, self.stop.clone()));
            return;
        }
        let _ = fs::remove_file(&self.path);
        let is_notified = retry_on_intr(|| write(&self.stop, &1u64.to_ne_bytes())).is_ok();
        if let Some(thread) = thread.filter(|_| is_notified) {
            let _ = thread.join();
        }
    }
}

/// The state of the thread.
struct Server {
    listener: OwnedFd,
    stop: Arc<OwnedFd>,
    /// Clients that are connected, at most [`MOST_CLIENTS`], the one that asked last at the end.
    clients: Vec<OwnedFd>,
    view: NodeView,
}

/// The end of a client's connection, or of the node.
struct InspectionEnded;

impl Server {
    fn run(mut self) {
        // True after no connection could be accepted, for a second: the process may lack
        // descriptors, and the listener stays readable.
        let mut pauses = false;
        loop {
            let (stopped, connected, clients) = self.wait(pauses);
            pauses = false;
            if stopped {
                return;
            }
            let mut speaks = clients.into_iter();
            let clients = mem::take(&mut self.clients).into_iter();
            let (asking, silent): (Vec<_>, _) =
                clients.partition(|_| speaks.next().unwrap_or(false));
            self.clients = silent;
            for client in asking {
                if self.hear(&client).is_ok() {
                    self.clients.push(client);
                }
            }
            if connected {
                pauses = !self.accept();
            }
        }
    }

    /// Sleeps until the node ends, somebody connects or a client says something. Returns whether the
    /// first and the second have come, and the same for each client.
    fn wait(&self, pauses: bool) -> (bool, bool, Vec<bool>) {
        let fds = [self.stop.as_fd(), self.listener.as_fd()].into_iter();
        let fds = fds.chain(self.clients.iter().map(AsFd::as_fd));
        let mut fds: Vec<_> = fds
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        if pauses {
            fds[1] = PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::empty());
        }
        let _ = retry_on_intr(|| poll(&mut fds, pauses.then_some(&PATIENCE)));
        let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
        let stopped = ready.next().unwrap_or(true);
        let connected = ready.next().unwrap_or(false) && !pauses;
        (stopped, connected, ready.collect())
    }

    /// Lets a client in and answers it, in place of the one that has been silent for longest if
    /// there are many. Returns whether that may be tried again at once.
    fn accept(&mut self) -> bool {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let client = match accept_with(&self.listener, flags) {
            Ok(client) => client,
            Err(error) => return matches!(error, Errno::AGAIN | Errno::INTR | Errno::CONNABORTED),
        };
        let user = user_of_peer(client.as_fd());
        let may_ask = user.is_ok_and(|user| user == geteuid().as_raw() || user == ROOT);
        if may_ask && self.answer(client.as_fd()).is_ok() {
            if self.clients.len() == MOST_CLIENTS {
                self.clients.remove(0);
            }
            self.clients.push(client);
        }
        true
    }

    /// Reads what a client says, and answers an empty line. Several of them that came together are
    /// answered once.
    fn hear(&self, client: &OwnedFd) -> Result<(), InspectionEnded> {
        let mut bytes = [0; MOST_BYTES];
        match recv(client, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((_, length)) if length > 0 && bytes[..length].iter().all(|byte| *byte == b'\n') => {
                self.answer(client.as_fd())
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Ok(_) | Err(_) => Err(InspectionEnded),
        }
    }

    fn answer(&self, client: BorrowedFd<'_>) -> Result<(), InspectionEnded> {
        let answer = answer(&self.view);
        let mut rest = answer.as_bytes();
        while !rest.is_empty() {
            match send(client, rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => rest = &rest[sent..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.await_room(client)?,
                Err(_) => return Err(InspectionEnded),
            }
        }
        Ok(())
    }

    /// Waits until a client has read something. It may take a second, in which others wait.
    fn await_room(&self, client: BorrowedFd<'_>) -> Result<(), InspectionEnded> {
        let mut fds = [
            PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(client, PollFlags::OUT),
        ];
        let _ = retry_on_intr(|| poll(&mut fds, Some(&PATIENCE)));
        let has_room = fds[0].revents().is_empty() && fds[1].revents().contains(PollFlags::OUT);
        has_room.then_some(()).ok_or(InspectionEnded)
    }
}

/// Clients that are served at a time.
const MOST_CLIENTS: usize = 8;
/// Bytes that are read of a client at a time.
const MOST_BYTES: usize = 64;
/// Time for which a client may leave its answer unread, and after which a lack of descriptors may
/// be over.
const PATIENCE: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};
const ROOT: u32 = 0;
