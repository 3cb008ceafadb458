//! Devices that cannot do this or that.
#![forbid(unsafe_code)]

use super::FakeDevice;
use crate::abi::{completion_polling::CompletionPolling, port::Mtu};

/// A feature that a device lacks. Everything else works over it.
#[derive(Clone, Copy, Debug)]
pub struct Mask {
    /// The name of the mask, as in the names of tests.
    pub name: &'static str,
    /// The function that takes the feature from a device.
    pub device: fn(&mut FakeDevice),
}

impl Mask {
    /// The masks; the first takes nothing away.
    pub const ALL: &[Self] = &[
        Self {
            name: "whole",
            device: |_| (),
        },
        Self {
            name: "trusted",
            device: |_| (),
        },
        Self {
            name: "no-shared-receives",
            device: |device| device.attributes.max_shared_receive_queues = 0,
        },
        Self {
            name: "no-inline",
            device: |device| device.max_inline_bytes = 0,
        },
        Self {
            name: "one-piece",
            device: |device| device.attributes.max_entries = 1,
        },
        Self {
            name: "two-pieces",
            device: |device| device.attributes.max_entries = 2,
        },
        Self {
            name: "tiny-queues",
            device: |device| {
                device.attributes.max_queue_pair_requests = 65;
                device.attributes.max_shared_receive_requests = 21;
                device.attributes.max_completions = 160;
            },
        },
        Self {
            name: "no-immediate",
            device: |device| device.has_immediate = false,
        },
        Self {
            name: "small-mtu",
            device: |device| device.ports[0].attributes.active_mtu = Mtu::Bytes256,
        },
        Self {
            name: "all-of-it",
            device: |device| {
                device.attributes.max_shared_receive_queues = 0;
                device.attributes.max_entries = 1;
                device.attributes.max_queue_pair_requests = 65;
                device.max_inline_bytes = 0;
                device.has_immediate = false;
                device.ports[0].attributes.active_mtu = Mtu::Bytes256;
            },
        },
    ];

    /// The ways in which the completions of such a device are polled.
    pub const POLLINGS: [CompletionPolling; 2] =
        [CompletionPolling::Plain, CompletionPolling::Extended];
}
