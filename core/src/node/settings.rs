//! A node's settings, each within its range.

use std::{path::PathBuf, sync::Arc, thread, time::Duration};

use ibex_base::tls::TlsCredentials;
use ibex_bootstrap::{Integrity, Policy, ShareWith};
use ibex_protocol::format::trace_context::TraceContext;
use ibex_ring::memory::process_memory_limit;
use ibex_transport::{node::Wait, runtime::Driver, shared_memory};

#[cfg(feature = "verbs")]
use crate::rdma::RdmaSettings;
use crate::{
    Fabric,
    accept_placement::AcceptPlacement,
    node::{
        builder::{LimitSettings, ThreadSettings, TimeSettings, is_compiled_in},
        part::NodePart,
    },
    peer::channel_defaults::ChannelDefaults,
    setting::SettingConflict,
};

/// Settings of a node.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeSettings {
    pub(crate) name: Option<Arc<str>>,
    pub(crate) threads: ThreadSettings,
    pub(crate) wait: Option<Wait>,
    pub(crate) cores: Vec<usize>,
    pub(crate) placement: Option<AcceptPlacement>,
    pub(crate) shm: Policy,
    pub(crate) tcp: Policy,
    pub(crate) verbs: Policy,
    pub(crate) integrity: Integrity,
    pub(crate) share_memory_with: ShareWith,
    pub(crate) shared_memory_directory: Option<PathBuf>,
    pub(crate) credentials: Option<Arc<dyn TlsCredentials>>,
    /// The credentials, as those that can be read again.
    #[cfg(feature = "tls")]
    pub(crate) reloadable: Option<Arc<ibex_tls::Credentials>>,
    #[cfg(feature = "verbs")]
    pub(crate) rdma: RdmaSettings,
    pub(crate) time: TimeSettings,
    pub(crate) identity: Option<[u8; 16]>,
    pub(crate) limits: LimitSettings,
    pub(crate) histograms: bool,
    pub(crate) channel: ChannelDefaults,
    pub(crate) trace_context: Option<fn() -> Option<TraceContext>>,
    /// The parts that other crates add, one of each type.
    pub(crate) parts: Vec<NodePart>,
}

impl NodeSettings {
    /// Checks that the settings go together, given that each is within its range.
    pub(crate) fn check_relations(&self) -> Result<(), SettingConflict> {
        let mut wishes = vec![
            (Fabric::Shm, self.shm),
            (Fabric::Tcp, self.tcp),
            (Fabric::Verbs, self.verbs),
        ];
        wishes.retain(|(fabric, _)| is_compiled_in(*fabric));
        check_fabrics(&wishes)?;
        self.check_io_threads()?;
        self.check_cores()?;
        #[cfg(feature = "verbs")]
        self.rdma.check_relations()?;
        Ok(())
    }

    /// Checks that callers turn one engine alone, and that each engine has some credit of its own.
    fn check_io_threads(&self) -> Result<(), SettingConflict> {
        if self.threads.driver == Driver::Caller && self.threads.io_threads > 1 {
            return Err(SettingConflict {
                settings: ["driver", "io_threads"],
                values: [
                    format!("{:?}", self.threads.driver),
                    self.threads.io_threads.to_string(),
                ],
                rule: "callers turn one engine; leave io_threads out, or make several nodes"
                    .to_owned(),
            });
        }
        let least = self.threads.io_threads as u64 * LEAST_CREDIT;
        if self.threads.io_threads > 1 && self.limits.node_credit_bytes < least {
            return Err(SettingConflict {
                settings: ["io_threads", "node_credit_bytes"],
                values: [
                    self.threads.io_threads.to_string(),
                    self.limits.node_credit_bytes.to_string(),
                ],
                rule: format!(
                    "each engine has {LEAST_CREDIT} bytes of node_credit_bytes at least; give the \
                     node {least} or fewer I/O threads"
                ),
            });
        }
        Ok(())
    }

    /// Checks that there is an I/O thread if it is to have cores.
    fn check_cores(&self) -> Result<(), SettingConflict> {
        if self.threads.driver == Driver::Threads || self.cores.is_empty() {
            return Ok(());
        }
        Err(SettingConflict {
            settings: ["driver", "cores"],
            values: [
                format!("{:?}", self.threads.driver),
                format!("{:?}", self.cores),
            ],
            rule: "only Driver::Threads has an I/O thread to put on cores; leave cores out"
                .to_owned(),
        })
    }

