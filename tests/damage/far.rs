//! Two network namespaces that stand for two hosts: a process in the far one sends back everything
//! that it receives.

use std::{env, os::unix::process::CommandExt};

use ibex::{Node, Raw, RecvErrorKind};
use ibex_harness::{
    draw::Draw,
    network::{Medium, Network},
    process::{Process, ours},
};

use crate::{content, content::Lengths, session};

/// The number of the stream to the far process, and of its echo.
pub(crate) const STREAM: u64 = 1;
pub(crate) const LENGTHS: Lengths = Lengths::Mixed;

/// The link to the far namespace, and the process there.
pub(crate) struct Far {
    pub(crate) network: Network,
    process: Process,
}

impl Far {
    pub(crate) fn begin(test: &str, draw: &mut Draw) -> Self {
        let network = Network::of(Medium::Packets, draw).expect("a link");
        let namespace = network.far_namespace.as_ref().expect("a namespace");
        let mut there = ours("nsenter");
        there.arg(format!("--net={}", namespace.display()));
        there.arg(env::current_exe().unwrap());
        there.args([test, "--exact", "--nocapture"]);
        there.env(FAR, network.address.to_string()).process_group(0);
        let process = Process::start("the far process", &mut there);
        let process = process.expect("nsenter, of util-linux");
        Self { network, process }
    }

    /// Returns whether the process still runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.process.ended().expect("a child").is_none()
    }

    /// Waits for the process, which ends after its peer.
    pub(crate) fn end(mut self) {
        self.process.finish().expect("it succeeds");
    }
}

/// Echoes messages if this process is the far one. Returns whether it was.
pub(crate) fn echoes() -> bool {
    let Ok(address) = env::var(FAR) else {
        return false;
    };
    let node = session::builder()
        .insecure_network()
        .listen(address.as_str());
    let node = node.build().unwrap();
    let peer = node.accept().unwrap();
    assert!(peer.payload_checksums());
    echo(&node, &peer);
    true
}

fn echo(_node: &Node, peer: &ibex::Peer) {
    let mut receiver = peer
        .channel("there")
        .codec::<Raw>()
        .receiver::<[u8]>()
        .unwrap();
    let mut sender = peer
        .channel("back")
        .codec::<Raw>()
        .sender::<[u8]>()
        .unwrap();
    for number in 1.. {
        match receiver.recv() {
            Ok(message) => {
                assert!(*message == *content::of_message(STREAM, number, LENGTHS));
                sender.send(&message).unwrap();
                message.ack();
            }
            Err(error) if error.kind() == RecvErrorKind::Ended => break,
            Err(error) => panic!("{error}"),
        }
    }
    let errors = peer.stats().checksum_errors;
    sender.send(&errors.to_le_bytes()).unwrap();
    sender.close().unwrap();
}

const FAR: &str = "DAMAGE_FAR";
