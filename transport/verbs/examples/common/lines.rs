//! The lines of `devinfo`.

use std::fmt::Display;

use ibex_verbs::DeviceAttributes;

/// The lines that are printed.
#[derive(Default)]
pub(crate) struct Lines(pub(crate) Vec<String>);

impl Lines {
    /// Adds a name and its value.
    pub(crate) fn add(&mut self, name: &str, value: impl Display) {
        self.0.push(format!("{name}: {value}"));
    }

    /// Adds a line.
    pub(crate) fn say(&mut self, text: impl Into<String>) {
        self.0.push(text.into());
    }

    /// Adds the names of the bits that are set, each of which stands beside its number.
    pub(crate) fn bits(&mut self, set: u64, names: &[(u32, &str)]) {
        let mut unknown = set;
        for (bit, name) in names {
            if set >> bit & 1 == 1 {
                self.say(*name);
                unknown &= !(1 << bit);
            }
        }
        if unknown != 0 {
            self.say(format!("Unknown flags: {unknown:#X}").replace("0X", "0x"));
        }
    }

    /// Adds what `ibv_query_device_ex` tells.
    pub(crate) fn extended(&mut self, notified: &DeviceAttributes) {
        self.say("general_odp_caps:");
        if notified.on_demand_paging {
            self.say("ODP_SUPPORT");
        }
        match notified.timestamp_mask {
            0 => self.say("completion_timestamp_mask not supported"),
            mask => self.add("completion timestamp_mask", format!("{mask:#018x}")),
        }
        match notified.clock_kilohertz {
            0 => self.say("core clock not supported"),
            ticks => self.add("hca_core_clock", format!("{ticks}kHZ")),
        }
        if notified.device_memory_bytes > 0 {
            let bytes = format!("{}Bytes", notified.device_memory_bytes);
            self.add("maximum available device memory", bytes);
        }
        self.add("num_comp_vectors", notified.completion_vectors);
    }
}
