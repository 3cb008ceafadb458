//! Prints what a device tells of itself, line by line as rdma-core's `ibv_devinfo -v` does, without what
//! is for verbs that this crate does not have.
//!
//! ```text
//! cargo run -p ibex-verbs --features fake --example devinfo
//! cargo run -p ibex-verbs --features libibverbs --example devinfo -- rxe0
//! ```
//!
//! Without a name it prints all devices. The order, the names and the values are those of
//! `ibv_devinfo`; only the space between a name and its value is another.

#[path = "common/mod.rs"]
mod common;

use std::env;
use std::fs;
use std::sync::Arc;

use common::Outcome;
use common::lines::Lines;
use common::names::{CAPABILITIES, gid, guid};
use ibex_verbs::{
    Device, DeviceAttributes, LinkLayer, PhysicalState, PortAttributes, PortState,
    provider::{DeviceEntry, Provider, Transport},
};

impl Lines {
    fn device(&mut self, entry: &DeviceEntry, notified: &DeviceAttributes) {
        let transport = match entry.transport {
            Transport::InfiniBand => "InfiniBand (0)".to_owned(),
            Transport::Iwarp => "iWARP (1)".to_owned(),
            other => other.to_string(),
        };
        self.add("hca_id", &entry.name);
        self.add("transport", transport);
        if !notified.firmware.is_empty() {
            self.add("fw_ver", &notified.firmware);
        }
        self.add("node_guid", guid(notified.node_guid));
        self.add("sys_image_guid", guid(notified.system_image_guid));
        self.add("vendor_id", format!("{:#06x}", notified.vendor_id));
        self.add("vendor_part_id", notified.vendor_part_id);
        self.add("hw_ver", format!("0x{:X}", notified.hardware_version));
        let board = fs::read_to_string(format!("/sys/class/infiniband/{}/board_id", entry.name));
        if let Ok(board) = board.as_deref().map(str::trim)
            && !board.is_empty()
        {
            self.add("board_id", board);
        }
        self.add("phys_port_cnt", notified.ports);
        self.add(
            "max_mr_size",
            format!("{:#x}", notified.max_memory_region_bytes),
        );
        self.add("page_size_cap", format!("{:#x}", notified.page_sizes));
        self.add("max_qp", notified.max_queue_pairs);
        self.add("max_qp_wr", notified.max_queue_pair_requests);
        self.add(
            "device_cap_flags",
            format!("{:#010x}", notified.capabilities),
        );
        self.bits(notified.capabilities.into(), CAPABILITIES);
        self.add("max_sge", notified.max_entries);
        self.add("max_sge_rd", notified.max_read_entries);
        self.add("max_cq", notified.max_completion_queues);
        self.add("max_cqe", notified.max_completions);
        self.add("max_mr", notified.max_memory_regions);
        self.add("max_pd", notified.max_protection_domains);
        self.add("max_qp_rd_atom", notified.max_responder_resources);
        self.add("max_res_rd_atom", notified.max_total_responder_resources);
        self.add("max_qp_init_rd_atom", notified.max_initiator_depth);
        let number = notified.atomics.to_raw();
        self.add("atomic_cap", format!("{} ({number})", notified.atomics));
        self.add("max_mw", notified.max_windows);
        self.add("max_mcast_grp", notified.max_multicast_groups);
        self.add("max_mcast_qp_attach", notified.max_multicast_pairs);
        self.add(
            "max_total_mcast_qp_attach",
            notified.max_total_multicast_pairs,
        );
        self.add("max_ah", notified.max_address_handles);
        self.add("max_srq", notified.max_shared_receive_queues);
        if notified.max_shared_receive_queues > 0 {
            self.add("max_srq_wr", notified.max_shared_receive_requests);
            self.add("max_srq_sge", notified.max_shared_receive_entries);
        }
        self.add("max_pkeys", notified.max_pkeys);
        self.add("local_ca_ack_delay", notified.ack_delay_code);
        self.extended(notified);
    }

