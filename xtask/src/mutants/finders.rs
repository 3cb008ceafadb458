//! The tests that must find the planted bugs.

use std::fmt;

use super::FUZZ;

/// A test, and the bugs that it must find.
#[derive(Debug)]
pub(super) struct Finder {
    /// The crate of the test.
    pub(super) package: &'static str,
    pub(super) tool: Tool,
    pub(super) test: &'static str,
    pub(super) mutants: &'static [&'static str],
}

/// The method that finds a mutant, and so the build in which it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tool {
    /// A model, checked in every order of events.
    Loom,
    /// A property, checked with drawn values.
    Proptest,
    /// A simulation of engines under faults, with many seeds.
    Simulation,
    /// A test over the fake device.
    Fake,
    /// A target of the fuzzer, with up to a million inputs.
    Target,
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Tool::Loom => "loom",
            Tool::Proptest => "proptest",
            Tool::Simulation => "simulation",
            Tool::Fake => "fake device",
            Tool::Target => "fuzz target",
        })
    }
}

pub(super) const FINDERS: &[Finder] = &[
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_publish_then_read",
        mutants: &["publish_relaxed"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_run_is_seen_whole",
        mutants: &["reveal_relaxed"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_old_payload_is_no_header",
        mutants: &["zero_missing"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_space_is_reused_after_settle",
        mutants: &["settle_relaxed", "sum_relaxed"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_advance_looks_again",
        mutants: &["mark_missing", "mark_overwritten", "advance_relaxed"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_settled_while_asked",
        mutants: &["ask_without_sum", "light_missing", "heavy_missing"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_cells_are_reused_when_empty",
        mutants: &["last_cell_relaxed", "emptied_relaxed"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_a_guard_goes_beside_the_handle",
        mutants: &["light_missing", "heavy_missing", "orphan_unlooked"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_the_last_guard_frees_the_orphan",
        mutants: &["settle_relaxed", "sum_relaxed"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_armed_or_seen",
        mutants: &["light_missing", "heavy_missing"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_armed_again_or_seen",
        mutants: &["word_unfenced", "sleeper_unfenced"],
    },
    Finder {
        package: "ibex-base",
        tool: Tool::Loom,
        test: "loom_one_is_inside",
        mutants: &[
            "light_missing",
            "heavy_missing",
            "enter_relaxed",
            "left_relaxed",
        ],
    },
    Finder {
        package: "ibex-base",
        tool: Tool::Loom,
        test: "loom_placed_apart",
        mutants: &["placed_twice"],
    },
    Finder {
        package: "ibex-base",
        tool: Tool::Loom,
        test: "loom_the_last_session_is_noticed",
        mutants: &["last_unnoticed"],
    },
    Finder {
        package: "ibex-base",
        tool: Tool::Loom,
        test: "loom_lent_once",
        mutants: &["lent_twice"],
    },
    Finder {
        package: "ibex-verbs",
        tool: Tool::Fake,
        test: "tests::operations::the_place_of_a_result_is_in_use_until_its_completion",
        mutants: &["result_of_any_completion", "waiting_result_reused"],
    },
    Finder {
        package: "ibex-verbs",
        tool: Tool::Fake,
        test: "tests::operations::compare_and_swap_stores_only_over_the_expected_value",
        mutants: &["operands_swapped"],
    },
    Finder {
        package: "ibex-verbs",
        tool: Tool::Fake,
        test: "tests::windows::local_invalidate_of_what_is_not_bound_never_reaches_the_device",
        mutants: &["window_invalidated_twice", "invalidated_at_posting"],
    },
    Finder {
        package: "ibex-verbs",
        tool: Tool::Fake,
        test: "tests::windows::bind_is_refused_before_the_device_sees_it",
        mutants: &["bound_window_rebound"],
    },
    Finder {
        package: "ibex-verbs",
        tool: Tool::Fake,
        test: "tests::windows::a_window_whose_request_failed_can_only_be_dropped",
        mutants: &["failed_window_kept"],
    },
    Finder {
        package: "ibex-verbs",
        tool: Tool::Fake,
        test: "tests::windows::send_with_invalidate_is_noted_by_the_flag_of_soft_roce_too",
        mutants: &["any_key_invalidated"],
    },
    Finder {
        package: "ibex-verbs",
        tool: Tool::Fake,
        test: "tests::windows::local_invalidate_takes_the_key_from_the_peer",
        mutants: &["window_key_kept"],
    },
    Finder {
        package: "ibex-verbs",
        tool: Tool::Fake,
        test: "tests::datagrams::post_recv_ud_has_the_route_in_front_of_the_payload",
        mutants: &["route_taken_for_payload"],
    },
    Finder {
        package: "ibex-verbs",
        tool: Tool::Fake,
        test: "tests::datagrams::post_send_ud_refuses_addresses_of_other_domains_and_other_operations",
        mutants: &["foreign_address_taken"],
    },
    Finder {
        package: "ibex-verbs",
        tool: Tool::Fake,
        test: "tests::xrc::create_srq_ex_xrc_takes_what_names_it_by_get_srq_num",
        mutants: &["receive_queue_unnamed"],
    },
    Finder {
        package: "ibex-transport",
        tool: Tool::Proptest,
        test: "session::engine_id::tests::a_session_is_of_the_engine_that_numbered_it",
        mutants: &["wrong_engine"],
    },
    Finder {
        package: "ibex-transport",
        tool: Tool::Simulation,
        test: "wire::socket::tests::a_watch_is_armed_before_the_socket_is_used_and_leaves_nothing_unread",
        mutants: &["report_is_a_level", "part_is_all", "end_is_forgotten"],
    },
    Finder {
        package: "ibex-transport",
        tool: Tool::Simulation,
        test: "engine::tests::simulated::sessions_are_on_one_engine_each_and_every_message_arrives",
        mutants: &[
            "wrong_engine",
            "counted_twice",
            "place_is_kept",
            "borrowed_is_left",
            "given_back_twice",
        ],
    },
    Finder {
        package: "ibex-transport",
        tool: Tool::Simulation,
        test: "engine::tests::simulated::a_node_that_closes_is_over_when_both_of_its_engines_are",
        mutants: &["mail_unrung", "place_is_kept"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_letters_are_taken_and_answered",
        mutants: &["rouse_fence_missing", "sleep_fence_missing"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_registered_or_seen",
        mutants: &["light_missing", "heavy_missing"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_registered_again_or_seen",
        mutants: &["slot_unfenced", "waiter_unfenced"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_changes_find_the_holder",
        mutants: &["notified_fence_missing"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_changes_come_when_it_is_free",
        mutants: &["notified_fence_missing"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_changes_of_two_threads",
        mutants: &["told_by_a_store"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_pushed_or_woken",
        mutants: &["light_missing", "heavy_missing", "woken_early"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_no_item_stays_behind",
        mutants: &["noted_late"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_a_sleeping_receiver_is_rung_for",
        mutants: &[
            "rung_late",
            "bell_relaxed",
            "light_missing",
            "heavy_missing",
        ],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_returned_after_use",
        mutants: &["return_relaxed", "take_back_relaxed"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_arrivals",
        mutants: &[
            "arrive_relaxed",
            "complete_relaxed",
            "retire_relaxed",
            "room_relaxed",
        ],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_slots_rest",
        mutants: &["rest_relaxed", "retire_relaxed"],
    },
    Finder {
        package: "ibex-base",
        tool: Tool::Loom,
        test: "loom_polled_again_or_woken",
        mutants: &["second_poll_missing", "drained_late"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_marked_or_roused",
        mutants: &["rouse_fence_missing", "sleep_fence_missing", "polled_early"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_driven_or_roused",
        mutants: &[
            "drive_mark_missing",
            "rouse_fence_missing",
            "sleep_fence_missing",
            "polled_early",
        ],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_marked_or_unparked",
        mutants: &["rouse_fence_missing", "parked_early"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_a_watcher_is_rung_for",
        mutants: &["watcher_unrung"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_woken_whoever_leads",
        mutants: &["woken_unseen", "waker_rings_nothing"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_the_bell_is_the_sleepers",
        mutants: &["drained_asleep"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_the_seat_is_passed_on",
        mutants: &[
            "left_silently",
            "followed_blindly",
            "light_missing",
            "heavy_missing",
        ],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_a_leader_may_panic",
        mutants: &["left_silently"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_a_follower_may_give_up",
        mutants: &["not_passed_on"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_the_keeper_stands_by",
        mutants: &[
            "left_silently",
            "stood_by_blindly",
            "light_missing",
            "heavy_missing",
        ],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_the_seat_is_claimed",
        mutants: &["claim_unseen", "rouse_fence_missing", "sleep_fence_missing"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_a_vacant_seat_is_kept_for_who_spans",
        mutants: &["span_fence_missing"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_the_keeper_stays_for_who_spans",
        mutants: &["span_fence_missing"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_marks_of_two_threads",
        mutants: &["marked_by_a_store"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Proptest,
        test: "release::tests::counts_like_the_naive_model",
        mutants: &["ack_counted_on_drop", "window_returned_twice"],
    },
    Finder {
        package: "ibex-transport",
        tool: Tool::Fake,
        test: "rdma::tests::sessions::pulling::a_large_message_is_read_where_it_lies",
        mutants: &["offer_is_kept", "offer_is_wide"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Proptest,
        test: "memory::region::tests::a_region_moves_away_from_a_peer_before_it_is_changed",
        mutants: &["region_stays_shared"],
    },
    Finder {
        package: "ibex-transport",
        tool: Tool::Fake,
        test: "connection::passed_slices::tests::a_slice_stays_until_its_message_is_released",
        mutants: &["slice_freed_early"],
    },
    Finder {
        package: "ibex-transport",
        tool: Tool::Fake,
        test: "rdma::tests::sessions::regions::a_peer_that_writes_behind_its_message_changes_nothing",
        mutants: &["key_outlives_message"],
    },
    Finder {
        package: "ibex-transport",
        tool: Tool::Fake,
        test: "rdma::tests::sessions::revoking::a_read_that_failed_brings_nothing_although_a_frame_arrives_behind_it",
        mutants: &["failed_read_is_done"],
    },
    Finder {
        package: "ibex-transport",
        tool: Tool::Fake,
        test: "rdma::tests::sessions::revoking::memory_waits_for_room_to_revoke_its_offer",
        mutants: &["offer_outlived"],
    },
    Finder {
        package: "ibex-transport",
        tool: Tool::Fake,
        test: "rdma::tests::sessions::rails::a_large_message_is_read_over_both_ports",
        mutants: &["rail_is_kept"],
    },
    Finder {
        package: "ibex-transport",
        tool: Tool::Fake,
        test: "rdma::tests::sessions::rails::memory_is_kept_until_the_rail_cannot_read_it_any_more",
        mutants: &["rail_outlived"],
    },
    Finder {
        package: "ibex-transport",
        tool: Tool::Fake,
        test: "rdma::tests::sessions::rails::pieces_that_come_early_wait_for_those_before_them",
        mutants: &["piece_overtakes"],
    },
    Finder {
        package: "ibex-protocol",
        tool: Tool::Proptest,
        test: "session::tests::pulling::a_message_is_read_in_pieces_and_said_to_be_taken_behind_the_last",
        mutants: &["taken_early"],
    },
    Finder {
        package: "ibex-protocol",
        tool: Tool::Proptest,
        test: "session::tests::pulling::a_receiver_says_that_it_is_closed_when_nothing_is_read_any_more",
        mutants: &["closed_over_reads"],
    },
    Finder {
        package: "ibex-protocol",
        tool: Tool::Proptest,
        test: "session::tests::goodbye::everything_that_arrived_is_told_before_the_goodbye",
        mutants: &["arrival_unnotified"],
    },
    Finder {
        package: "ibex-protocol",
        tool: Tool::Proptest,
        test: "session::tests::records::a_lone_record_is_handled_as_any_frame_is",
        mutants: &["index_unchecked"],
    },
    Finder {
        package: "ibex-protocol",
        tool: Tool::Proptest,
        test: "format::frame_check::tests::every_flipped_bit_that_is_covered_is_noticed",
        mutants: &["payload_unchecked"],
    },
    Finder {
        package: "ibex-sim",
        tool: Tool::Simulation,
        test: "tests::no_seed_breaks_a_rule",
        mutants: &[
            "credit_off_by_one",
            "surrender_spent_twice",
            "granted_twice",
            "grant_unheard",
            "block_used_twice",
            "generation_kept",
            "old_epoch",
        ],
    },
    Finder {
        package: "ibex-sim",
        tool: Tool::Simulation,
        test: "tests::messages_over_wires_that_break_come_once",
        mutants: &[
            "replay_from_released",
            "fence_skipped",
            "block_outlives_epoch",
            "header_overlooked",
        ],
    },
    Finder {
        package: "ibex-sim",
        tool: Tool::Simulation,
        test: "tests::granted_messages_that_wait_are_written",
        mutants: &["write_unawaited"],
    },
    Finder {
        package: "ibex-sim",
        tool: Tool::Simulation,
        test: "tests::credit_that_is_on_its_way_is_not_lent",
        mutants: &["recalled_is_lent"],
    },
    Finder {
        package: "ibex-sim",
        tool: Tool::Simulation,
        test: "crowd::a_broker_gives_nothing_before_its_surrender_arrived",
        mutants: &["recalled_is_back"],
    },
    Finder {
        package: FUZZ,
        tool: Tool::Target,
        test: "executions::sealed_acceptor_takes_anything",
        mutants: &["string_length_unchecked"],
    },
    Finder {
        package: FUZZ,
        tool: Tool::Target,
        test: "executions::sealed_records_take_anything",
        mutants: &["record_moved_long"],
    },
];
