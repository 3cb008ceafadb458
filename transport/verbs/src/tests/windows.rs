//! Memory windows: each state, each refusal, and what a peer can reach in each.

use rustix::io::Errno;

use super::*;
use crate::{
    BindRequest, CompletionStatus, MemoryWindow, RemoteAddress, SendRequest, VerbsError,
    WindowError, WindowKind, WindowState, abi::wr_opcode, provider::fake::Call,
};

type Region = Arc<MemoryRegion<AnonymousMemory>>;

fn window_id(slot: u32) -> WorkId {
    WorkId::new(Operation::Window, slot, 1)
}

fn bindable(end: &End) -> Region {
    let access = RegionAccess::RECEIVE.and(RegionAccess::WINDOWS);
    Arc::new(MemoryRegion::register(&end.domain, memory(), access).unwrap())
}

/// Binds a window for writes and takes the completion.
fn bound(end: &mut End, window: &mut MemoryWindow, region: &Region, slot: u32) -> RemoteAddress {
    let request = BindRequest::new(window_id(slot), 1000..1016, RegionAccess::REMOTE_WRITE);
    let place = end.pair.bind_window(window, region, &request).unwrap();
    settle(end, window);
    assert_eq!(window.state(), WindowState::Bound);
    assert_eq!(window.remote(0), Some(place));
    place
}

/// Takes the completion of the window's request.
fn settle(end: &mut End, window: &mut MemoryWindow) {
    let done = end.poll();
    assert_eq!(window.take(&done[0]), Ok(true));
    end.pair.retire_sends(1);
}

/// Writes two bytes to a place of the peer. Returns whether it let them in.
fn write(end: &mut End, remote: RemoteAddress) -> Result<(), CompletionStatus> {
    put(&end.sends, 0, b"in");
    let entries = [end.sends.entry(0..2)];
    let mut batch = end.pair.send_batch();
    let write = SendRequest::write(send_id(0), &entries, remote).signaled();
    batch.push(&write).unwrap();
    batch.post().unwrap();
    end.pair.retire_sends(1);
    let done = end.poll();
    done[0]
        .outcome()
        .map(|_| ())
        .map_err(|failure| failure.status)
}

#[test]
fn bind_lets_a_peer_into_its_part_alone() {
    for kind in [WindowKind::One, WindowKind::Two] {
        let fake = one_device();
        let (mut one, mut other) = connected(&fake, USUAL);
        let region = bindable(&other);
        let mut window = MemoryWindow::new(&other.domain, kind).unwrap();
        assert_eq!(
            (window.state(), window.remote(0)),
            (WindowState::Free, None)
        );
        let place = bound(&mut other, &mut window, &region, 0);
        assert_eq!(place.address, region.remote(1000).address);
        assert_eq!(window.remote(15), Some(place.plus(15)));
        assert_eq!(window.remote(16), None);
        assert_eq!(write(&mut one, place.plus(14)), Ok(()));
        assert_eq!(get(&region, 1014, 2), b"in");
        // One byte of the two is behind the window.
        let refused = write(&mut one, place.plus(15));
        assert_eq!(refused, Err(CompletionStatus::RemoteAccess));
    }
}

#[test]
fn local_invalidate_takes_the_key_from_the_peer() {
    for kind in [WindowKind::One, WindowKind::Two] {
        let fake = one_device();
        let (mut one, mut other) = connected(&fake, USUAL);
        let region = bindable(&other);
        let mut window = MemoryWindow::new(&other.domain, kind).unwrap();
        let first = bound(&mut other, &mut window, &region, 0);
        assert_eq!(write(&mut one, first), Ok(()));
        other
            .pair
            .invalidate_window(&mut window, window_id(1))
            .unwrap();
        assert_eq!(window.state(), WindowState::Invalidating);
        assert_eq!(window.remote(0), None);
        settle(&mut other, &mut window);
        assert_eq!(window.state(), WindowState::Free);

        // The next binding has another key, and the old one stays invalid.
        let second = bound(&mut other, &mut window, &region, 2);
        assert_ne!(first.rkey, second.rkey);
        assert_eq!(write(&mut one, second), Ok(()));
        assert_eq!(write(&mut one, first), Err(CompletionStatus::RemoteAccess));
    }
}

