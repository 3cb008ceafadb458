//! Mutants: planted bugs, and the tests that must find them.
//!
//! A passing test says little until it has been seen to fail. So for each ordering, fence and step
//! that a loom model covers, and for the counting of the protocol, a patch adds a bug to a copy of
//! the sources (`testing/mutants`), and `IBEX_MUTANT=NAME` plants it. Each test here must fail with
//! each bug that it names, within a minute, and pass without.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::mutated_copy;
use crate::step::Step;
use crate::watchdog::Watchdog;
use crate::workspace;

/// A test, and the bugs that it must find.
#[derive(Debug)]
struct Finder {
    /// The crate of the test.
    package: &'static str,
    tool: Tool,
    test: &'static str,
    mutants: &'static [&'static str],
}

/// The method that finds a mutant, and so the build in which it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tool {
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

const FINDERS: &[Finder] = &[
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_publish_then_read",
        mutants: &["publish_relaxed"],
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
        test: "tests::overrun::create_cq_ex_ignore_overrun_gives_out_its_room_and_takes_it_back",
        mutants: &["room_not_counted"],
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
        test: "loom_news_finds_the_holder",
        mutants: &["told_fence_missing"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_news_comes_when_it_is_free",
        mutants: &["told_fence_missing"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_news_of_two_threads",
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
        mutants: &["rouse_fence_missing", "sleep_fence_missing", "looked_early"],
    },
    Finder {
        package: "ibex-ring",
        tool: Tool::Loom,
        test: "loom_driven_or_roused",
        mutants: &[
            "drive_mark_missing",
            "rouse_fence_missing",
            "sleep_fence_missing",
            "looked_early",
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
        mutants: &["arrival_untold"],
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
        ],
    },
    Finder {
        package: "ibex-sim",
        tool: Tool::Simulation,
        test: "tests::messages_over_wires_that_break_come_once",
        mutants: &[
            "replay_from_released",
            "fence_skipped",
            "old_epoch",
            "block_outlives_epoch",
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

/// The package of the fuzz targets, which is a workspace of its own.
const FUZZ: &str = "ibex-fuzz";

/// Runs all loom models without a bug.
pub(crate) fn models(watchdog: &Watchdog) -> Result<(), Failure> {
    let copy = mutated_copy::make(watchdog)?;
    for program in build_with_loom(copy, watchdog)?.values() {
        Step::new(program).arg("loom_").run(watchdog)?;
    }
    Ok(())
}

/// Plants each mutant, with which every test that names it must fail.
pub(crate) fn mutants(watchdog: &Watchdog) -> Result<(), Failure> {
    let copy = mutated_copy::make(watchdog)?;
    let with_loom = build_with_loom(copy, watchdog)?;
    let with_std = build_with_std(copy, watchdog)?;
    let sleepers = Step::of_line("cargo test --lib --profile bench -p ibex-verbs");
    Step::new(&sleepers.build_program(watchdog)?)
        .arg("tests::sleeping")
        .env("IBEX_TEST_SLEEPS", SLEEPS)
        .run(watchdog)?;
    let [first, second] = &mut [Vec::new(), Vec::new()];
    for (number, search) in searches(&with_loom, &with_std).into_iter().enumerate() {
        match number % 2 {
            0 => first.push(search),
            _ => second.push(search),
        }
    }
    // A model or a property runs in one thread, so several run at once.
    let run = |searches: &[Search<'_>]| {
        let blind = searches.iter().map(Search::run);
        blind.collect::<Result<Vec<_>, _>>()
    };
    let ends = thread::scope(|scope| {
        let second = scope.spawn(|| run(second));
        [run(first), second.join().expect("a list of searches ends")]
    });
    let mut blind = Vec::new();
    for end in ends {
        blind.extend(end?.into_iter().flatten());
    }
    if blind.is_empty() {
        Ok(())
    } else {
        Err(Failure::new(blind.join("; ")))
    }
}

/// A run of a finder's test.
struct Search<'a> {
    finder: &'static Finder,
    /// The planted bug; without one the test must pass.
    mutant: Option<&'static str>,
    program: &'a str,
}

/// Returns a search for every finder and each of its mutants. Finders that are no models also run
/// without one; models do so in a stage of their own.
fn searches<'a>(with_loom: &'a Programs, with_std: &'a Programs) -> Vec<Search<'a>> {
    let of_finder = |finder: &'static Finder| {
        let program = match finder.tool {
            Tool::Loom => &with_loom[finder.package],
            _ => &with_std[finder.package],
        };
        let without = (finder.tool != Tool::Loom).then_some(None);
        let with = finder.mutants.iter().map(|mutant| Some(*mutant));
        without.into_iter().chain(with).map(move |mutant| Search {
            finder,
            mutant,
            program,
        })
    };
    FINDERS.iter().flat_map(of_finder).collect()
}

impl Search<'_> {
    /// Runs the test. Returns the reason if the finder is blind.
    fn run(&self) -> Result<Option<String>, Failure> {
        let (test, tool) = (self.finder.test, self.finder.tool);
        let begun = Instant::now();
        let fails = self.finder.fails(self.mutant, self.program)?;
        let seconds = begun.elapsed().as_secs_f64();
        Ok(match (self.mutant, fails) {
            (Some(mutant), true) => {
                println!("  {tool} finds {mutant} in {seconds:.1} s: {test}");
                None
            }
            (Some(mutant), false) => Some(format!("{test} does not find {mutant}")),
            (None, true) => Some(format!("{test} fails without a mutant")),
            (None, false) => None,
        })
    }
}

/// The test program of each crate, by the crate's name.
type Programs = BTreeMap<&'static str, String>;

/// Builds the tests of the crates that have models with loom, in a target folder of their own.
fn build_with_loom(copy: &str, watchdog: &Watchdog) -> Result<Programs, Failure> {
    let target = workspace::target().join("loom");
    let build = |package: &str| {
        Step::of_line("cargo test --lib --release -p")
            .args([package, "--manifest-path", copy])
            .env("CARGO_TARGET_DIR", target.to_string_lossy())
            .add_flags("RUSTFLAGS", "--cfg loom")
    };
    build_all(&[Tool::Loom], build, watchdog)
}

/// Builds the tests of the other finders with the release profile, so that they share the
/// dependencies of release builds.
fn build_with_std(copy: &str, watchdog: &Watchdog) -> Result<Programs, Failure> {
    let of_fuzz = copy.replace("Cargo.toml", "fuzz/Cargo.toml");
    let build = |package: &str| {
        let step = Step::of_line("cargo test --lib --profile bench -p").arg(package);
        let step = match package {
            FUZZ => step.args(["--no-default-features", "--manifest-path", &of_fuzz]),
            _ => step.args(["--manifest-path", copy]),
        };
        step.env("CARGO_TARGET_DIR", workspace::target().to_string_lossy())
    };
    let tools = [Tool::Proptest, Tool::Simulation, Tool::Fake, Tool::Target];
    build_all(&tools, build, watchdog)
}

/// Builds the test program of each crate that uses one of these tools.
fn build_all(
    tools: &[Tool],
    build: impl Fn(&str) -> Step,
    watchdog: &Watchdog,
) -> Result<Programs, Failure> {
    let finders = FINDERS.iter();
    let of_tools = finders.filter(|finder| tools.contains(&finder.tool));
    let packages: BTreeSet<_> = of_tools.map(|finder| finder.package).collect();
    let built = packages.into_iter().map(|package| {
        let program = build(package).build_program(watchdog)?;
        Ok((package, program))
    });
    built.collect()
}

impl Finder {
    /// Runs the test, with a bug planted if one is named. Returns whether it failed by an assertion
    /// of its own or of loom's; a test that crashes or is killed does not count. Fails if there is
    /// not exactly one such test.
    fn fails(&self, mutant: Option<&str>, program: &str) -> Result<bool, Failure> {
        let mut run = Step::new(program).arg(self.test);
        if self.tool != Tool::Loom {
            // Models are found by the last part of their names.
            run = run.arg("--exact");
        }
        if self.tool == Tool::Proptest {
            // The first failure suffices, and must not be recorded: the next run has to find it
            // again.
            run = run
                .env("PROPTEST_CASES", CASES)
                .env("PROPTEST_RNG_SEED", "1")
                .env("PROPTEST_MAX_SHRINK_ITERS", "0")
                .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true");
        }
        if let Some(mutant) = mutant {
            run = run.env("IBEX_MUTANT", mutant);
            if self.tool == Tool::Target {
                run = run.env("IBEX_FUZZ_EXECUTIONS", EXECUTIONS);
            }
        }
        let ran = run.capture(&Watchdog::after(TIME_TO_FIND))?;
        if !ran.stdout.contains("running 1 test\n") {
            let test = self.test;
            return Err(Failure::new(format!(
                "{program} does not have exactly one test {test}"
            )));
        }
        Ok(ran.status.code() == Some(TESTS_FAILED))
    }
}

/// The exit status of a test program whose tests failed.
const TESTS_FAILED: i32 = 101;
/// The longest search for a mutant.
const TIME_TO_FIND: Duration = Duration::from_secs(60);
/// Number of sleeps over the fake device while another thread completes into its queue.
const SLEEPS: &str = "1000000";
/// Cases of a property, unless it fails before.
const CASES: &str = "2000";
/// Inputs within which a fuzz target must find a mutant.
const EXECUTIONS: &str = "1000000";

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use std::fs;
    use std::path::Path;

    /// Returns the words between each `before` and the next `end` in these texts.
    fn found(texts: &[String], before: &str, end: char) -> BTreeSet<String> {
        let pieces = texts.iter().flat_map(|text| text.split(before).skip(1));
        pieces
            .filter_map(|piece| Some(piece.split_once(end)?.0.to_string()))
            .collect()
    }

    fn read(path: &Path, sources: &mut Vec<String>) {
        if path.is_dir() {
            fs::read_dir(path)
                .unwrap()
                .for_each(|entry| read(&entry.unwrap().path(), sources));
        } else {
            sources.push(fs::read_to_string(path).unwrap());
        }
    }

    /// Returns the lines that the patches add.
    fn planted() -> Vec<String> {
        let patches = mutated_copy::patches().unwrap();
        let read = |patch| {
            let patch = fs::read_to_string(patch).unwrap();
            let added = patch.lines().filter(|line| line.starts_with('+'));
            added.collect::<Vec<_>>().join("\n")
        };
        patches.into_iter().map(read).collect()
    }

    #[test]
    fn every_mutant_of_the_patches_is_in_the_table() {
        let named = FINDERS
            .iter()
            .flat_map(|finder| finder.mutants)
            .map(|mutant| (*mutant).to_string());
        // `unless_mutant("name", ..)` ends in the same letters.
        assert_eq!(
            named.collect::<BTreeSet<_>>(),
            found(&planted(), "_mutant(\"", '"')
        );
    }

    /// A test that moves to another module would be noticed an hour later.
    #[test]
    fn every_test_in_the_table_is_in_its_module() {
        for finder in FINDERS.iter().filter(|one| one.tool != Tool::Target) {
            let (module, name) = finder.test.rsplit_once("::").unwrap_or(("", finder.test));
            let module = module.rsplit("::").next().unwrap_or_default();
            let mut named = Command::new("git");
            named.current_dir(workspace::root());
            named.args(["grep", "-l", &format!("fn {name}("), "--", "*.rs"]);
            let files = String::from_utf8(named.output().unwrap().stdout).unwrap();
            let is_there = files.lines().any(|file| {
                let text = fs::read_to_string(workspace::root().join(file)).unwrap();
                let mut parts = file.split(['/', '.']);
                parts.any(|part| part == module) || text.contains(&format!("mod {module} {{"))
            });
            assert!(
                is_there || module.is_empty() && !files.is_empty(),
                "{}: {files:?}",
                finder.test
            );
        }
    }

    #[test]
    fn every_model_in_the_sources_is_in_the_table() {
        let named = FINDERS
            .iter()
            .filter(|finder| finder.tool == Tool::Loom)
            .map(|finder| finder.test.to_string())
            .collect::<BTreeSet<_>>();
        let mut sources = Vec::new();
        read(&workspace::root().join("transport"), &mut sources);
        let found = found(&sources, "fn loom_", '(')
            .into_iter()
            .map(|name| format!("loom_{name}"));
        assert_eq!(named, found.collect());
    }
}
