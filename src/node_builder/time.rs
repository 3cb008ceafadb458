//! The settings of a node's times.
#![forbid(unsafe_code)]

use std::time::Duration;

use super::NodeBuilder;
#[allow(unused_imports, reason = "the documentation speaks of it")]
use crate::Node;
use crate::setting::settings;

settings! {
    /// How long a node waits for its peers.
    pub(crate) struct TimeSettings in NodeBuilder, |self| self.settings.time;

    /// Limits how long `connect` tries.
    #[default(10 s)] #[range(1 ms..)]
    /// [`Duration::MAX`] is for ever.
    ///
    /// "Connection refused" counts as "not yet there". Another protocol, or a refusal by the peer,
    /// ends the attempt at once. A longer time-out tolerates peers that start later, and reports
    /// later those that never do.
    pub fn connect_timeout(timeout: Duration);

    /// Limits how long a connected peer may take to agree on a session.
    #[default(5 s)] #[range(10 ms..)]
    /// `connect_timeout` ends a handshake earlier if it is shorter. A longer time-out tolerates
    /// slower peers. A silent peer then keeps one of the listener's 256 places for handshakes for
    /// as long.
    pub fn handshake_timeout(timeout: Duration);

    /// Limits how long dropping the node may take to deliver what was sent.
    #[default(1 s)] #[range(0 s..)]
    /// [`Duration::MAX`] is for ever. A shorter time loses messages that a slow peer has not taken,
    /// and drop cannot report them: [`Node::close`] does.
    pub fn linger(time: Duration);

    /// Sets how long a peer's host may leave sent data unanswered before its connection counts as
    /// broken.
    #[default(3 s)] #[range(1 s..)]
    /// The engine looks once a second.
    ///
    /// A shorter time notices a dead network sooner, and mistakes a lossy one for it: the kernel
    /// repeats a lost packet after 0.2 s, and then after twice as long each time. The host of a
    /// peer that is stopped, or does not read, still answers. An end that sends nothing notices by
    /// TCP's keepalive, after 19 s.
    pub fn notice_timeout(timeout: Duration);

    /// Sets how long a session whose connection broke waits for another. Until then its handles go
    /// on or wait; after that the peer is [gone](crate::EndCause::PeerGone).
    #[default(30 s)] #[range(10 ms..)]
    /// [`Duration::MAX`] is for ever. A longer time survives longer outages. The node keeps sent
    /// messages for this time, and calls without a time-out of their own wait for as long.
    pub fn session_timeout(timeout: Duration);

    /// Sets how long the host of a suspended peer may refuse connections until the peer counts as
    /// [gone](crate::EndCause::PeerGone), if this node dials.
    #[default(5 s)] #[range(10 ms..)]
    /// [`Duration::MAX`] leaves the decision to [`session_timeout`](Self::session_timeout).
    ///
    /// A refusal says that no process listens at the peer's address. Then the peer's process has
    /// ended, in most cases, and nothing brings the session back: a process that is started in its
    /// place is another run, and gets a session of its own. Only refusals in a row count, so any
    /// other answer, or none, begins the count anew. The end of the session is not
    /// [certain](crate::EndCause::PeerGone), since a refusal may also come from a proxy, a load
    /// balancer or a packet filter before a living peer. A longer time survives a longer restart of
    /// such a device.
    pub fn peer_gone_after(time: Duration);

    /// Sets how long a session over verbs asks for another queue pair when its queue pair, device
    /// or connection broke. After that it goes on over TCP.
    #[default(1 s)] #[range(0 s..)]
    /// Most interruptions are over within the default; 0 is TCP at once, and [`Duration::MAX`] is
    /// verbs or nothing.
    ///
    /// The setting of the end that connected holds. Policies come first: the session does not go to
    /// TCP if [`fabric`](Self::fabric) excludes it at either node.
    ///
    /// While the session asks, it moves nothing: senders go on until their windows are full, and
    /// calls wait longer. With a shorter time, a brief interruption costs the session its queue
    /// pair, for good or until it [goes back](Self::fail_back).
    pub fn fail_over_after(time: Duration);
}
