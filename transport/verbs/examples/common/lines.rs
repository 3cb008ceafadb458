//! The lines of `devinfo`.

use std::fmt::Display;

use ibex_verbs::DeviceAttributes;

use super::names::{CAPABILITIES_EX, ON_DEMAND, PAIR_TYPES, RAW_PACKETS};

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
    pub(crate) fn extended(&mut self, told: &DeviceAttributes) {
        let more = &told.extended;
        self.say("general_odp_caps:");
        self.bits(
            more.on_demand.general,
            &[(0, "ODP_SUPPORT"), (1, "ODP_SUPPORT_IMPLICIT")],
        );
        for (name, bits) in [
            ("rc_odp_caps:", more.on_demand.reliable_connections),
            ("uc_odp_caps:", more.on_demand.unreliable_connections),
            ("ud_odp_caps:", more.on_demand.unreliable_datagrams),
            ("xrc_odp_caps:", more.on_demand.extended_connections),
        ] {
            self.say(name);
            match bits {
                0 => self.say("NO SUPPORT"),
                _ => self.bits(bits.into(), ON_DEMAND),
            }
        }
        match more.timestamp_mask {
            0 => self.say("completion_timestamp_mask not supported"),
            mask => self.add("completion timestamp_mask", format!("{mask:#018x}")),
        }
        match more.clock_kilohertz {
            0 => self.say("core clock not supported"),
            ticks => self.add("hca_core_clock", format!("{ticks}kHZ")),
        }
        if more.raw_packet_capabilities != 0 {
            self.say("raw packet caps:");
            self.bits(more.raw_packet_capabilities.into(), RAW_PACKETS);
        }
        self.add("device_cap_flags_ex", format!("0x{:X}", more.capabilities));
        self.bits(more.capabilities & !0xffff_ffff, CAPABILITIES_EX);
        self.say("tso_caps:");
        self.add("max_tso", more.segmentation.max_bytes);
        if more.segmentation.max_bytes > 0 {
            self.say("supported_qp:");
            self.bits(more.segmentation.pair_types.into(), PAIR_TYPES);
        }
        self.say("rss_caps:");
        self.add("max_rwq_indirection_tables", more.hashing.max_tables);
        self.add(
            "max_rwq_indirection_table_size",
            more.hashing.max_table_entries,
        );
        self.add("rx_hash_function", format!("{:#x}", more.hashing.functions));
        self.add(
            "rx_hash_fields_mask",
            format!("0x{:X}", more.hashing.fields),
        );
        if more.hashing.pair_types != 0 {
            self.say("supported_qp:");
            self.bits(more.hashing.pair_types.into(), PAIR_TYPES);
        }
        self.add("max_wq_type_rq", more.max_receive_work_queues);
        self.say("packet_pacing_caps:");
        self.add(
            "qp_rate_limit_min",
            format!("{}kbps", more.pacing.min_kilobits),
        );
        self.add(
            "qp_rate_limit_max",
            format!("{}kbps", more.pacing.max_kilobits),
        );
        if more.pacing.max_kilobits > 0 {
            self.say("supported_qp:");
            self.bits(more.pacing.pair_types.into(), PAIR_TYPES);
        }
        let tags = &more.tag_matching;
        if tags.max_tags > 0 {
            self.add("max_rndv_hdr_size", tags.max_header_bytes);
            self.add("max_num_tags", tags.max_tags);
            self.add("max_ops", tags.max_operations);
            self.add("max_sge", tags.max_entries);
            self.say("flags:");
            self.bits((tags.flags & 1).into(), &[(0, "IBV_TM_CAP_RC")]);
        } else {
            self.say("tag matching not supported");
        }
        if more.max_moderation_count > 0 && more.max_moderation_micros > 0 {
            self.say("cq moderation caps:");
            self.add("max_cq_count", more.max_moderation_count);
            self.add(
                "max_cq_period",
                format!("{} us", more.max_moderation_micros),
            );
        }
        if more.device_memory_bytes > 0 {
            let bytes = format!("{}Bytes", more.device_memory_bytes);
            self.add("maximum available device memory", bytes);
        }
        self.add("num_comp_vectors", told.completion_vectors);
    }
}
