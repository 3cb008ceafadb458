//! Types that may be moved to another thread, and types that may be shared between threads.
//!
//! The test is a table that compiles. Lines with `not` use a trick: a type that implemented the
//! trait would make the call ambiguous.
#![forbid(unsafe_code)]

use ibex::{
    ChannelBuilder, CloseReport, ConnectError, Counts, EndCause, Event, Events, FanIn, FanInEvent,
    ListenError, Loan, Message, Node, NodeBuilder, OpenError, Peer, PeerAt, PeerId, Pod, Publisher,
    Raw, Receiver, RecvError, Select, SendError, Sender, Serde, VersionedReceiver, VersionedSender,
    Versions, WaitError,
    discovery::{Peers, PeersEvent, PeersEvents},
    group::Group,
    log::{LogGroup, LogSender},
    stats::{NodeStats, SessionStats},
};

#[ibex::message]
struct Entry {
    offset: u64,
    data: Vec<u8>,
}

fn is_send<T: Send>() {}
fn is_sync<T: Sync>() {}
fn is_clone<T: Clone>() {}
fn is_static<T: 'static>() {}
fn is_error<T: std::error::Error + Send + Sync + 'static>() {}

/// Compiles only if the type does not implement the trait.
macro_rules! is_not {
    ($name:ident: $trait:ident, $type:ty) => {{
        trait $name<A> {
            fn ask() {}
        }
        impl<T: ?Sized> $name<()> for T {}
        struct Implemented;
        impl<T: ?Sized + $trait> $name<Implemented> for T {}
        <$type as $name<_>>::ask();
    }};
}

#[test]
fn nodes_and_peers_are_shared_freely() {
    is_send::<Node>();
    is_sync::<Node>();
    is_send::<Peer>();
    is_sync::<Peer>();
    is_clone::<Peer>();
    is_send::<Peers>();
    is_sync::<Peers>();
    is_send::<PeerAt>();
    is_sync::<PeerAt>();
    is_send::<PeerId>();
    is_sync::<PeerId>();
    is_send::<NodeBuilder>();
    is_send::<ChannelBuilder>();
}

#[test]
fn handles_move_between_threads() {
    is_send::<Sender<Entry>>();
    is_send::<Sender<[u8], Raw>>();
    is_send::<Sender<u64, Pod>>();
    is_send::<LogSender<u64, Pod>>();
    is_send::<LogGroup<u64, Pod>>();
    is_clone::<Sender<Entry>>();
    is_send::<Receiver<Entry>>();
    is_send::<Receiver<[u8], Raw>>();
    is_send::<<&'static mut Receiver<Entry, ibex::Rkyv> as IntoIterator>::IntoIter>();
    is_static::<Sender<Entry>>();
    is_static::<Receiver<Entry>>();
    is_send::<VersionedSender<Entry, u64>>();
    is_send::<VersionedReceiver<Entry, u64>>();
    is_send::<Group<Entry>>();
    is_static::<Group<Entry>>();
    is_send::<Publisher<Entry>>();
    is_static::<Publisher<Entry>>();
    is_send::<FanIn<Entry>>();
    is_static::<FanIn<Entry>>();
    is_send::<Select>();
    is_send::<Events>();
    is_clone::<Events>();
    is_send::<PeersEvents>();
    is_clone::<PeersEvents>();
    is_send::<PeersEvent>();
    is_not!(Cloned: Clone, FanIn<Entry>);
    is_not!(Cloned: Clone, Group<Entry>);
    is_not!(Cloned: Clone, Publisher<Entry>);
    is_not!(Cloned: Clone, VersionedReceiver<Entry, u64>);
    is_not!(Cloned: Clone, Receiver<Entry>);
    is_not!(Cloned: Clone, Receiver<[u8], Raw>);
}

/// A handle keeps no message, so this holds for every type that can be sent at all: it needs no `T:
/// Send`.
#[test]
fn handles_move_whatever_the_message_is() {
    fn moves<T>()
    where
        ibex::Rkyv: ibex::Codec<T>,
    {
        is_send::<Sender<T>>();
        is_send::<Receiver<T>>();
    }
    moves::<Entry>();
}

#[test]
fn messages_go_where_they_like() {
    is_send::<Message<Entry>>();
    is_sync::<Message<Entry>>();
    is_static::<Message<Entry>>();
    is_send::<Message<[u8], Raw>>();
    is_static::<Message<[u8], Raw>>();
    is_send::<Versions<Message<Entry>, Message<u64>>>();
    is_static::<Versions<Message<Entry>, Message<u64>>>();
    is_send::<Message<u64, Pod>>();
    is_send::<FanInEvent<Message<Entry>>>();
    is_send::<Message<String, Serde>>();
    is_sync::<Message<String, Serde>>();
    is_not!(Cloned: Clone, Message<Entry>);
}

#[test]
fn a_reservation_belongs_to_its_sender() {
    is_not!(Cloned: Clone, Loan<'static>);
    is_not!(Copied: Copy, Loan<'static>);
}

#[test]
fn errors_pass_question_marks_into_boxed_errors() {
    is_error::<ConnectError>();
    is_error::<RecvError>();
    is_error::<WaitError>();
    is_error::<SendError>();
    is_error::<ListenError>();
    is_error::<OpenError>();
}

#[test]
fn reports_are_plain_data() {
    is_send::<CloseReport>();
    is_sync::<CloseReport>();
    is_send::<Counts>();
    is_send::<EndCause>();
    is_sync::<EndCause>();
    is_send::<Event>();
    is_sync::<Event>();
    is_send::<NodeStats>();
    is_sync::<NodeStats>();
    is_send::<SessionStats>();
    is_sync::<SessionStats>();
}
