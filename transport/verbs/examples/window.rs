//! A memory window: one end lets the other into a part of its memory for one exchange.
//!
//! ```text
//! cargo run -p ibex-verbs --features fake --example window
//! cargo run -p ibex-verbs --features libibverbs --example window -- rxe0
//! ```
//!
//! The owner binds a window and tells its key. The guest writes there, and then sends a message that
//! takes the key away. A second write breaks the connection.

#[path = "common/mod.rs"]
mod common;

use std::env;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::Outcome;
use common::ends::{End, connected};
use ibex_verbs::{
    BindRequest, ConnectionSettings, Device, MemoryWindow, Operation, ReceiveRequest, RegionAccess,
    RemoteAddress, RemoteKey, SendRequest, WindowKind, WindowState, WorkId,
};

/// The part of the owner's memory, and a place for the guest's number.
const GRANTED: usize = 64;
const NUMBER: usize = 0;

/// Lets the peer into eight bytes; returns where.
fn grant(owner: &mut End, window: &mut MemoryWindow) -> Outcome<RemoteAddress> {
    let id = WorkId::new(Operation::Window, 0, 0);
    let part = GRANTED..GRANTED + 8;
    let bind = BindRequest::new(id, part, RegionAccess::REMOTE_WRITE).peer_invalidates();
    let place = owner.pair.bind_window(window, &owner.memory, &bind)?;
    let completion = owner.wait()?;
    owner.pair.retire_sends(1);
    assert!(window.take(&completion)?);
    Ok(place)
}

/// Posts a receive for a message without bytes.
fn post_receive(end: &mut End) -> Outcome {
    let id = WorkId::new(Operation::Receive, 0, 0);
    let mut batch = end.pair.receive_queue().expect("its own").batch();
    batch.push(&ReceiveRequest::new(id, &[]))?;
    batch.post()?;
    Ok(())
}

/// Writes a number to a place of the peer.
fn write(guest: &mut End, number: u64, place: RemoteAddress) -> Outcome {
    guest.number(NUMBER).store(number, Ordering::Relaxed);
    let memory = Arc::clone(&guest.memory);
    let entries = [memory.entry(NUMBER..NUMBER + 8)];
    let id = WorkId::new(Operation::Write, 0, 0);
    post(guest, &SendRequest::write(id, &entries, place))
}

/// Sends a message that takes a key away.
fn give_back(guest: &mut End, key: RemoteKey) -> Outcome {
    let id = WorkId::new(Operation::Send, 0, 0);
    post(guest, &SendRequest::send_with_invalidate(id, &[], key))
}

fn post(end: &mut End, request: &SendRequest<'_, '_>) -> Outcome {
    let mut batch = end.pair.send_batch();
    batch.push(&request.signaled())?;
    batch.post()?;
    end.wait()?;
    end.pair.retire_sends(1);
    Ok(())
}

/// Does all of it on a device.
pub(crate) fn run(device: &Device) -> Outcome {
    let [mut owner, mut guest] = connected(device, ConnectionSettings::default())?;
    let mut window = MemoryWindow::new(&owner.domain, WindowKind::Two)?;
    post_receive(&mut owner)?;
    let place = grant(&mut owner, &mut window)?;
    println!(
        "the window is {:?}, with the key {:#x}",
        window.state(),
        place.rkey
    );

    write(&mut guest, 7, place)?;
    give_back(&mut guest, place.key())?;
    let message = owner.wait()?;
    assert!(window.note_invalidated(&message));
    let written = owner.number(GRANTED).load(Ordering::Relaxed);
    println!(
        "the guest wrote {written}, and the window is {:?}",
        window.state()
    );
    assert_eq!((written, window.state()), (7, WindowState::Free));

    match write(&mut guest, 8, place) {
        Ok(()) => Err("the key is still valid".into()),
        Err(error) => {
            println!("then: {error}");
            Ok(())
        }
    }
}

fn main() -> Outcome {
    let provider = common::provider()?;
    run(&common::open(&provider, env::args().nth(1).as_deref())?)
}
