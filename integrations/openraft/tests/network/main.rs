//! openraft over ibex: nodes of one process, and clients that a test drives itself.

mod site;
mod store;

use std::time::Duration;

use futures_util::{StreamExt, future::join_all, stream};
use ibex::Fabric;
use ibex::prelude::*;
use openraft::{
    RaftNetworkV2,
    alias::{SnapshotMetaOf, SnapshotOf, StoredMembershipOf},
    error::{RPCError, ReplicationClosed, StreamingError},
    network::RPCOption,
};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    site::{Site, WATCHDOG, append, client, log_id, long, members, node, over_each, vote},
    store::{GO_ON, HALF_TAKEN, Log, Types, Writes},
};

#[test]
fn three_nodes_replicate() {
    over_each(replicate);
}

/// Two voters, then three; one of them is lost, and the others continue.
async fn replicate(fabric: Fabric) {
    let first = Site::start(1, fabric, Log::default()).await;
    let second = Site::start(2, fabric, Log::default()).await;
    let third = Site::start(3, fabric, Log::default()).await;
    let two = members([&first, &second]);
    first.raft.initialize(two).await.expect("a new cluster");
    let wait = first.raft.wait(Some(WATCHDOG));
    let leading = wait.metrics(
        |metrics| metrics.current_leader.is_some() && metrics.last_applied.is_some(),
        "a leader",
    );
    let leader = leading.await.expect("a leader").current_leader;
    let leader = [&first, &second]
        .into_iter()
        .find(|site| Some(*site.raft.node_id()) == leader)
        .expect("one of them");
    let address = openraft::BasicNode::new(&third.address);
    let added = leader.raft.add_learner(3, address, true).await;
    added.expect("a learner");
    let changed = leader.raft.change_membership([1, 2, 3], false).await;
    changed.expect("three voters");

    let writes = (0..200).map(|number| leader.raft.client_write(format!("{number:04}")));
    for written in join_all(writes).await {
        written.expect("a write");
    }
    let last = leader.raft.client_write("last".to_owned()).await;
    let index = last.expect("a write").log_id.index();
    for site in [&first, &second, &third] {
        let wait = site.raft.wait(Some(WATCHDOG));
        let applied = wait.applied_index_at_least(Some(index), "applied");
        applied.await.expect("it is applied everywhere");
        assert_eq!(site.machine.bytes().len(), 201 * 4);
        assert_eq!(site.machine.bytes(), leader.machine.bytes());
        let stats = site.node.stats();
        assert!(!stats.sessions.is_empty());
        for session in &stats.sessions {
            assert_eq!(session.fabric, fabric);
        }
    }
    third.stop().await;
    let written = leader.raft.client_write("more".to_owned()).await;
    written.expect("two of three are enough");
    first.stop().await;
    second.stop().await;
}

#[test]
fn appends_go_ahead_of_their_answers() {
    over_each(async |fabric| {
        // Nothing is written, and therefore nothing answered, before all appends have come.
        let log = Log::in_groups_of(8);
        let site = Site::start(1, fabric, log).await;
        let mut client = site.client(fabric, 1).await;
        let requests = (0..8_u64).map(|index| append(index.checked_sub(1), Some("text")));
        let requests = stream::iter(requests.collect::<Vec<_>>());
        let answers = client.stream_append(requests, long()).await;
        let answers: Vec<_> = answers.expect("a session").collect().await;
        let mut matching = Vec::new();
        for answer in answers {
            let last = answer.expect("an answer").expect("it matches");
            matching.push(last.expect("a log id").index());
        }
        assert_eq!(matching, (0..8).collect::<Vec<_>>());
        site.stop().await;
    });
}

#[test]
fn a_conflict_ends_the_stream_of_appends() {
    over_each(async |fabric| {
        let site = Site::start(1, fabric, Log::default()).await;
        let mut client = site.client(fabric, 1).await;
        let requests = vec![
            append(None, Some("a")),
            append(Some(7), Some("b")),
            append(Some(8), Some("c")),
        ];
        let answers = client.stream_append(stream::iter(requests), long()).await;
        let answers: Vec<_> = answers.expect("a session").collect().await;
        assert_eq!(answers.len(), 2);
        assert!(matches!(&answers[0], Ok(Ok(Some(id))) if id.index() == 0));
        let conflict = openraft::raft::StreamAppendError::Conflict(log_id(7));
        assert!(matches!(&answers[1], Ok(Err(error)) if *error == conflict));
        // The next stream works.
        let next = client
            .append_entries(append(Some(0), Some("b")), long())
            .await;
        assert!(next.expect("an answer").is_success());
        site.stop().await;
    });
}

