//! The settings of an RDMA port on a device that lacks the abilities that a [`Mask`] takes away.
#![forbid(unsafe_code)]

use ibex_verbs::provider::fake::Mask;

use super::PortSettings;

/// Returns a function that makes settings which a masked device needs, or which exercise the
/// missing ability.
///
/// # Panics
/// If the mask has a name that none of [`Mask::ALL`] has.
#[must_use]
pub fn settings_of(mask: &Mask) -> fn(&mut PortSettings) {
    match mask.name {
        "whole" | "no-shared-receives" | "no-inline" | "one-piece" | "two-pieces" | "small-mtu" => {
            |_| ()
        }
        // Devices write to each other's memory, with immediate data if they support it.
        "trusted" | "no-immediate" => |settings| settings.grants_memory = true,
        "tiny-queues" => |settings| shrink(settings, 21),
        "all-of-it" => |settings| {
            settings.grants_memory = true;
            shrink(settings, 22);
        },
        name => panic!("no settings are known for the mask {name}"),
    }
}

/// Makes two sessions fit into the smallest queues.
fn shrink(settings: &mut PortSettings, receive_buffers: u32) {
    settings.max_sessions = 2;
    settings.receive_buffers = receive_buffers;
    settings.held_buffers = 0;
    settings.session_credit = 2;
    settings.send_requests = 64;
}
