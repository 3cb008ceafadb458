//! Sessions over streams that a test makes, between nodes that it turns.

use std::{
    net::{TcpListener, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use ibex_base::tls::TlsConnection;
use ibex_protocol::format::{
    channel_window::{ChannelWindow, HALF_WINDOW},
    control::{ChannelSpec, Control},
    frame::{FRAME_ALIGNMENT, FrameHeader, FrameKind, HEADER_BYTES},
    frame_check::{CHECK_BYTES, Coverage, write_checks},
    message_version::MessageVersion,
};

use crate::{
    channel::{ReceiveHandle, SendHandle},
    engine::Admission,
    node::SessionShared,
    runtime::{Driver, Runtime, RuntimeConfig},
    session::{Fabric, PeerDescription, PeerNames},
    shared_memory::UnixWires,
    wire::WireParts,
};

pub(crate) fn runtime(driver: Driver) -> Arc<Runtime> {
    Runtime::start(RuntimeConfig {
        session_credit_bytes: 4 << 20,
        node_credit_bytes: 64 << 20,
        ..RuntimeConfig::of_test(driver)
    })
    .unwrap()
}

pub(crate) fn connection() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let dialed = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    [dialed, listener.accept().unwrap().0]
}

pub(crate) fn admit(
    runtime: &Arc<Runtime>,
    stream: TcpStream,
    unix: Option<UnixWires>,
) -> Arc<SessionShared> {
    admit_sealed(runtime, stream, unix, None)
}

pub(crate) fn admit_sealed(
    runtime: &Arc<Runtime>,
    stream: TcpStream,
    unix: Option<UnixWires>,
    tls: Option<Box<dyn TlsConnection>>,
) -> Arc<SessionShared> {
    stream.set_nodelay(true).unwrap();
    let fabric = match unix {
        Some(_) => Fabric::Shm,
        None => Fabric::Tcp,
    };
    let admission = Admission {
        reconnect: None,
        peer: PeerDescription {
            names: PeerNames::default(),
            address: stream.peer_addr().unwrap().into(),
            identity: [0; 16],
            incarnation: 0,
            began: Instant::now(),
            pid: None,
            fabric,
            reason: "the test says so".to_owned(),
            known_to: None,
        },
        parts: WireParts {
            stream,
            leftover: Vec::new(),
            tls,
            rdma: None,
        },
        unix,
        payload_checksums: false,
        max_channels: 1 << 10,
        engine: None,
        place: Box::new(()),
    };
    runtime.admit(admission).unwrap()
}

/// Returns the properties of a channel of bytes, in messages of up to `longest`.
pub(crate) fn spec_of_bytes(window: ChannelWindow, longest: u64) -> ChannelSpec {
    ChannelSpec {
        newest: MessageVersion {
            fingerprint: [1; 16],
            schema: "bytes".to_owned(),
            alignment: 8,
        },
        older: Vec::new(),
        window,
        max_message_bytes: longest,
        max_unreleased_bytes: u64::MAX,
        is_traced: false,
    }
}

/// Opens a channel from the first session to the second.
pub(crate) fn channel(
    from: (&Arc<Runtime>, &Arc<SessionShared>),
    to: (&Arc<Runtime>, &Arc<SessionShared>),
) -> (SendHandle, ReceiveHandle) {
    let window = ChannelWindow {
        messages: 1 << 14,
        bytes: 1 << 20,
    };
    let spec = spec_of_bytes(window, 1 << 20);
    let timeout = Duration::from_secs(60);
    let sender = from.0.open_sender(from.1, "log", spec.clone(), timeout);
    let receiver = to.0.open_receiver(to.1, "log", spec, timeout, HALF_WINDOW);
    (sender.unwrap(), receiver.unwrap())
}

pub(crate) fn settle(nodes: [&Arc<Runtime>; 2]) {
    while nodes.map(|node| node.poll_ready()) != [false; 2] {}
}

/// Returns a control frame that follows `number` others.
pub(crate) fn control_frame(number: u64, control: Option<&Control>) -> Vec<u8> {
    let mut body = Vec::new();
    if let Some(control) = control {
        control.encode(&mut body);
    }
    let header = FrameHeader {
        length: (HEADER_BYTES + body.len()) as u32,
        ..FrameHeader::new(FrameKind::Control, 0, 0)
    };
    let mut bytes = vec![0; CHECK_BYTES];
    header.append_to(None, &mut bytes);
    bytes.append(&mut body);
    bytes.resize(bytes.len().next_multiple_of(FRAME_ALIGNMENT), 0);
    write_checks(number, &mut bytes, None, Coverage::Whole);
    bytes
}
