//! The loom models and their weakened twins.
//!
//! A model that holds says little until one has seen it fail. So each ordering,
//! fence and step that a model is there for has a *twin*: the same program with
//! `IBEX_WEAK=NAME` in its environment, where just that is left out. The model has
//! to fail then.

use crate::failure::Failure;
use crate::step::Step;
use crate::watchdog::Watchdog;
use crate::workspace;

/// One loom model of the transport crate, and what it has to find.
#[derive(Debug)]
struct Model {
    test: &'static str,
    twins: &'static [&'static str],
}

const MODELS: &[Model] = &[
    Model {
        test: "loom_publish_then_read",
        twins: &["publish_relaxed"],
    },
    Model {
        test: "loom_old_payload_is_no_header",
        twins: &["zero_missing"],
    },
    Model {
        test: "loom_space_is_reused_after_settle",
        twins: &["settle_relaxed", "sum_relaxed"],
    },
    Model {
        test: "loom_advance_looks_again",
        twins: &["mark_missing", "mark_overwritten", "advance_relaxed"],
    },
    Model {
        test: "loom_settled_while_asked",
        twins: &["ask_without_sum", "light_missing", "heavy_missing"],
    },
    Model {
        test: "loom_cells_are_reused_when_empty",
        twins: &["last_cell_relaxed", "emptied_relaxed"],
    },
    Model {
        test: "loom_armed_or_seen",
        twins: &["light_missing", "heavy_missing"],
    },
    Model {
        test: "loom_one_is_inside",
        twins: &[
            "light_missing",
            "heavy_missing",
            "enter_relaxed",
            "left_relaxed",
        ],
    },
    Model {
        test: "loom_registered_or_seen",
        twins: &["light_missing", "heavy_missing"],
    },
    Model {
        test: "loom_rung_for_who_sleeps",
        twins: &[
            "rung_late",
            "bell_relaxed",
            "light_missing",
            "heavy_missing",
        ],
    },
    Model {
        test: "loom_returned_after_use",
        twins: &["return_relaxed", "take_back_relaxed"],
    },
    Model {
        test: "loom_arrivals",
        twins: &[
            "arrive_relaxed",
            "complete_relaxed",
            "retire_relaxed",
            "room_relaxed",
        ],
    },
    Model {
        test: "loom_slots_rest",
        twins: &["rest_relaxed", "retire_relaxed"],
    },
    Model {
        test: "loom_polled_again_or_woken",
        twins: &["second_poll_missing", "drained_late"],
    },
    Model {
        test: "loom_marked_or_roused",
        twins: &["rouse_fence_missing", "sleep_fence_missing", "looked_early"],
    },
    Model {
        test: "loom_driven_or_roused",
        twins: &[
            "drive_mark_missing",
            "rouse_fence_missing",
            "sleep_fence_missing",
            "looked_early",
        ],
    },
    Model {
        test: "loom_woken_whoever_leads",
        twins: &["woken_unseen", "waker_rings_nothing"],
    },
    Model {
        test: "loom_the_bell_is_the_sleepers",
        twins: &["drained_asleep"],
    },
    Model {
        test: "loom_the_seat_is_passed_on",
        twins: &[
            "left_silently",
            "followed_blindly",
            "light_missing",
            "heavy_missing",
        ],
    },
    Model {
        test: "loom_a_leader_may_panic",
        twins: &["left_silently"],
    },
    Model {
        test: "loom_a_follower_may_give_up",
        twins: &["not_passed_on"],
    },
    Model {
        test: "loom_the_keeper_stands_by",
        twins: &[
            "left_silently",
            "stood_by_blindly",
            "light_missing",
            "heavy_missing",
        ],
    },
    Model {
        test: "loom_the_seat_is_claimed",
        twins: &["claim_unseen", "rouse_fence_missing", "sleep_fence_missing"],
    },
];

/// All models, as they are meant to be.
pub(crate) fn models(watchdog: &Watchdog) -> Result<(), Failure> {
    let program = build(watchdog)?;
    Step::new(&program).arg("loom_").run(watchdog)
}

/// Each twin, which has to fail every model that names it.
pub(crate) fn twins(watchdog: &Watchdog) -> Result<(), Failure> {
    let program = build(watchdog)?;
    let mut blind = Vec::new();
    for model in MODELS {
        for twin in model.twins {
            if finds(model, twin, &program, watchdog)? {
                println!("  {} finds {twin}", model.test);
            } else {
                blind.push(format!("{} does not find {twin}", model.test));
            }
        }
    }
    if blind.is_empty() {
        Ok(())
    } else {
        Err(Failure::new(blind.join("; ")))
    }
}

/// Builds the transport crate's tests with loom, beside what is built without.
fn build(watchdog: &Watchdog) -> Result<String, Failure> {
    let target = workspace::target().join("loom");
    Step::of_line("cargo test -p ibex-transport --lib --release")
        .env("CARGO_TARGET_DIR", target.to_string_lossy())
        .add_flags("RUSTFLAGS", "--cfg loom")
        .build_program(watchdog)
}

/// Whether a model fails as that twin as it should: by its own assertion or
/// loom's, and not because there was nothing to run or it was killed.
fn finds(model: &Model, twin: &str, program: &str, watchdog: &Watchdog) -> Result<bool, Failure> {
    let run = Step::new(program).arg(model.test).env("IBEX_WEAK", twin);
    let ran = run.capture(watchdog)?;
    if !ran.stdout.contains("running 1 test\n") {
        let test = model.test;
        return Err(Failure::new(format!(
            "{program} does not have exactly one test {test}"
        )));
    }
    Ok(ran.status.code() == Some(TESTS_FAILED))
}

/// The exit status of a test program whose tests failed.
const TESTS_FAILED: i32 = 101;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    /// What stands behind each `before` in the sources, up to `end`.
    fn found(before: &str, end: char) -> BTreeSet<String> {
        let mut sources = Vec::new();
        read(&workspace::root().join("transport/src"), &mut sources);
        let pieces = sources
            .iter()
            .flat_map(|source| source.split(before).skip(1));
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

    #[test]
    fn every_twin_in_the_sources_is_in_the_table() {
        let named = MODELS
            .iter()
            .flat_map(|model| model.twins)
            .map(|twin| (*twin).to_string());
        // `unless_weakened("name", ..)` ends in the same letters.
        assert_eq!(named.collect::<BTreeSet<_>>(), found("weakened(\"", '"'));
    }

    #[test]
    fn every_model_in_the_sources_is_in_the_table() {
        let named = MODELS
            .iter()
            .map(|model| model.test.to_string())
            .collect::<BTreeSet<_>>();
        let found = found("fn loom_", '(')
            .into_iter()
            .map(|name| format!("loom_{name}"));
        assert_eq!(named, found.collect());
    }
}
