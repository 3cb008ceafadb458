//! Device features to do without, to show that everything works without them.
//!
//! `IBEX_TEST_MASK` names the mask. A variable of its own, `IBEX_RDMA_COMPLETIONS`, selects the way
//! of polling.

use std::env;

use ibex::rdma::{RdmaSettings, Tuning};

/// Applies the mask of this run to the settings.
pub(crate) fn of_this_run(settings: RdmaSettings) -> RdmaSettings {
    let Ok(mask) = env::var("IBEX_TEST_MASK") else {
        return settings;
    };
    let tuning = Tuning::new();
    match mask.as_str() {
        "no-shared-receives" => settings.tuning(tuning.shared_receives(false)),
        "no-inline" => settings.tuning(tuning.inline_bytes(0)),
        "one-piece" => settings.tuning(tuning.send_entries(1).inline_bytes(0)),
        "no-immediate" => settings.tuning(tuning.immediate_data(false)),
        "small-mtu" => settings.tuning(tuning.path_mtu(256)),
        "tiny-queues" => settings
            .max_sessions(2)
            .receive_buffers(21)
            .held_buffers(0)
            .tuning(tuning.session_credit(2).send_requests(64)),
        unknown => panic!("there is no mask \"{unknown}\""),
    }
}
