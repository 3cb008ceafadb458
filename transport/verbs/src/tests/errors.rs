//! Errors that users meet first, each with its text.

use rustix::io::Errno;

use super::*;
use crate::provider::{
    Transport,
    fake::{Call, FaultScript},
};

fn open_error(fake: &FakeProvider, name: &str) -> String {
    Device::open(&fake.provider(), name)
        .unwrap_err()
        .to_string()
}

#[test]
fn a_kernel_without_verbs() {
    let fake = one_device();
    fake.refuse(Call::Devices, Errno::NOSYS);
    let error = Device::open(&fake.provider(), DEVICE).unwrap_err();
    assert!(error.is_absence());
    assert_eq!(
        error.to_string(),
        "RDMA cannot be used: the kernel offers no verbs (Function not implemented (os error 38)); \
         `modprobe ib_uverbs`, or, inside a container, have the host do so"
    );
}

#[test]
fn a_device_of_another_name() {
    let fake = FakeProvider::new(vec![
        FakeDevice::soft_roce("rxe0", 7, ADDRESS),
        FakeDevice::infiniband("mlx5_0", 3),
    ]);
    assert_eq!(
        open_error(&fake, "mlx5_1"),
        "there is no RDMA device \"mlx5_1\"; there are: rxe0, mlx5_0"
    );
}

#[test]
fn a_device_that_may_not_be_opened() {
    let fake = one_device();
    fake.refuse(Call::Open, Errno::ACCESS);
    assert_eq!(
        open_error(&fake, DEVICE),
        "RDMA device rxe0 cannot be opened: Permission denied (os error 13); let this user read \
         and write /dev/infiniband/uverbs* (group rdma; systemd: PrivateDevices=no or \
         DeviceAllow=)"
    );
}

/// The list is taken a second time to open a device of it.
#[test]
fn a_list_that_is_refused_while_a_device_is_opened_keeps_its_errno() {
    let fake = one_device();
    fake.play(&FaultScript::new().refuse(Call::Devices, 2, Errno::MFILE));
    assert_eq!(
        open_error(&fake, DEVICE),
        "RDMA cannot be used: the list of devices was refused: ibv_get_device_list: Too many open \
         files (os error 24); raise the limit of open files (ulimit -n)"
    );
    fake.play(&FaultScript::new().refuse(Call::Devices, 2, Errno::NOSYS));
    let error = Device::open(&fake.provider(), DEVICE).unwrap_err();
    assert!(matches!(error, crate::VerbsError::NoKernelSupport { .. }));
}

#[test]
fn a_transport_that_is_neither_infiniband_nor_roce() {
    for (transport, name) in [
        (Transport::Iwarp, "iWARP"),
        (Transport::Unspecified, "vendor-specific (EFA and the like)"),
        (Transport::Unknown(42), "unknown (42)"),
    ] {
        let fake = one_device();
        fake.change(DEVICE, |device| device.transport = transport);
        assert_eq!(
            open_error(&fake, DEVICE),
            format!(
                "RDMA device rxe0 speaks {name}; this library needs reliable connections over \
                 InfiniBand or RoCE; choose another device or another fabric"
            )
        );
        assert!(fake.alive().is_empty(), "it was not even opened");
    }
}

#[test]
fn a_port_that_is_not_there() {
    let fake = one_device();
    let device = Device::open(&fake.provider(), DEVICE).unwrap();
    for port in [0, 2] {
        assert_eq!(
            device.query_port(port).unwrap_err().to_string(),
            format!("RDMA device rxe0 has no port {port}: it has ports 1 to 1")
        );
    }
}