#[test]
fn local_invalidate_of_a_window_that_is_binding_is_done_behind_the_binding() {
    let fake = one_device();
    let (mut one, mut other) = connected(&fake, USUAL);
    let region = bindable(&other);
    let mut window = MemoryWindow::new(&other.domain, WindowKind::Two).unwrap();
    let request = BindRequest::new(window_id(0), 0..16, RegionAccess::REMOTE_WRITE);
    fake.hold_sends(true);
    let pair = &mut other.pair;
    let place = pair.bind_window(&mut window, &region, &request).unwrap();
    pair.invalidate_window(&mut window, window_id(1)).unwrap();
    assert_eq!(window.state(), WindowState::Invalidating);
    fake.hold_sends(false);
    let done = other.poll();
    assert!(done.iter().all(|one| one.outcome().is_ok()));
    let taken = [0, 1].map(|at| window.take(&done[at]));
    assert_eq!(taken, [Ok(false), Ok(true)]);
    other.pair.retire_sends(2);
    assert_eq!(window.state(), WindowState::Free);
    let next = bound(&mut other, &mut window, &region, 2);
    assert_eq!(write(&mut one, next), Ok(()));
    assert_eq!(write(&mut one, place), Err(CompletionStatus::RemoteAccess));
}

#[test]
fn local_invalidate_of_what_is_not_bound_never_reaches_the_device() {
    for kind in [WindowKind::One, WindowKind::Two] {
        let fake = one_device();
        let (_one, mut other) = connected(&fake, USUAL);
        let region = bindable(&other);
        let mut window = MemoryWindow::new(&other.domain, kind).unwrap();
        let refused = |state| {
            Err(WindowError::State {
                what: "invalidated",
                state,
            })
        };
        let pair = &mut other.pair;
        let free = pair.invalidate_window(&mut window, window_id(0));
        assert_eq!(free, refused(WindowState::Free));

        let request = BindRequest::new(window_id(1), 0..8, RegionAccess::REMOTE_READ);
        pair.bind_window(&mut window, &region, &request).unwrap();
        if kind == WindowKind::One {
            let binding = pair.invalidate_window(&mut window, window_id(2));
            assert_eq!(binding, refused(WindowState::Binding));
        }
        settle(&mut other, &mut window);

        other
            .pair
            .invalidate_window(&mut window, window_id(3))
            .unwrap();
        let posted = fake.posted().len();
        let twice = other.pair.invalidate_window(&mut window, window_id(4));
        assert_eq!(twice, refused(WindowState::Invalidating));
        settle(&mut other, &mut window);
        let again = other.pair.invalidate_window(&mut window, window_id(5));
        assert_eq!(again, refused(WindowState::Free));
        assert_eq!(fake.posted().len(), posted);
        assert_eq!(
            again.unwrap_err().to_string(),
            "a memory window that is free cannot be invalidated: it is bound to nothing"
        );
    }
}

#[test]
fn send_with_invalidate_frees_the_window_at_the_peer() {
    let fake = one_device();
    let (mut one, mut other) = connected(&fake, USUAL);
    other.post_receives(2);
    let region = bindable(&other);
    let mut window = MemoryWindow::new(&other.domain, WindowKind::Two).unwrap();
    let access = RegionAccess::REMOTE_WRITE;
    let request = BindRequest::new(window_id(0), 0..8, access).peer_invalidates();
    let place = other
        .pair
        .bind_window(&mut window, &region, &request.fenced())
        .unwrap();
    settle(&mut other, &mut window);
    // The agreement is that the peer does it.
    let ours = other.pair.invalidate_window(&mut window, window_id(1));
    assert_eq!(ours, Err(WindowError::LeftToPeer));

    assert_eq!(write(&mut one, place), Ok(()));
    let mut batch = one.pair.send_batch();
    batch.push(&SendRequest::send(send_id(0), &[])).unwrap();
    let send = SendRequest::send_with_invalidate(send_id(1), &[], place.key()).signaled();
    batch.push(&send).unwrap();
    batch.post().unwrap();
    one.pair.retire_sends(2);
    assert!(one.poll()[0].outcome().is_ok());

    let arrived = other.poll();
    assert!(!window.note_invalidated(&arrived[0]));
    assert_eq!(window.state(), WindowState::Bound);
    assert_eq!(arrived[1].invalidated(), Some(place.key()));
    assert_eq!(arrived[1].outcome().unwrap().immediate, None);
    assert!(window.note_invalidated(&arrived[1]));
    assert_eq!(window.state(), WindowState::Free);
    assert!(!window.note_invalidated(&arrived[1]));
    assert_eq!(write(&mut one, place), Err(CompletionStatus::RemoteAccess));
}