#[test]
fn a_node_that_is_away_is_unreachable_and_one_that_is_silent_a_timeout() {
    over_each(async |fabric| {
        let soon = || RPCOption::new(Duration::from_millis(200));
        // No process listens.
        let gone = node(fabric, true);
        let address = gone.local_addr().expect("it listens").to_string();
        let _ = gone.close_async(WATCHDOG).await;
        let mut away = client(fabric, 1, &address).await;
        let error = away.append_entries(append(None, None), soon()).await;
        assert!(matches!(error, Err(RPCError::Unreachable(_))), "{error:?}");
        // The node has no server.
        let silent = node(fabric, true);
        let address = silent.local_addr().expect("it listens").to_string();
        let mut client_of_silent = client(fabric, 1, &address).await;
        // The first attempts may end before there is a session.
        while let Err(RPCError::Unreachable(_)) = client_of_silent
            .append_entries(append(None, None), soon())
            .await
        {}
        let error = client_of_silent
            .append_entries(append(None, None), soon())
            .await;
        let Err(RPCError::Timeout(timeout)) = error else {
            panic!("{error:?}");
        };
        assert_eq!((timeout.id, timeout.target), (9, 1));
        assert_eq!(timeout.timeout, soon().soft_ttl());
        let requests = stream::iter(vec![append(None, None)]);
        let answers = client_of_silent.stream_append(requests, soon()).await;
        let answers: Vec<_> = answers.expect("a session").collect().await;
        assert!(matches!(answers[..], [Err(RPCError::Timeout(_))]));
        // Another node than the requested one answers.
        let site = Site::start(2, fabric, Log::default()).await;
        let mut mistaken = site.client(fabric, 1).await;
        let error = mistaken.append_entries(append(None, None), long()).await;
        let Err(RPCError::Unreachable(error)) = error else {
            panic!("{error:?}");
        };
        assert!(
            error.to_string().contains("node 2 is here, and not node 1"),
            "{error}"
        );
        // The raft of this node has stopped.
        let mut client_of_stopped = site.client(fabric, 2).await;
        site.raft.shutdown().await.expect("raft ends");
        let error = client_of_stopped
            .append_entries(append(None, None), long())
            .await;
        assert!(matches!(error, Err(RPCError::Unreachable(_))), "{error:?}");
        let _ = silent.close_async(WATCHDOG).await;
        site.stop().await;
    });
}

#[test]
fn a_node_that_ends_is_an_error_of_the_network_and_is_found_again() {
    over_each(async |fabric| {
        let silent = node(fabric, true);
        let address = silent.local_addr().expect("it listens").to_string();
        let mut asking = client(fabric, 1, &address).await;
        let calls = silent.channel("openraft 0.10.0-alpha.37, log");
        let service = calls.codec::<ibex::Raw>().service::<[u8], [u8]>();
        let mut service = service.expect("a service");
        let closing = async {
            let request = service.next_async().await.expect("a request");
            let _ = silent.close_async(WATCHDOG).await;
            drop(request);
        };
        let (error, ()) = tokio::join!(asking.append_entries(append(None, None), long()), closing);
        assert!(matches!(error, Err(RPCError::Network(_))), "{error:?}");
        let again = asking.append_entries(
            append(None, None),
            RPCOption::new(Duration::from_millis(400)),
        );
        let error = again.await;
        assert!(matches!(error, Err(RPCError::Unreachable(_))), "{error:?}");
    });
}

fn snapshot(bytes: usize) -> SnapshotOf<Types, Writes> {
    SnapshotOf::<Types, Writes> {
        meta: SnapshotMetaOf::<Types> {
            last_log_id: Some(log_id(41)),
            last_membership: StoredMembershipOf::<Types>::default(),
        },
        snapshot: Writes((0..bytes).map(|at| at as u8).collect()),
    }
}

