//! Lists the GIDs of all ports of this machine: what `show_gids` of MLNX_OFED prints.
//!
//! ```text
//! cargo run -p ibex-verbs --features fake --example show_gids
//! cargo run -p ibex-verbs --features libibverbs --example show_gids
//! ```

#[path = "common/mod.rs"]
mod common;

use std::sync::Arc;

use common::Outcome;
use ibex_verbs::{Device, GidEntry, GidScope, GidType, provider::Provider};

/// Returns the table, a line for each GID.
pub(crate) fn table(provider: &Arc<dyn Provider>) -> Outcome<String> {
    let mut text = line(["DEV", "PORT", "INDEX", "GID", "IPv4", "VER", "NETDEV"]);
    for entry in provider.devices()? {
        let device = Device::open(provider, &entry.name)?;
        for port in 1..=device.attributes().ports {
            for gid in device.gids(port)? {
                text += &row(device.name(), port, &gid);
            }
        }
    }
    Ok(text)
}

fn row(device: &str, port: u8, entry: &GidEntry) -> String {
    let ipv4 = match entry.gid.scope() {
        GidScope::Ipv4(address) => address.to_string(),
        _ => String::new(),
    };
    let version = match entry.gid_type {
        GidType::RoceV1 => "v1".to_owned(),
        GidType::RoceV2 => "v2".to_owned(),
        other => other.to_string(),
    };
    let netdev = match entry.interface_index {
        0 => String::new(),
        index => netdev(index).unwrap_or_else(|| format!("interface {index}")),
    };
    let groups: Vec<_> = entry.gid.0.chunks(2).map(hex).collect();
    line([
        device,
        &port.to_string(),
        &entry.index.to_string(),
        &groups.join(":"),
        &ipv4,
        &version,
        &netdev,
    ])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the name of a network interface.
fn netdev(index: u32) -> Option<String> {
    let entries = std::fs::read_dir("/sys/class/net").ok()?;
    let is_meant = |path: &std::path::Path| {
        let notified = std::fs::read_to_string(path.join("ifindex"));
        notified.is_ok_and(|notified| notified.trim() == index.to_string())
    };
    let mut paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let found = paths.find(|path| is_meant(path))?;
    Some(found.file_name()?.to_str()?.to_owned())
}

fn line([device, port, index, gid, ipv4, version, netdev]: [&str; 7]) -> String {
    format!("{device:<10} {port:<4} {index:<5} {gid:<39} {ipv4:<15} {version:<10} {netdev}\n")
}

fn main() -> Outcome {
    print!("{}", table(&common::provider()?)?);
    Ok(())
}