#[test]
fn send_with_invalidate_is_noted_by_the_flag_of_soft_roce_too() {
    use crate::abi::{Wc, wc_flags, wc_opcode};

    let fake = one_device();
    let (_one, mut other) = connected(&fake, USUAL);
    let region = bindable(&other);
    let mut window = MemoryWindow::new(&other.domain, WindowKind::Two).unwrap();
    let place = bound(&mut other, &mut window, &region, 0);
    let notified = |flags, key| {
        WorkCompletion(Wc {
            opcode: wc_opcode::RECV,
            wc_flags: flags,
            imm_data: key,
            qp_num: other.pair.number(),
            ..Wc::default()
        })
    };
    let (other_flag, immediate) = (wc_flags::IP_CSUM_OK, wc_flags::WITH_IMM);
    assert!(!window.note_invalidated(&notified(other_flag, place.rkey + 1)));
    assert!(!window.note_invalidated(&notified(other_flag | immediate, place.rkey)));
    assert!(!window.note_invalidated(&notified(0, place.rkey)));
    assert!(window.note_invalidated(&notified(other_flag, place.rkey)));
    assert_eq!(window.state(), WindowState::Free);
}

#[test]
fn bind_window_of_type_one_goes_on_to_another_part_while_it_is_bound() {
    let fake = one_device();
    let (mut one, mut other) = connected(&fake, USUAL);
    let (first, second) = (bindable(&other), bindable(&other));
    let mut window = MemoryWindow::new(&other.domain, WindowKind::One).unwrap();
    let old = bound(&mut other, &mut window, &first, 0);
    let new = bound(&mut other, &mut window, &second, 1);
    // The window no longer keeps the first region.
    assert_eq!(
        (Arc::strong_count(&first), Arc::strong_count(&second)),
        (1, 2)
    );
    assert_eq!(write(&mut one, new), Ok(()));
    assert_eq!(write(&mut one, old), Err(CompletionStatus::RemoteAccess));

    let mut of_second = MemoryWindow::new(&other.domain, WindowKind::Two).unwrap();
    let (_more, mut fresh) = connected(&fake, USUAL);
    let refused = fresh.pair.bind_window(
        &mut of_second,
        &first,
        &BindRequest::new(window_id(2), 0..1, RegionAccess::REMOTE_READ),
    );
    assert_eq!(
        refused,
        Err(WindowError::OtherDomain {
            object: "queue pair"
        })
    );
}

#[test]
fn bind_is_refused_before_the_device_sees_it() {
    let fake = one_device();
    let (_one, mut other) = connected(&fake, USUAL);
    let region = bindable(&other);
    let mut window = MemoryWindow::new(&other.domain, WindowKind::Two).unwrap();
    let read = RegionAccess::REMOTE_READ;
    for range in [8..8, 0..region.bytes() + 1] {
        let request = BindRequest::new(window_id(0), range.clone(), read);
        let refused = other.pair.bind_window(&mut window, &region, &request);
        let (start, end, bytes) = (range.start, range.end, region.bytes());
        assert_eq!(refused, Err(WindowError::Range { start, end, bytes }));
    }

    let register =
        |access| Arc::new(MemoryRegion::register(&other.domain, memory(), access).unwrap());
    let (without, read_only) = (
        register(RegionAccess::RECEIVE),
        register(RegionAccess::WINDOWS),
    );
    let request = |access| BindRequest::new(window_id(0), 0..8, access);
    let pair = &mut other.pair;
    let refused = pair.bind_window(&mut window, &without, &request(read));
    assert_eq!(refused, Err(WindowError::Rights));
    let write = RegionAccess::REMOTE_WRITE;
    let refused = pair.bind_window(&mut window, &read_only, &request(write));
    assert_eq!(refused, Err(WindowError::Rights));
    assert!(
        pair.bind_window(&mut window, &read_only, &request(read))
            .is_ok()
    );
    settle(&mut other, &mut window);

    // Bound by one queue pair, it is not invalidated by another of the same domain.
    let settings = ConnectionSettings::default();
    let mut second = QueuePairBuilder::new(&other.domain, &other.completions)
        .build(1, settings)
        .unwrap();
    let refused = second.invalidate_window(&mut window, window_id(1));
    let queue_pair = other.pair.number();
    assert_eq!(refused, Err(WindowError::OtherQueuePair { queue_pair }));
    let again = other
        .pair
        .bind_window(&mut window, &read_only, &request(read));
    let state = WindowState::Bound;
    assert_eq!(
        again,
        Err(WindowError::State {
            what: "bound",
            state
        })
    );

    let mut free = MemoryWindow::new(&other.domain, WindowKind::Two).unwrap();
    other.domain.end_registrations();
    let refused = other.pair.bind_window(&mut free, &region, &request(read));
    assert_eq!(refused, Err(WindowError::Unregistered));
    let binds = fake.posted();
    assert_eq!(binds.len(), 1);
    assert_eq!(binds[0].opcode, wr_opcode::BIND_WINDOW);
}