#[test]
fn limits_of_queues_say_what_was_asked_for_and_what_there_is() {
    let fake = one_device();
    fake.change(DEVICE, |device| {
        device.attributes.max_completions = 100;
        device.attributes.max_queue_pair_requests = 50;
        device.attributes.max_shared_receive_requests = 60;
    });
    let device = Device::open(&fake.provider(), DEVICE).unwrap();
    let domain = ProtectionDomain::new(&device).unwrap();
    assert_eq!(
        CompletionQueue::polled(&device, 101)
            .unwrap_err()
            .to_string(),
        "RDMA device rxe0 cannot make a completion queue: 101 were asked for and its limit is \
         100; lower the depth of the send and receive queues"
    );
    assert_eq!(
        ReceiveQueue::shared(&domain, 61, 1)
            .unwrap_err()
            .to_string(),
        "RDMA device rxe0 cannot make a shared receive queue of that depth: 61 were asked for \
         and its limit is 60; lower its depth (receive_buffers)"
    );
    let completions = CompletionQueue::polled(&device, 100).unwrap();
    let builder = QueuePairBuilder::new(&domain, &completions).send_requests(50);
    let error = builder.build(1, ConnectionSettings::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "RDMA device rxe0 cannot make a queue pair with that many sends: 51 were asked for and \
         its limit is 50; lower send_requests"
    );
    let builder = QueuePairBuilder::new(&domain, &completions).send_requests(40);
    let builder = builder.receives(50, 1);
    let error = builder.build(1, ConnectionSettings::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "RDMA device rxe0 cannot make a queue pair with that many receives: 51 were asked for \
         and its limit is 50; lower its receives (session_credit)"
    );
}

#[test]
fn a_device_without_shared_receive_queues_names_the_other_way() {
    let fake = one_device();
    fake.change(DEVICE, |device| {
        device.attributes.max_shared_receive_queues = 0;
    });
    let device = Device::open(&fake.provider(), DEVICE).unwrap();
    let domain = ProtectionDomain::new(&device).unwrap();
    let text = ReceiveQueue::shared(&domain, 16, 1)
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("the queue pairs' own receive queues"),
        "{text}"
    );
}

#[test]
fn no_more_queue_pairs() {
    let fake = one_device();
    fake.change(DEVICE, |device| device.attributes.max_queue_pairs = 1);
    let end = End::new(&fake.provider(), USUAL);
    let domain = ProtectionDomain::new(&end.device).unwrap();
    let error = QueuePairBuilder::new(&domain, &end.completions)
        .build(1, ConnectionSettings::default())
        .unwrap_err();
    // The request exceeds no limit. The user who runs this test determines whether the limit on
    // locked memory is the reason.
    let text = error.to_string();
    let start = "RDMA device rxe0: ibv_create_qp failed: Cannot allocate memory (os error 12); \
                 the device has no room for it";
    assert!(text.starts_with(start), "{text}");
}

#[test]
fn a_refused_registration_is_told_and_leaves_nothing() {
    let fake = one_device();
    let device = Device::open(&fake.provider(), DEVICE).unwrap();
    let domain = ProtectionDomain::new(&device).unwrap();
    fake.refuse(Call::Register, Errno::INVAL);
    let error = MemoryRegion::register(&domain, memory(), RegionAccess::SEND).unwrap_err();
    assert_eq!(
        error.to_string(),
        "RDMA device rxe0: ibv_reg_mr failed: Invalid argument (os error 22); the memory stays \
         unregistered; free memory or register less"
    );
    assert!(!fake.alive().contains_key("memory regions"));
}

#[test]
fn a_queue_pair_of_two_devices_is_refused_by_name() {
    let fake = FakeProvider::new(vec![soft_roce(), FakeDevice::soft_roce("rxe1", 8, ADDRESS)]);
    let provider = fake.provider();
    let open = |name| Device::open(&provider, name).unwrap();
    let (here, other) = (open(DEVICE), open("rxe1"));
    let domain = ProtectionDomain::new(&here).unwrap();
    let completions = CompletionQueue::polled(&here, 64).unwrap();
    let foreign = CompletionQueue::polled(&other, 64).unwrap();
    let settings = ConnectionSettings::default;

    let mixed = QueuePairBuilder::new(&domain, &foreign).build(1, settings());
    assert_eq!(
        mixed.unwrap_err().to_string(),
        "the completion queue of sends belongs to RDMA device rxe1, and the protection domain to \
         rxe0: make all objects of a queue pair from one open device"
    );
    let receives = QueuePairBuilder::new(&domain, &completions).receive_completions(&foreign);
    assert!(receives.build(1, settings()).is_err());
    let elsewhere = ProtectionDomain::new(&other).unwrap();
    let shared = ReceiveQueue::shared(&elsewhere, 15, 2).unwrap();
    let shared = QueuePairBuilder::new(&domain, &completions).shared_receive_queue(&shared);
    assert!(shared.build(1, settings()).is_err());
}
