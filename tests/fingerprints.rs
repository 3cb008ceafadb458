//! The conditions under which two ends of a channel agree on the messages, tested through the whole
//! library.
//!
//! A type may move to another module or crate and be renamed: a channel still opens. Any change in
//! the meaning of its bytes is a mismatch, which both ends get at open, with both types.

mod processes;

use std::process::ExitCode;

use ibex::{Codec, RecvErrorKind, SendErrorKind, Serde};
use processes::{Party, Proof, Setup};

/// The type in one program.
mod ours {
    #[ibex::message]
    pub(crate) struct Entry {
        pub(crate) offset: u64,
        pub(crate) size: u32,
        pub(crate) origin: Origin,
    }

    #[ibex::message]
    pub(crate) enum Origin {
        Local,
        Peer { id: u32 },
    }
}

/// The type as another crate would have it, with other paths and names.
mod moved {
    pub(crate) mod wire {
        #[ibex::message]
        pub(crate) struct LogEntry {
            pub(crate) offset: u64,
            pub(crate) size: u32,
            pub(crate) origin: super::source::Source,
        }
    }
    pub(crate) mod source {
        #[ibex::message]
        pub(crate) enum Source {
            Local,
            Peer { id: u32 },
        }
    }
}

/// A foreign type, and channels of it whose ends give it a name.
mod foreign {
    use ibex::serde::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize)]
    #[serde(crate = "ibex::serde")]
    pub(crate) struct Append {
        pub(crate) term: u64,
        pub(crate) entries: Vec<String>,
    }

    #[derive(Serialize, Deserialize, ibex::Schema)]
    #[serde(crate = "ibex::serde")]
    pub(crate) struct Named(#[ibex(schema_name = "raft-0.10")] pub(crate) Append);

    /// The type on another host, which has it elsewhere.
    #[derive(Serialize, Deserialize, ibex::Schema)]
    #[serde(crate = "ibex::serde")]
    pub(crate) struct Moved(#[ibex(schema_name = "raft-0.10")] pub(crate) Append);

    #[derive(Serialize, Deserialize, ibex::Schema)]
    #[serde(crate = "ibex::serde")]
    pub(crate) struct Newer(#[ibex(schema_name = "raft-0.11")] pub(crate) Append);
}

/// Declares a changed type in a module of its own.
macro_rules! changed {
    ($($module:ident { $($item:item)* })*) => {$(
        #[allow(dead_code, reason = "only the type's shape counts")]
        mod $module {
            #[allow(unused_imports, reason = "some changes are to the enum")]
            use super::ours::Origin;
            $(#[ibex::message] $item)*
        }
    )*};
}

changed! {
    reordered { pub(crate) struct Entry { size: u32, offset: u64, origin: Origin } }
    renamed { pub(crate) struct Entry { position: u64, size: u32, origin: Origin } }
    widened { pub(crate) struct Entry { offset: u64, size: u64, origin: Origin } }
    nested {
        pub(crate) struct Entry { offset: u64, size: u32, origin: Nested }
        pub(crate) enum Nested { Local, Peer { id: u64 } }
    }
    variant_inserted {
        pub(crate) struct Entry { offset: u64, size: u32, origin: Inserted }
        pub(crate) enum Inserted { Local, Relay, Peer { id: u32 } }
    }
}

fn main() -> ExitCode {
    let mut proofs = Vec::new();
    for setup in Setup::with_threads() {
        proofs.push(Proof::new("moved", setup, receive_moved, send_ours));
        proofs.push(Proof::new("changed", setup, refuse_changed, open_ours));
        proofs.push(Proof::new("named", setup, receive_named, send_named));
    }
    processes::run(proofs)
}

fn send_ours(party: &mut Party) {
    let mut sender = party.peer.sender::<ours::Entry>("entries").unwrap();
    let origin = ours::Origin::Peer { id: 3 };
    let last = sender
        .send(&ours::Entry {
            offset: 1,
            size: 2,
            origin,
        })
        .unwrap();
    let origin = ours::Origin::Local;
    sender
        .send(&ours::Entry {
            offset: 4,
            size: 5,
            origin,
        })
        .unwrap();
    sender.wait_acked(last + 1).unwrap();
}

fn receive_moved(party: &mut Party) {
    let mut receiver = party
        .peer
        .receiver::<moved::wire::LogEntry>("entries")
        .unwrap();
    let first = receiver.recv().unwrap();
    assert_eq!((first.offset.to_native(), first.size.to_native()), (1, 2));
    assert!(matches!(
        &first.origin,
        moved::source::ArchivedSource::Peer { id } if id.to_native() == 3
    ));
    first.ack();
    let second = receiver.recv().unwrap();
    assert!(matches!(
        second.origin,
        moved::source::ArchivedSource::Local
    ));
    second.ack();
    assert!(receiver.next().unwrap().is_none());
}

fn send_named(party: &mut Party) {
    let append = || foreign::Append {
        term: 7,
        entries: vec!["one".to_owned(), "two".to_owned()],
    };
    let same = party.peer.channel("same").codec::<Serde>();
    let mut same = same.sender::<foreign::Named>().unwrap();
    let last = same.send(&foreign::Named(append())).unwrap();
    same.wait_acked(last).unwrap();
    let other = party.peer.channel("other").codec::<Serde>();
    let mut other = other.sender::<foreign::Named>().unwrap();
    match other.send(&foreign::Named(append())) {
        Err(error) if error.kind() == SendErrorKind::Mismatch => {
            check(&error.to_string(), [error.channel(), error.peer()]);
        }
        other => panic!("{other:?}"),
    }
    party.meet();
}

fn receive_named(party: &mut Party) {
    let same = party.peer.channel("same").codec::<Serde>();
    let mut same = same.receiver::<foreign::Moved>().unwrap();
    let message = same.recv().unwrap();
    assert_eq!((message.0.term, message.0.entries.len()), (7, 2));
    message.ack();
    let other = party.peer.channel("other").codec::<Serde>();
    let mut other = other.receiver::<foreign::Newer>().unwrap();
    match other.recv() {
        Err(mismatch) if mismatch.kind() == RecvErrorKind::Mismatch => {
            check(&mismatch.to_string(), [mismatch.channel(), mismatch.peer()]);
            assert!(mismatch.to_string().contains("raft-0.11"));
        }
        other => panic!("{:?}", other.map(|message| message.sequence())),
    }
    party.meet();
}

const CHANGES: [&str; 5] = [
    "reordered",
    "renamed",
    "widened",
    "nested",
    "variant_inserted",
];

/// Opens channels of the unchanged type, for each of the changes.
fn open_ours(party: &mut Party) {
    let mut senders = CHANGES.map(|name| party.peer.sender::<ours::Entry>(name).unwrap());
    for sender in &mut senders {
        let origin = ours::Origin::Local;
        match sender.send(&ours::Entry {
            offset: 1,
            size: 2,
            origin,
        }) {
            Err(error) if error.kind() == SendErrorKind::Mismatch => {
                check(&error.to_string(), [error.channel(), error.peer()]);
            }
            other => panic!("{}: {other:?}", sender.name()),
        }
    }
    party.meet();
}

fn refuse_changed(party: &mut Party) {
    refuse::<reordered::Entry>(party, "reordered");
    refuse::<renamed::Entry>(party, "renamed");
    refuse::<widened::Entry>(party, "widened");
    refuse::<nested::Entry>(party, "nested");
    refuse::<variant_inserted::Entry>(party, "variant_inserted");
    party.meet();
}

fn refuse<T>(party: &Party, name: &str)
where
    ibex::Rkyv: Codec<T>,
{
    let mut receiver = party.peer.receiver::<T>(name).unwrap();
    match receiver.next() {
        Err(error) if error.kind() == RecvErrorKind::Mismatch => {
            check(&error.to_string(), [error.channel(), error.peer()]);
        }
        Err(other) => panic!("{name}: {other}"),
        Ok(message) => panic!("{name}: {:?}", message.map(|message| message.sequence())),
    }
}

/// Checks that the error shows the peer and the types of both ends.
fn check(text: &str, subject: [Option<&str>; 2]) {
    for part in subject {
        let part = part.expect("the channel and the peer");
        assert!(text.contains(part), "{part:?} is missing in {text:?}");
    }
    let types = text
        .split_once("; here ")
        .expect("the types of both ends")
        .1;
    let (types, _) = types.split_once("; no message").expect("nothing was sent");
    let (ours, theirs) = types.split_once(", there ").expect("two types");
    let parts = [ours, theirs].map(|one| one.split_once(" [").expect("schema and fingerprint"));
    let [(our_schema, our_fingerprint), (schema, fingerprint)] = parts;
    assert_ne!(our_schema, schema);
    assert_ne!(our_fingerprint, fingerprint);
}