#[test]
fn a_window_whose_request_failed_can_only_be_dropped() {
    let fake = one_device();
    let (_one, mut other) = connected(&fake, USUAL);
    let region = bindable(&other);
    let mut window = MemoryWindow::new(&other.domain, WindowKind::Two).unwrap();
    fake.hold_sends(true);
    let request = BindRequest::new(window_id(0), 0..8, RegionAccess::REMOTE_READ);
    other
        .pair
        .bind_window(&mut window, &region, &request)
        .unwrap();
    other.pair.fail().unwrap();
    let failed = other.poll();
    assert!(window.take(&failed[0]).is_err());
    assert_eq!(
        (window.state(), window.remote(0)),
        (WindowState::Lost, None)
    );
    let again = other.pair.bind_window(&mut window, &region, &request);
    let state = WindowState::Lost;
    assert_eq!(
        again,
        Err(WindowError::State {
            what: "bound",
            state
        })
    );
    drop((other, window, region));
    drop(_one);
    assert!(fake.alive().is_empty(), "{:?}", fake.alive());
}

#[test]
fn a_refused_bind_leaves_the_window_as_it_was() {
    for (kind, call, name) in [
        (WindowKind::One, Call::BindWindow, "ibv_bind_mw"),
        (WindowKind::Two, Call::PostSend, "ibv_post_send"),
    ] {
        let fake = one_device();
        let (_one, mut other) = connected(&fake, USUAL);
        let region = bindable(&other);
        let mut window = MemoryWindow::new(&other.domain, kind).unwrap();
        fake.refuse(call, Errno::NOMEM);
        let request = BindRequest::new(window_id(0), 0..8, RegionAccess::REMOTE_READ);
        let refused = other.pair.bind_window(&mut window, &region, &request);
        let Err(WindowError::Post(error)) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!((error.call, error.source), (name, Errno::NOMEM));
        assert_eq!(window.state(), WindowState::Free);
        assert_eq!(other.pair.outstanding_sends(), 0);
        other
            .pair
            .bind_window(&mut window, &region, &request)
            .unwrap();
        while other.pair.send_room() > 0 {
            let mut batch = other.pair.send_batch();
            batch.push(&SendRequest::send(send_id(0), &[])).unwrap();
            batch.post().unwrap();
        }
        let mut more = MemoryWindow::new(&other.domain, kind).unwrap();
        let full = other.pair.bind_window(&mut more, &region, &request);
        assert!(
            matches!(full, Err(WindowError::QueueFull { .. })),
            "{full:?}"
        );
    }
}

#[test]
fn a_bound_window_keeps_what_it_is_bound_to_in_any_order_of_drops() {
    let fake = one_device();
    let (one, mut other) = connected(&fake, USUAL);
    let region = bindable(&other);
    let mut window = MemoryWindow::new(&other.domain, WindowKind::Two).unwrap();
    bound(&mut other, &mut window, &region, 0);
    drop((one, other, region));
    let alive = fake.alive();
    let count = |kind| alive.get(kind).copied();
    assert_eq!(count("memory windows"), Some(1));
    assert_eq!(
        (count("memory regions"), count("queue pairs")),
        (Some(1), Some(1))
    );
    drop(window);
    assert!(fake.alive().is_empty(), "{:?}", fake.alive());
}

#[test]
fn alloc_mw_of_a_device_without_windows_says_so() {
    let fake = one_device();
    fake.change(DEVICE, |device| device.has_windows = false);
    let end = End::new(&fake.provider(), USUAL);
    let error = MemoryWindow::new(&end.domain, WindowKind::Two).unwrap_err();
    assert!(matches!(error, VerbsError::Unsupported { .. }));
    assert!(
        error.to_string().ends_with("in place of the window"),
        "{error}"
    );
}