    /// Returns the bytes that peers may make the nodes of this process hold, as far as this node is
    /// concerned.
    pub(crate) fn memory_limit(&self) -> u64 {
        let default = || process_memory_limit() / 4;
        self.limits
            .memory_limit
            .unwrap_or_else(|| default().max(LEAST_MEMORY_LIMIT))
    }

    /// Returns whether all sessions must use verbs.
    #[cfg(feature = "verbs")]
    pub(crate) fn needs_verbs(&self) -> bool {
        let has_others = self.shm != Policy::Forbid || self.tcp != Policy::Forbid;
        self.verbs == Policy::Require || (self.verbs != Policy::Forbid && !has_others)
    }

    /// Returns whether the kernel or a sandbox denies this process the memory files that shared
    /// memory needs. A shortage is no denial: it may be over when a peer comes.
    pub(crate) fn is_shm_denied(&self) -> bool {
        if self.shm == Policy::Forbid {
            return false;
        }
        match shared_memory::probe() {
            Err(error) if error.is_denied() => {
                warn_limited!(error, %error, "this node has no shared memory; its sessions use other fabrics");
                true
            }
            _ => false,
        }
    }

    /// Returns how calls wait: for a peer's memory, and for the engine.
    pub(crate) fn waits(&self) -> (Wait, Wait) {
        if let Some(wait) = self.wait {
            return (wait, wait);
        }
        let spin = Wait::Adaptive { spin: SPIN };
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        match self.threads.driver {
            _ if cpus == 1 => (Wait::Event, Wait::Event),
            // A thread that spins while it waits for the I/O thread would keep a core from it.
            Driver::Threads
                if cpus < 4 && (!self.cores.is_empty() || self.threads.io_threads > 1) =>
            {
                (spin, Wait::Event)
            }
            _ => (spin, spin),
        }
    }
}

/// Returns an error if no session is possible with these policies.
fn check_fabrics(wishes: &[(Fabric, Policy)]) -> Result<(), SettingConflict> {
    let with = |policy| {
        let fits = wishes.iter().filter(move |(_, wish)| *wish == policy);
        fits.map(|(fabric, _)| fabric.name()).collect::<Vec<_>>()
    };
    let conflict = |settings, value: &str, rule: &str| SettingConflict {
        settings,
        values: [value.to_owned(), value.to_owned()],
        rule: rule.to_owned(),
    };
    if let [one, other, ..] = with(Policy::Require)[..] {
        let rule = "a session runs on one fabric; require one of them";
        return Err(conflict([one, other], "required", rule));
    }
    if let [one, other, ..] = with(Policy::Forbid)[..]
        && with(Policy::Forbid).len() == wishes.len()
    {
        let rule = "no fabric of this build is left for a session; allow one";
        return Err(conflict([one, other], "forbidden", rule));
    }
    Ok(())
}

/// The least credit that is of use to an engine, since one TCP session may hold as much.
const LEAST_CREDIT: u64 = 1 << 20;
/// The least that peers' large messages may have, which is that of the setting's range.
const LEAST_MEMORY_LIMIT: u64 = 1 << 20;

/// The time that falling asleep and being woken take together, on machines where this takes long.
/// With a shorter spin, two threads that wait for each other would sleep at every message from the
/// first delay on.
const SPIN: Duration = Duration::from_micros(50);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeBuilder;

    /// Rows without a field of their own only document the default, which is this struct's.
    #[test]
    fn rows_say_the_defaults_that_a_node_has() {
        let rows = NodeBuilder::settings();
        let said = |name: &str| {
            let is_it = |row: &&crate::setting::SettingRow| {
                row.builder == "NodeBuilder" && row.name == name
            };
            rows.iter().find(is_it).map_or("no row", |row| row.default)
        };
        let settings = NodeSettings::default();
        assert_eq!(said("histograms"), settings.histograms.to_string());
        assert_eq!(
            said("integrity"),
            format!("[`Integrity::{:?}`]", settings.integrity)
        );
        let spin = SPIN.as_micros();
        assert_eq!(said("wait"), format!("spin for {spin} µs, then sleep"));
    }

    #[test]
    fn the_table_by_purpose_has_every_setting_of_a_node() {
        let source = include_str!("builder.rs");
        for row in NodeBuilder::settings() {
            let shown = format!("`{}`", row.name);
            assert!(
                row.builder != "NodeBuilder" || source.contains(&shown),
                "{shown} is missing in the documentation of NodeBuilder"
            );
        }
    }
}
