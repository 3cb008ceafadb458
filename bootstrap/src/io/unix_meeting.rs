//! The Unix sockets of a handshake, until both ends have their two: the dialer connects them, and the
//! acceptor picks them out of all that connect.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use rustix::event::epoll::EventFlags;

use super::epoll_set::EpollEntry;
use super::reserve::Reserve;
use super::socket_name::{SocketName, UnixListener};
use super::unix::{self, PassedDatagram, SocketPurpose, UnixPair, UnixPeer};
use crate::handshake::Handshake;
use crate::identity::Secret;
use crate::unix_sockets::UnixSettings;

/// The Unix sockets of a handshake, in its epoll set.
pub(super) struct UnixMeeting {
    settings: UnixSettings,
    /// Both connections to the peer. At the dialer only the machine knows whether the answer came.
    pub(super) pair: Option<UnixPair>,

    // The acceptor's.
    listener: Option<UnixListener>,
    /// Connections that have presented nothing yet, oldest first.
    visitors: VecDeque<UnixPeer>,
    /// The connection with the token that will carry the bells, until the other connection comes.
    bells: Option<UnixPeer>,
    /// Descriptors for the sockets that are not there yet.
    reserve: Reserve,
}

impl UnixMeeting {
    pub(super) fn new(settings: &UnixSettings) -> UnixMeeting {
        UnixMeeting {
            settings: settings.clone(),
            pair: None,
            listener: None,
            visitors: VecDeque::new(),
            bells: None,
            reserve: Reserve::default(),
        }
    }

    /// Connects to the acceptor's socket and presents the token.
    pub(super) fn connect(
        &mut self,
        name: &[u8],
        in_directory: bool,
        token: &Secret,
        watch: EpollEntry<'_>,
    ) -> Result<(), String> {
        let name = SocketName::of(name, in_directory, &self.settings)?;
        let pair = UnixPair::connect(&name, token, &self.settings)?;
        watch
            .add(&pair.control, EventFlags::IN)
            .map_err(|error| format!("its Unix socket failed ({error})"))?;
        self.pair = Some(pair);
        Ok(())
    }

    /// Returns the acceptor's answer to the token; `None` while there is none.
    pub(super) fn answer(&mut self, watch: EpollEntry<'_>) -> Option<Result<(), String>> {
        let control = &self.pair.as_ref()?.control;
        let answer = control.answer()?;
        watch.remove(control);
        if answer.is_err() {
            self.pair = None;
        }
        Some(answer)
    }

    /// Listens for the dialer, with descriptors kept for its connections. The socket that listens
    /// takes the place of one that stays free.
    pub(super) fn listen(
        &mut self,
        name: &[u8],
        in_directory: bool,
        kept: Reserve,
        watch: EpollEntry<'_>,
    ) -> Result<(), String> {
        self.reserve = kept;
        let listening = SocketName::of(name, in_directory, &self.settings).and_then(|name| {
            let listener = unix::listen_at(name, &self.settings);
            let listener = listener.map_err(|error| error.to_string())?;
            let watched = watch.add(&listener, EventFlags::IN);
            watched.map_err(|error| error.to_string())?;
            Ok(listener)
        });
        let listener = listening.map_err(|why| format!("its Unix socket failed ({why})"))?;
        self.listener = Some(listener);
        Ok(())
    }

    /// Accepts a few connections, and shows the machine what is presented there.
    pub(super) fn hear_visitors(&mut self, machine: &mut Handshake, watch: EpollEntry<'_>) {
        let Some(listener) = &self.listener else {
            return;
        };
        self.reserve = Reserve::default();
        for _ in 0..VISITS_PER_TURN {
            let visitor = match unix::accept(listener, &self.settings) {
                Some(Ok(visitor)) => visitor,
                Some(Err(why)) => {
                    tracing::debug!(%why, "a connection to the Unix socket was closed");
                    continue;
                }
                None => break,
            };
            if watch.add(&visitor, EventFlags::IN).is_err() {
                continue;
            }
            if self.visitors.len() == MAX_VISITORS
                && let Some(oldest) = self.visitors.pop_front()
            {
                watch.remove(&oldest);
            }
            self.visitors.push_back(visitor);
        }
        for _ in 0..self.visitors.len() {
            let Some(visitor) = self.visitors.pop_front() else {
                break;
            };
            // The buffer is longer than a token, so that a longer datagram is not cut to look like
            // one.
            let mut buffer = [0; 64];
            match visitor.receive(&mut buffer) {
                PassedDatagram::Nothing => self.visitors.push_back(visitor),
                PassedDatagram::Bytes(length) => {
                    watch.remove(&visitor);
                    self.take_in(machine, visitor, &buffer[..length]);
                }
                PassedDatagram::Closed => watch.remove(&visitor),
            }
        }
    }

    /// Handles what a connection has presented. The dialer makes the bells' connection first, so it
    /// is here when the other comes.
    fn take_in(&mut self, machine: &mut Handshake, visitor: UnixPeer, datagram: &[u8]) {
        let Some((purpose, token)) = unix::presented(datagram) else {
            return;
        };
        // Only both connections together use the token up.
        if purpose == SocketPurpose::Bells && machine.knows_token(token) {
            self.bells = Some(visitor);
        } else if purpose == SocketPurpose::Control
            && self.bells.is_some()
            && machine.handle_token(token)
        {
            visitor.welcome();
            self.pair = self.bells.take().map(|bells| UnixPair {
                control: visitor,
                bells,
            });
        }
    }

    /// Takes every socket out of the epoll set, and closes those that are not the session's.
    pub(super) fn unwatch(&mut self, watch: EpollEntry<'_>) {
        if let Some(pair) = &self.pair {
            watch.remove(&pair.control);
        }
        if let Some(listener) = self.listener.take() {
            watch.remove(&listener);
        }
        for visitor in self.visitors.drain(..) {
            watch.remove(&visitor);
        }
        self.bells = None;
        self.reserve = Reserve::default();
    }

    /// Closes all sockets.
    pub(super) fn close(&mut self, watch: EpollEntry<'_>) {
        self.unwatch(watch);
        self.pair = None;
    }
}

/// The most connections to the Unix socket that a turn accepts, of whichever user: both connections
/// of a dialer. The socket stays ready while there are more.
const VISITS_PER_TURN: usize = 2;

/// The most connections of allowed users at the Unix socket that have presented no token yet.
const MAX_VISITORS: usize = 4;
