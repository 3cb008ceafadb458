//! Tests of the choice of the calls by which an RDMA port polls its completion queue.

use ibex_verbs::{CompletionPolling, discovery::DeviceKind, provider::fake::FakeExtended};

use super::{DEVICE, choice, one_device};
use crate::rdma::{PortSettings, RdmaPort};

#[test]
fn a_port_on_hardware_is_polled_in_the_way_that_passes_the_self_test() {
    let fake = one_device();
    let choice = choice(DeviceKind::Hardware);
    let rdma_port = RdmaPort::open(&fake.provider(), &choice, PortSettings::default()).unwrap();
    let says = "extended: it passed the self-test";
    assert_eq!(rdma_port.polling().to_string(), says);
    drop(rdma_port);
    assert!(fake.alive().is_empty(), "{:?}", fake.alive());
}

#[test]
fn a_software_device_is_polled_plainly_and_a_setting_is_obeyed() {
    let fake = one_device();
    fake.change(DEVICE, |device| {
        device.extended = FakeExtended::DrainsBeyond;
    });
    let software = choice(DeviceKind::Software);
    let open = |settings| RdmaPort::open(&fake.provider(), &software, settings).unwrap();
    let rdma_port = open(PortSettings::default());
    assert_eq!(rdma_port.polling().polling, CompletionPolling::Plain);
    let forced = PortSettings {
        completion_polling: Some(CompletionPolling::Extended),
        ..PortSettings::default()
    };
    let says = "extended: the settings say so";
    assert_eq!(open(forced).polling().to_string(), says);
    assert!(fake.posted().is_empty(), "no test was made");

    fake.change(DEVICE, |device| device.extended = FakeExtended::Absent);
    let error = RdmaPort::open(&fake.provider(), &software, forced).unwrap_err();
    assert!(error.to_string().contains("ibv_create_cq_ex"), "{error}");
}
