//! Dialed and accepted sessions on one RDMA port.

use std::{net::Shutdown, time::Duration};

use super::*;

/// A node that dials its peer and is dialed by it has both kinds of sessions on one RDMA port.
#[test]
fn dialed_and_accepted_sessions_share_a_port() {
    let fake = one_device();
    let settings = lends(2, 3);
    let rdma_ports = [open_port(&fake, settings), open_port(&fake, settings)];
    let runtimes = [runtime(Driver::Caller), runtime(Driver::Caller)];
    // For each direction: both ends, and the dialing end's connection.
    let sessions = [[0, 1], [1, 0]].map(|[dials, accepts]| {
        let pairs = pairs([&rdma_ports[dials], &rdma_ports[accepts]]).unwrap();
        let streams = connection();
        let tcp = streams[0].try_clone().unwrap();
        let mut ends = pairs.into_iter().zip(streams);
        let ends = [dials, accepts].map(|node| {
            let (pair, stream) = ends.next().unwrap();
            runtimes[node].admit(admission(stream, pair)).unwrap()
        });
        (ends, tcp)
    });
    for rdma_port in &rdma_ports {
        assert_eq!(rdma_port.max_sessions(), 3);
        assert!(rdma_port.prepare(false).is_err(), "two and one are taken");
    }
    let settle = || while runtimes.each_ref().map(|one| one.poll_ready()) != [false; 2] {};
    let spec = spec_of_bytes(MESSAGES_OPEN, MESSAGE_BYTES as u64);
    // Channels in both directions over both sessions.
    let timeout = Duration::from_secs(1);
    let mut channels = Vec::new();
    for (direction, (ends, _)) in sessions.iter().enumerate() {
        for from in [0, 1] {
            let nodes = [from, 1 - from].map(|end| (direction + end) % 2);
            let ends = [from, 1 - from].map(|end| &ends[end]);
            let open = runtimes[nodes[0]].open_sender(ends[0], "data", spec.clone(), timeout);
            let takes = runtimes[nodes[1]].open_receiver(
                ends[1],
                "data",
                spec.clone(),
                timeout,
                HALF_WINDOW,
            );
            channels.push((open.unwrap(), takes.unwrap(), 0, 0));
        }
    }
    while channels.iter().any(|channel| channel.3 < 500) {
        for (sender, receiver, sent, taken) in &mut channels {
            while *sent < 500 && try_send(sender, &payload(*sent, MESSAGE_BYTES)).is_ok() {
                *sent += 1;
            }
            *taken += consume(receiver);
        }
        settle();
        fake.forget_posted();
    }
    // The session that the first node dialed is over. That node has room for two again, the other
    // for one.
    sessions[0].1.shutdown(Shutdown::Both).unwrap();
    while !sessions[0].0.iter().all(|end| end.is_gone()) {
        settle();
    }
    settle();
    let [one, other] = &rdma_ports;
    assert!(other.prepare(true).is_err());
    assert!(other.prepare(false).is_ok());
    assert!(one.prepare(true).is_ok());
    assert_eq!(fake.rnr_naks(), 0);
    drop(channels);
    for runtime in runtimes {
        let _ = runtime.close(Duration::ZERO);
    }
}