    fn port(&mut self, number: u8, notified: &PortAttributes, transport: Transport) {
        let state = match notified.state {
            PortState::Down => "PORT_DOWN (1)".to_owned(),
            PortState::Initializing => "PORT_INIT (2)".to_owned(),
            PortState::Armed => "PORT_ARMED (3)".to_owned(),
            PortState::Active => "PORT_ACTIVE (4)".to_owned(),
            PortState::Nop => "invalid state (0)".to_owned(),
            PortState::ActiveDeferred => "invalid state (5)".to_owned(),
            PortState::Unknown(raw) => format!("invalid state ({raw})"),
        };
        self.add("port", number);
        self.add("state", state);
        self.add(
            "max_mtu",
            format!("{} ({})", notified.max_mtu, notified.max_mtu.to_raw()),
        );
        self.add(
            "active_mtu",
            format!("{} ({})", notified.active_mtu, notified.active_mtu.to_raw()),
        );
        self.add("sm_lid", notified.manager_lid);
        self.add("port_lid", notified.lid);
        self.add("port_lmc", format!("{:#04x}", notified.lid_mask_bits));
        self.add("link_layer", notified.link_layer);
        self.add("max_msg_sz", format!("{:#x}", notified.max_message_bytes));
        self.add("port_cap_flags", format!("{:#010x}", notified.capabilities));
        self.add(
            "port_cap_flags2",
            format!("{:#06x}", notified.capabilities2),
        );
        let code = notified.virtual_lanes_code;
        let lanes = ["invalid value", "1", "2", "4", "8", "15"];
        let lanes = lanes.get(usize::from(code)).unwrap_or(&lanes[0]);
        self.add("max_vl_num", format!("{lanes} ({code})"));
        self.add("bad_pkey_cntr", format!("{:#x}", notified.bad_pkeys));
        self.add("qkey_viol_cntr", format!("{:#x}", notified.qkey_violations));
        self.add("sm_sl", notified.manager_service_level);
        self.add("pkey_tbl_len", notified.pkey_table_len);
        self.add("gid_tbl_len", notified.gid_table_len);
        self.add("subnet_timeout", notified.subnet_timeout_code);
        self.add("init_type_reply", notified.init_type_reply);
        self.add(
            "active_width",
            format!("{} ({})", notified.width, notified.width.0),
        );
        self.add(
            "active_speed",
            format!("{} ({})", notified.speed, notified.speed.0),
        );
        if transport == Transport::InfiniBand {
            let number = match notified.physical_state {
                PhysicalState::Unknown(raw) => Some(raw),
                known => (1..=7).find(|raw| PhysicalState::from_raw(*raw) == known),
            };
            let number = number.unwrap_or_default();
            self.add(
                "phys_state",
                format!("{} ({number})", notified.physical_state),
            );
        }
    }
}

/// Returns the lines of one device.
pub(crate) fn describe(provider: &Arc<dyn Provider>, entry: &DeviceEntry) -> Outcome<Lines> {
    let device = Device::open(provider, &entry.name)?;
    let mut lines = Lines::default();
    lines.device(entry, device.attributes());
    for number in 1..=device.attributes().ports {
        let port = device.query_port(number)?;
        lines.port(number, &port, entry.transport);
        let is_ethernet = port.link_layer == LinkLayer::Ethernet;
        for entry in device.gids(number)? {
            lines.add(&format!("GID[{:3}]", entry.index), gid(&entry, is_ethernet));
        }
    }
    Ok(lines)
}

fn main() -> Outcome {
    let provider = common::provider()?;
    let wanted = env::args().nth(1);
    for entry in provider.devices()? {
        if wanted.as_ref().is_none_or(|wanted| *wanted == entry.name) {
            println!("{}\n", describe(&provider, &entry)?.0.join("\n"));
        }
    }
    Ok(())
}
