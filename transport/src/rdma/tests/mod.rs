//! RDMA ports and sessions over the fake provider: every error path and every posted request,
//! tested on machines without a device.

mod overdue;
mod polling;
mod sessions;

use ibex_verbs::{
    Gid, GidEntry, GidType, Mtu,
    discovery::{Choice, DeviceKind},
    provider::fake::{FakeDevice, FakeProvider},
};

const DEVICE: &str = "rxe0";
const ADDRESS: [u8; 4] = [192, 0, 2, 1];

fn one_device() -> FakeProvider {
    FakeProvider::new(vec![soft_roce()])
}

/// Returns the device of `one_device` in its initial state.
fn soft_roce() -> FakeDevice {
    FakeDevice::soft_roce(DEVICE, 7, ADDRESS)
}

/// Returns the port of `one_device`.
fn choice(kind: DeviceKind) -> Choice {
    Choice {
        device: DEVICE.to_owned(),
        kind,
        port: 1,
        gid: GidEntry {
            index: 1,
            gid: Gid::of(ADDRESS.into()),
            gid_type: GidType::RoceV2,
            interface_index: 7,
        },
        netdev: None,
        partition_key: None,
        mtu: Mtu::Bytes1024,
        reason: "the test says so".to_owned(),
    }
}
