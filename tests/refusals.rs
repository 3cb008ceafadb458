//! Errors of refused calls, through the facade: the cause as a value, and a text that names the
//! peer, the reason and the remedy.
#![forbid(unsafe_code)]

use ibex_harness::wait_until;
use std::{
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures_util::Sink as _;
use ibex::{
    Counts, Driver, Fabric, ListenErrorKind, Node, OpenErrorKind, Peer, Policy, Raw, RecvErrorKind,
    Role, SendErrorKind, Wait, WaitError, WaitErrorKind,
};

#[test]
fn a_setting_out_of_its_range_is_told_with_its_range() {
    let refused = Node::builder().max_channels(0).session_credit_bytes(1);
    let error = refused.build().expect_err("0 channels are too few");
    // The first error counts.
    assert_eq!(error.kind(), ListenErrorKind::Setting);
    assert_eq!(error.setting(), Some("max_channels"));
    assert_eq!(error.to_string(), "max_channels is 0; it may be 1 to 16384");

    let refused = Node::builder().window_bytes(8 << 20).build();
    assert_eq!(
        refused.expect_err("above 4 MiB").to_string(),
        "window_bytes is 8 MiB; it may be 1 byte to 4 MiB"
    );
}

/// Each numeric setting is one step below its range, and one above.
#[test]
fn every_knob_of_a_node_is_checked_against_its_range() {
    let builder = Node::builder;
    let second = Duration::from_secs(1);
    let cases = [
        (
            builder().max_channels(16385),
            "max_channels is 16385; it may be 1 to 16384",
        ),
        (
            builder().max_peer_sessions(0),
            "max_peer_sessions is 0; it may be 1 to 65536",
        ),
        (
            builder().max_peer_sessions(65537),
            "max_peer_sessions is 65537; it may be 1 to 65536",
        ),
        (
            builder().max_node_sessions(0),
            "max_node_sessions is 0; it may be 1 to 65536",
        ),
        (
            builder().max_node_sessions(65537),
            "max_node_sessions is 65537; it may be 1 to 65536",
        ),
        (
            builder().session_credit_bytes((512 << 10) - 1),
            "session_credit_bytes is 524287 bytes; it may be 512 KiB to 1 GiB",
        ),
        (
            builder().node_credit_bytes((1 << 40) + 1),
            "node_credit_bytes is 1099511627777 bytes; it may be 512 KiB to 1 TiB",
        ),
        (
            builder().window_messages(0),
            "window_messages is 0; it may be 1 to 1048576",
        ),
        (
            builder().window_messages((1 << 20) + 1),
            "window_messages is 1048577; it may be 1 to 1048576",
        ),
        (
            builder().window_bytes(0),
            "window_bytes is 0 bytes; it may be 1 byte to 4 MiB",
        ),
        (
            builder().max_message_bytes(0),
            "max_message_bytes is 0 bytes; it may be 1 byte to 1 GiB",
        ),
        (
            builder().max_message_bytes((1 << 30) + 1),
            "max_message_bytes is 1073741825 bytes; it may be 1 byte to 1 GiB",
        ),
        (
            builder().connect_timeout(Duration::ZERO),
            "connect_timeout is 0ns; it may be 1ms or longer",
        ),
        (
            builder().handshake_timeout(Duration::ZERO),
            "handshake_timeout is 0ns; it may be 10ms or longer",
        ),
        (
            builder().notice_timeout(second / 2),
            "notice_timeout is 500ms; it may be 1s or longer",
        ),
        (
            builder().session_timeout(Duration::from_millis(9)),
            "session_timeout is 9ms; it may be 10ms or longer",
        ),
        (
            builder().wait(Wait::Adaptive { spin: 2 * second }),
            "spin is 2s; it may be 0ns to 1s",
        ),
    ];
    for (builder, says) in cases {
        let error = builder.build().expect_err(says);
        assert!(error.kind() == ListenErrorKind::Setting, "{error:?}");
        assert_eq!(error.to_string(), says);
    }
}

#[test]
fn settings_that_do_not_go_together_are_both_named() {
    let both = Node::builder()
        .fabric(Fabric::Shm, Policy::Require)
        .fabric(Fabric::Tcp, Policy::Require);
    let error = both.build().expect_err("a session runs on one");
    assert!(error.kind() == ListenErrorKind::Setting, "{error:?}");
    assert_eq!(
        error.to_string(),
        "shm is required and tcp is required: a session runs on one fabric; require one of them"
    );
    let error = Node::builder().driver(Driver::Caller).cores(&[0]).build();
    let error = error.expect_err("there is no thread").to_string();
    assert_eq!(
        error,
        "driver is Caller and cores is [0]: only Driver::Threads has an I/O thread to put on \
         cores; leave cores out"
    );
    let mut none = Node::builder();
    for fabric in Fabric::FASTEST_FIRST {
        none = none.fabric(fabric, Policy::Forbid);
    }
    let error = none.build().expect_err("nothing is left").to_string();
    assert_eq!(
        error,
        "shm is forbidden and tcp is forbidden: no fabric of this build is left for a session; \
         allow one"
    );
}

#[test]
fn a_knob_of_a_channel_is_checked_when_it_is_set() {
    let listener = Node::listen("127.0.0.1:0").expect("a node");
    let client = Node::client().expect("a node");
    let address = listener.local_addr().expect("it listens");
    let peer = client.connect(address).expect("a session");
    // A valid value afterwards does not remove the error.
    let channel = peer.channel("log").codec::<Raw>();
    let odd = channel.window_messages(0).window_messages(8);
    let error = odd.sender::<[u8]>().expect_err("0 messages are too few");
    assert!(error.kind() == OpenErrorKind::Setting, "{error}");
    let says = "window_messages is 0; it may be 1 to 1048576";
    assert!(error.to_string().ends_with(says), "{error}");
    let odd = peer.channel("log").codec::<Raw>().ack_every(0);
    let error = odd.receiver::<[u8]>().expect_err("of every 0 messages");
    let says = "ack_every is 0; it may be 1 to 1048576";
    assert!(error.to_string().ends_with(says), "{error}");
}

#[test]
#[cfg(not(feature = "verbs"))]
fn a_fabric_that_is_not_compiled_in_cannot_be_required() {
    let required = Node::builder().fabric(Fabric::Verbs, Policy::Require);
    let error = required.build().expect_err("it is not there");
    assert_eq!(error.fabric(), Some(Fabric::Verbs));
    assert!(error.to_string().contains("enable the feature `verbs`"));
    // A preference yields.
    let preferred = Node::builder().fabric(Fabric::Verbs, Policy::Prefer);
    preferred.build().expect("another fabric will do");
}

#[test]
#[cfg(not(feature = "verbs"))]
fn a_fabric_that_is_not_compiled_in_is_named_so_to_the_peer() {
    let listener = Node::listen("127.0.0.1:0").expect("a node");
    let no_shm = Node::builder().fabric(Fabric::Shm, Policy::Forbid);
    let client = no_shm.build().expect("a node");
    let peer = client
        .connect(listener.local_addr().expect("it listens"))
        .expect("over tcp");
    assert_eq!(
        peer.fabric_reason(),
        "tcp: not shm: the connecting node's policy forbids shm; \
         not verbs: verbs is not compiled into the connecting node (feature `verbs`)"
    );
}

#[test]
#[cfg(feature = "verbs")]
fn a_device_that_is_required_is_looked_for_when_the_node_is_made() {
    use ibex::rdma::{RdmaSettings, Tuning, VerbsError};
    let required = Node::builder()
        .fabric(Fabric::Verbs, Policy::Require)
        .rdma(RdmaSettings::new().device("no-such-device"));
    let error = required.build().expect_err("there is none of that name");
    let source = error.verbs_error().expect("it is about RDMA");
    match ibex::rdma::discover() {
        Ok(_) => assert!(
            matches!(source, VerbsError::NoSuchDevice { .. }),
            "{source}"
        ),
        Err(absent) => assert_eq!(source.to_string(), absent.to_string()),
    }
    assert_eq!(
        error.to_string(),
        format!("verbs is required, and this node cannot have it: {source}")
    );
    let required = Node::builder()
        .environment([("IBEX_FABRICS", "verbs")])
        .rdma(RdmaSettings::new().device("no-such-device"));
    let error = required.build().expect_err("there is none of that name");
    let source = error.verbs_error().expect("it is about RDMA");
    assert_eq!(
        error.to_string(),
        format!(
            "verbs is required by IBEX_FABRICS=\"verbs\" in the environment, and this node cannot \
             have it: {source}"
        )
    );
    let odd = Node::builder().rdma(RdmaSettings::new().tuning(Tuning::new().retry_count(7)));
    let error = odd.build().expect_err("7 means for ever");
    assert_eq!(error.to_string(), "retry_count is 7; it may be 0 to 6");
}

#[test]
#[cfg(feature = "verbs")]
fn a_device_is_required_where_no_other_fabric_is_left() {
    use ibex::{Fabric, Policy, rdma::RdmaSettings};
    let without_shm = || {
        let settings = RdmaSettings::new().device("no-such-device");
        let builder = Node::builder().rdma(settings);
        builder.fabric(Fabric::Shm, Policy::Forbid)
    };
    let verbs_only = without_shm().fabric(Fabric::Tcp, Policy::Forbid);
    let error = verbs_only.build().expect_err("there is none of that name");
    assert!(error.kind() == ListenErrorKind::Rdma, "{error}");
    without_shm().build().expect("tcp is left");
}

#[test]
#[cfg(feature = "verbs")]
fn a_device_that_is_only_preferred_gives_way_and_the_reason_says_why() {
    use ibex::{Fabric, Policy, rdma::RdmaSettings};
    let builder = || Node::builder().fabric(Fabric::Shm, Policy::Forbid);
    let listener = builder().listen("127.0.0.1:0").build().expect("a node");
    let client = builder()
        .fabric(Fabric::Verbs, Policy::Prefer)
        .rdma(RdmaSettings::new().device("no-such-device"))
        .build()
        .expect("a node");
    let peer = client
        .connect(listener.local_addr().expect("it listens"))
        .expect("over tcp");
    assert_eq!(peer.fabric(), Fabric::Tcp);
    let reason = peer.fabric_reason();
    assert!(
        reason.contains("not verbs: the connecting node has no RDMA device for this connection: "),
        "{reason}"
    );
}

#[test]
fn an_end_that_cannot_be_opened_says_which_and_why() {
    let (node, _theirs, peer) = meet();
    let _log = peer.sender::<u64>("log").expect("the first");
    let again = peer.sender::<u64>("log").expect_err("the second");
    assert_eq!(
        (again.end(), again.kind()),
        (Some(Role::Sender), OpenErrorKind::AlreadyOpen)
    );
    assert_eq!(
        again.to_string(),
        format!(
            "cannot open the sender of channel \"log\" with {}: it is open already; use or drop \
             the first handle (a sender can be cloned; a publisher of the node has the senders of \
             its name, a fan-in or a service the receivers)",
            peer.address()
        )
    );
    // The other direction has a channel of its own under the same name.
    drop(peer.receiver::<u64>("log").expect("the other direction"));

    let nameless = peer.receiver::<u64>("").expect_err("no name");
    assert_eq!(nameless.kind(), OpenErrorKind::Name);
    let narrow = peer.channel("x").window_messages(0).receiver::<u64>();
    let narrow = narrow.expect_err("no window");
    assert_eq!(narrow.kind(), OpenErrorKind::Setting);
    assert_eq!(narrow.setting(), Some("window_messages"));

    let _ = node.close(Duration::ZERO);
    let late = peer.sender::<u64>("late").expect_err("the node was closed");
    assert_eq!(late.kind(), OpenErrorKind::NodeClosed);
}

#[test]
fn a_peer_that_does_not_open_its_end_in_time_is_named() {
    let (_node, _theirs, peer) = meet();
    let mut sender = peer.sender::<u64>("log").expect("an end");
    let error = sender.opened(MOMENT).expect_err("nobody opened it");
    assert!(error.is_transient());
    assert_eq!(
        error.to_string(),
        format!(
            "channel \"log\": {} did not open a receiver of this name within 20ms; see that the \
             program there opens it (a fan-in does when it is asked for what comes) and by this \
             name, or wait longer (open_timeout is 10s)",
            peer.address()
        )
    );
    let error = sender.send_timeout(&1, MOMENT).expect_err("nobody there");
    assert!(error.kind() == SendErrorKind::NotOpened, "{error}");

    let hasty = peer.channel("log").open_timeout(MOMENT);
    let mut receiver = hasty.receiver::<u64>().expect("the other direction");
    let error = receiver.opened(Duration::from_secs(60));
    let error = error.expect_err("nobody there");
    assert!(
        !error.is_transient(),
        "open_timeout is over, and waiting longer is of no use: {error}"
    );
    assert!(
        error
            .to_string()
            .ends_with("comes) and by this name, or raise open_timeout")
    );
}

#[test]
fn handles_show_which_channel_they_are_of_and_whose() {
    let (_node, _theirs, peer) = meet();
    let sender = peer.sender::<u64>("log").expect("an end");
    let receiver = peer.receiver::<u64>("log").expect("an end");
    let (address, id) = (peer.address(), peer.id());
    let shown = format!("{{ channel: \"log\", peer: {address}, .. }}");
    assert_eq!(format!("{sender:?}"), format!("Sender {shown}"));
    assert_eq!(format!("{receiver:?}"), format!("Receiver {shown}"));
    assert_eq!(
        format!("{peer:?}"),
        format!(
            "Peer {{ id: {id:?}, address: {address}, names: {:?}, fabric: {:?}, .. }}",
            peer.names(),
            peer.fabric()
        )
    );
}

#[test]
fn a_message_that_is_too_long_is_told_with_the_channel_and_the_limit() {
    let (_node, (_listener, theirs), peer) = meet();
    let limited = |peer: &Peer| peer.channel("log").codec::<Raw>().max_message_bytes(1000);
    let mut sender = limited(&peer).sender::<[u8]>().expect("an end");
    let receiver = limited(&theirs).receiver::<[u8]>().expect("an end");
    let error = sender.send(&[0; 1001]).expect_err("above the limit");
    assert_eq!(
        error.to_string(),
        format!(
            "channel \"log\" with {}: a message of 1001 bytes is above its limit of 1000, \
             that of both ends; raise max_message_bytes at both, or send it in parts",
            peer.address()
        )
    );
    let here = peer.channel("here").codec::<Raw>().max_message_bytes(1000);
    let mut here = here.sender::<[u8]>().expect("an end");
    let there = theirs.channel("here").codec::<Raw>();
    let _there = there.receiver::<[u8]>().expect("an end");
    let error = here.send(&[0; 1001]).expect_err("above the limit");
    let advice = "that of this end; raise max_message_bytes here, or send it in parts";
    assert!(error.to_string().ends_with(advice), "{error}");
    assert!(error.spares_channel());
    assert_eq!(sender.send(&[0; 1000]).expect("the channel goes on"), 1);
    drop(receiver);
    sender.wait_acked(1).expect_err("nobody receives any more");
    let error = sender.send(&[0]).expect_err("the channel has ended");
    assert!(!error.spares_channel());
}

#[test]
fn two_ends_of_one_kind_are_told_that_they_wait_for_each_other() {
    let (_node, (_listener, theirs), peer) = meet();
    let _other = theirs.sender::<u64>("log").expect("an end");
    // The announcement of the peer's end may still be on its way.
    wait_until(|| !peer.incoming().is_empty());
    let mut sender = peer.sender::<u64>("log").expect("an end");
    let error = sender.opened(MOMENT).expect_err("no receiver");
    assert!(
        error
            .to_string()
            .ends_with("it opened a sender as well: one of the two must be a receiver"),
        "{error}"
    );
}

#[test]
fn a_name_that_only_one_of_both_has_is_told_with_those_of_the_peer() {
    let (_node, (_listener, theirs), peer) = meet();
    // Neither a name that exists in the other direction, nor one that is no plain text, is mistaken
    // for the sought one.
    let _ends = ["logs", "l\nog"].map(|name| theirs.receiver::<u64>(name).expect("an end"));
    let _other = theirs.sender::<u64>("blog").expect("an end");
    wait_until(|| peer.incoming().len() >= 3);
    let mut sender = peer.sender::<u64>("log").expect("an end");
    let error = sender.opened(MOMENT).expect_err("no receiver");
    let missing = error.not_opened().expect("it is not open");
    let mut names = missing.other_names.clone();
    names.sort();
    assert_eq!(names, ["l\nog", "logs"]);
    let said = error.to_string();
    assert!(
        said.contains("\"logs\"") && said.contains("\"l\\nog\""),
        "{said}"
    );
    assert!(said.contains("check the name at both ends"), "{said}");
}

#[test]
fn a_time_out_names_the_channel_and_how_far_it_came() {
    let (_node, (_listener, theirs), peer) = meet();
    let narrow = peer.channel("log").window_messages(1);
    let mut sender = narrow.sender::<u64>().expect("an end");
    let mut receiver = theirs.receiver::<u64>("log").expect("the other");
    sender.send(&1).expect("one fits");
    let error = sender.send_timeout(&2, MOMENT).expect_err("two do not");
    assert_eq!(
        error.kind(),
        SendErrorKind::Timeout,
        "it is open, and full: {error}"
    );
    let full = error;
    let sent = full.counts().map(|counts| counts.sent);
    assert_eq!((full.channel(), sent), (Some("log"), Some(1)));
    let start = format!(
        "channel \"log\": not sent within the time-out, the channel to {} stayed full (1 sent, ",
        peer.address()
    );
    let full = full.to_string();
    assert!(full.starts_with(&start), "{full}");
    for words in [
        "the receiver released nothing for ",
        ": see that the process there runs, is not stopped, and takes messages and drops them",
        "; a greater window_messages at both ends helps only if that program keeps messages on purpose",
    ] {
        assert!(full.contains(words), "{full}");
    }

    drop(receiver.recv().expect("the one that was sent"));
    let error = receiver.recv_timeout(MOMENT).expect_err("no other was");
    assert_eq!(
        error.kind(),
        RecvErrorKind::Timeout,
        "it is open, and empty: {error}"
    );
    let missed = error;
    assert_eq!(missed.channel(), Some("log"));
    let start = format!(
        "channel \"log\": no message came from {} within the time-out, behind 1 ",
        theirs.address()
    );
    assert!(missed.to_string().starts_with(&start), "{missed}");
}

#[test]
fn a_thread_that_holds_a_loan_is_told_so_when_its_clone_sends() {
    let (_node, (_listener, theirs), peer) = meet();
    let raw = peer.channel("log").codec::<Raw>();
    let mut sender = raw.sender::<[u8]>().expect("an end");
    let raw = theirs.channel("log").codec::<Raw>();
    let _receiver = raw.receiver::<[u8]>().expect("the other");
    let mut clone = sender.clone();
    let reservation = sender.loan(8).expect("room");
    let error = clone
        .try_send(&[1])
        .expect_err("it cannot be this clone's turn");
    assert!(error.kind() == SendErrorKind::Nested, "{error}");
    assert!(
        error
            .to_string()
            .contains("a loan or permit of another clone")
    );
    assert_eq!(reservation.send().unwrap(), 1);
    assert_eq!(clone.try_send(&[1]).expect("its turn"), 2);
}

#[test]
fn a_wait_for_another_clone_says_so() {
    let (_node, (_listener, theirs), peer) = meet();
    let raw = peer.channel("log").codec::<Raw>();
    let mut sender = raw.sender::<[u8]>().expect("an end");
    let raw = theirs.channel("log").codec::<Raw>();
    let _receiver = raw.receiver::<[u8]>().expect("the other");
    let mut clone = sender.clone();
    let reservation = sender.loan(8).expect("room");
    let waiting = std::thread::spawn(move || clone.send_timeout(&[1], MOMENT).map_err(Box::new));
    let late = waiting.join().expect("an answer").expect_err("no turn");
    assert!(late.is_transient(), "its turn may come later: {late}");
    assert!(late.is_behind_clone());
    let said = late.to_string();
    assert!(
        said.contains("another clone of this sender had the turn to send"),
        "{said}"
    );
    assert!(said.contains("send or drop what it holds"), "{said}");
    assert!(!said.contains("stayed full"), "{said}");
    assert_eq!(reservation.send().expect("room"), 1);
}

/// Closing a sender reports why its channel never opened: no message was delivered, and "nothing is
/// missing" would not say so.
#[test]
fn a_close_behind_an_open_that_failed_says_why() {
    for fabric in [Fabric::Shm, Fabric::Tcp] {
        let (node, (listener, theirs), peer) = meet_over(fabric);
        let mismatch = |error: WaitError| {
            let said = error.to_string();
            assert_eq!(
                error.kind(),
                WaitErrorKind::Mismatch,
                "over {fabric}: {said}"
            );
            assert!(said.contains(": u64 ") && said.contains(": u32 "), "{said}");
            assert!(said.contains("no message was delivered"), "{said}");
            assert_eq!(error.counts(), Some(Counts::default()));
        };
        let mut sender = peer.sender::<u64>("typed").expect("an end");
        let _receiver = theirs.receiver::<u32>("typed").expect("another type");
        sender.send(&1).expect_err("the types differ");
        mismatch(sender.flush().expect_err("nothing was delivered"));
        mismatch(sender.flush_timeout(MOMENT).expect_err("nor is"));
        mismatch(sender.wait_acked(0).expect_err("nor is"));
        mismatch(now(sender.flush_async()).expect_err("nor for a task"));
        mismatch(now(sender.wait_acked_async(0)).expect_err("nor for a task"));
        let mut context = Context::from_waker(Waker::noop());
        let closed = pin!(sender.sink::<u64>()).poll_close(&mut context);
        assert!(matches!(
            closed,
            Poll::Ready(Err(error)) if error.kind() == SendErrorKind::Mismatch
        ));
        let clone = sender.clone();
        mismatch(clone.close().expect_err("nor by a clone"));
        mismatch(sender.close().expect_err("nothing was delivered"));

        // The peer does not open its end.
        let hasty = peer.channel("unopened").open_timeout(MOMENT);
        let mut unopened = hasty.sender::<u64>().expect("an end");
        unopened.send(&1).expect_err("nobody opens it");
        assert!(matches!(
            unopened.close(),
            Err(error) if error.kind() == WaitErrorKind::NotOpened
        ));
        // While the peer may still open its end, nothing is missing.
        let patient = peer.sender::<u64>("patient").expect("an end");
        patient.close().expect("nothing was sent");

        // The session ends first.
        let mut late = peer.sender::<u64>("late").expect("an end");
        let _ = listener.close(Duration::from_secs(60));
        late.send(&1).expect_err("the peer said goodbye");
        assert!(matches!(
            late.close(),
            Err(error) if error.kind() == WaitErrorKind::Disconnected
        ));
        drop(node);
    }
}

/// Closing a group reports members that never opened, whatever was sent.
#[test]
fn a_group_that_is_closed_names_the_members_that_never_opened() {
    for fabric in [Fabric::Shm, Fabric::Tcp] {
        let (node, (_listener, theirs), peer) = meet_over(fabric);
        let mut group = node.channel("typed").group::<u64>().expect("a group");
        let _receiver = theirs.receiver::<u32>("typed").expect("another type");
        group.join(&peer).expect("a member");
        group.send(&1).expect_err("the types differ");
        let lost = group.close();
        assert_eq!(lost.len(), 1, "over {fabric}");
        let said = lost[0].to_string();
        assert!(said.contains(": u64 ") && said.contains(": u32 "), "{said}");
    }
}

/// The error names the awaited peer and the progress of the channel.
#[test]
fn a_peer_that_does_not_acknowledge_in_time_is_named() {
    let (_node, (_listener, theirs), peer) = meet();
    let mut sender = peer.sender::<u64>("log").expect("an end");
    let unopened = sender.wait_acked_timeout(1, MOMENT).expect_err("nobody");
    let mut receiver = theirs.receiver::<u64>("log").expect("the other");
    for value in 1..=3 {
        sender.send(&value).expect("room");
    }
    receiver.recv().expect("the first").ack();
    sender.wait_acked(1).expect("it is acknowledged");
    let error = sender.wait_acked_timeout(2, MOMENT).expect_err("one is");
    for (error, sequence, counts) in [
        (
            unopened,
            1,
            "0 sent, at least 0 received, 0 released and 0 acknowledged",
        ),
        (
            error,
            2,
            "3 sent, at least 1 received, 1 released and 1 acknowledged",
        ),
    ] {
        assert_eq!(
            error.to_string(),
            format!(
                "channel \"log\": {} is not done with message {sequence} within the time-out \
                 ({counts}); what was sent stays sent, and a later call may succeed; nothing moved \
                 in that time: see that the process there runs, opens its end and takes messages, and \
                 acknowledges them where that is waited for",
                peer.address()
            )
        );
    }
}

/// A `main` that returns an error prints it by `Debug`.
#[test]
fn main_prints_the_diagnosis_of_its_error() {
    let (_node, (_listener, theirs), peer) = meet();
    let mut sender = peer.sender::<u64>("log").expect("an end");
    let _receiver = theirs.receiver::<u32>("log").expect("another type");
    let mismatch = sender.send(&1).expect_err("of another type");
    let refused = Node::builder().max_channels(0).build();
    let conflict = Node::listen("nowhere").expect_err("no address");
    let twice = peer.sender::<u64>("log").expect_err("it is open");
    let text = mismatch.to_string();
    assert!(text.contains("different message types"), "{text}");
    let errors: [Box<dyn std::error::Error>; 4] = [
        mismatch.into(),
        refused.expect_err("0 channels are too few").into(),
        conflict.into(),
        twice.into(),
    ];
    for error in errors {
        assert_eq!(format!("{error:?}"), error.to_string());
    }
}

const MOMENT: Duration = Duration::from_millis(20);

/// Returns the result of a future that does not wait.
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(future).poll(&mut context) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("it waits"),
    }
}

/// Creates two nodes of this process over a fabric.
fn meet_over(fabric: Fabric) -> (Node, (Node, Peer), Peer) {
    let builder = || Node::builder().fabric(fabric, Policy::Require);
    let listener = builder().listen("127.0.0.1:0").build().expect("a node");
    let client = builder().build().expect("a node");
    let address = listener.local_addr().expect("it listens");
    let peer = client.connect(address).expect("a session");
    let theirs = listener.accept().expect("the same session");
    (client, (listener, theirs), peer)
}

/// Creates two nodes of this process. Returns the one that connected, the other with its end of the
/// session, and the first one's end.
fn meet() -> (Node, (Node, Peer), Peer) {
    let listener = Node::listen("127.0.0.1:0").expect("a node");
    let client = Node::client().expect("a node");
    let address = listener.local_addr().expect("it listens");
    let peer = client.connect(address).expect("a session");
    let theirs = listener.accept().expect("the same session");
    (client, (listener, theirs), peer)
}
