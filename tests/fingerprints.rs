//! What makes two ends of a channel mean the same messages, through the whole library.
//!
//! A type may move to another module or crate and be renamed; a channel opens all the
//! same. Any change of what its bytes mean is a mismatch, told at open to both ends, with
//! both types.

mod processes;

use std::process::ExitCode;

use ibex::{Codec, RecvError, SchemaMismatch, SendError};
use processes::{Party, Proof, Setup};

/// The type as one program has it.
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

/// The same, as another crate would have it: other path, other names of the types.
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

const CHANGES: [&str; 5] = [
    "reordered",
    "renamed",
    "widened",
    "nested",
    "variant_inserted",
];

/// One side has the type as it was, for each of the channels.
fn open_ours(party: &mut Party) {
    let mut senders = CHANGES.map(|name| party.peer.sender::<ours::Entry>(name).unwrap());
    for sender in &mut senders {
        let origin = ours::Origin::Local;
        match sender.send(&ours::Entry {
            offset: 1,
            size: 2,
            origin,
        }) {
            Err(SendError::Mismatch(mismatch)) => check(&mismatch),
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
        Err(RecvError::Mismatch(mismatch)) => check(&mismatch),
        Err(other) => panic!("{name}: {other}"),
        Ok(message) => panic!("{name}: {:?}", message.map(|message| message.sequence())),
    }
}

/// The error shows who, and what both ends have.
fn check(mismatch: &SchemaMismatch) {
    let (ours, theirs) = (&mismatch.ours.newest, &mismatch.theirs.newest);
    assert_ne!(ours.fingerprint, theirs.fingerprint);
    assert_ne!(ours.schema, theirs.schema);
    let text = mismatch.to_string();
    for part in [
        &mismatch.channel,
        &mismatch.peer,
        &ours.schema,
        &theirs.schema,
    ] {
        assert!(
            text.contains(part.as_str()),
            "{part:?} is missing in {text:?}"
        );
    }
}