#[test]
fn heartbeats_and_appends_pass_a_snapshot_that_is_stuck() {
    over_each(async |fabric| {
        let site = Site::start(1, fabric, Log::default()).await;
        let (sending, asking) = (site.client(fabric, 1).await, site.client(fabric, 1).await);
        let (mut sending, mut asking) = (sending, asking);
        // The snapshot exceeds every window, so that the sender is stuck as well.
        let bytes = 64 << 20;
        let sent = sending.full_snapshot(vote(), snapshot(bytes), std::future::pending(), long());
        let beats = async {
            HALF_TAKEN.acquire().await.expect("open").forget();
            for _ in 0..100 {
                let beat = asking.append_entries(append(None, None), long()).await;
                assert!(beat.expect("an answer").is_success());
                let once = stream::iter(vec![append(None, None)]);
                let answers = asking.stream_append(once, long()).await;
                let answers: Vec<_> = answers.expect("a session").collect().await;
                assert!(matches!(answers[..], [Ok(Ok(None))]));
            }
            GO_ON.add_permits(1);
        };
        let (answer, ()) = tokio::join!(sent, beats);
        assert_eq!(answer.expect("it is installed").vote, vote());
        assert_eq!(site.machine.bytes(), snapshot(bytes).snapshot.0);

        // A snapshot that is cancelled in the middle is not installed, and stops no later one.
        let cancel = async {
            HALF_TAKEN.acquire().await.expect("open").forget();
            ReplicationClosed::new("the test says so")
        };
        let answer = sending
            .full_snapshot(vote(), snapshot(1 << 10), cancel, long())
            .await;
        assert!(
            matches!(answer, Err(StreamingError::Closed(_))),
            "{answer:?}"
        );
        let sent = sending.full_snapshot(vote(), snapshot(2 << 20), std::future::pending(), long());
        let going_on = async {
            HALF_TAKEN.acquire().await.expect("open").forget();
            assert_eq!(site.machine.bytes().len(), bytes);
            GO_ON.add_permits(1);
        };
        let (answer, ()) = tokio::join!(sent, going_on);
        answer.expect("it is installed");
        site.stop().await;
    });
}

#[test]
fn a_snapshot_that_is_too_long_is_refused_before_it_is_read() {
    over_each(async |fabric| {
        let site = Site::start(1, fabric, Log::default()).await;
        let narrow = node(fabric, true);
        let server = ibex_openraft::Server::new(site.raft.clone()).max_snapshot_bytes(1000);
        let serving = tokio::spawn(server.run(narrow.clone()));
        let address = narrow.local_addr().expect("it listens").to_string();
        let mut sending = client(fabric, 1, &address).await;
        let never = std::future::pending::<ReplicationClosed>();
        let answer = sending
            .full_snapshot(vote(), snapshot(1001), never, long())
            .await;
        let Err(StreamingError::Unreachable(error)) = answer else {
            panic!("{answer:?}");
        };
        assert!(
            error.to_string().contains("takes 1000 B at most"),
            "{error}"
        );
        serving.abort();
        site.stop().await;
    });
}

#[test]
fn bytes_that_are_no_request_stop_nobody() {
    over_each(async |fabric| {
        let site = Site::start(1, fabric, Log::default()).await;
        let stranger = node(fabric, false);
        let peer = stranger.connect_async(site.address.as_str()).await;
        let peer = peer.expect("a session");
        for service in ["log", "control"] {
            let name = format!("openraft 0.10.0-alpha.37, {service}");
            let calls = peer.channel(&name).codec::<ibex::Raw>();
            let caller = calls.caller::<[u8], [u8]>().expect("a caller");
            for length in [0, 1, 7, 1000, 100_000] {
                let error = caller.call_async(&vec![0xff; length]).await;
                let error = error.expect_err("no request");
                let (code, _) = error.failure().expect("an answer");
                assert_eq!(code, 1, "{error}");
            }
        }
        // The headers of snapshots: an empty one, a cut one, one that is too long, and garbage.
        let headers: [&[u8]; 4] = [
            &[0; 4],
            &[9, 0, 0, 0, 1],
            &[0xff; 4],
            &[3, 0, 0, 0, 9, 9, 9],
        ];
        for header in headers {
            let stream =
                ibex::io::Stream::connect_async(&peer, "openraft 0.10.0-alpha.37, snapshots");
            let mut stream = stream.await.expect("a stream");
            stream.write_all(header).await.expect("room");
            stream.finish();
            let mut answer = Vec::new();
            let end = stream.read_to_end(&mut answer).await;
            assert_eq!(end.expect("an end"), 0);
        }
        let mut asking = site.client(fabric, 1).await;
        let beat = asking.append_entries(append(None, None), long()).await;
        assert!(beat.expect("an answer").is_success());
        site.stop().await;
    });
}
