//! The stages of `cargo xtask torture`, which do for hours what `cargo xtask test` does, or need a
//! build of their own. No promise of RELIABILITY.md has its only test here; some that `cargo xtask
//! test` tests over a device made of memory are tested on the guest's device here.

use crate::stage::{Stage, Work};
use crate::stages::{self, seconds};
use crate::tool::{CLIPPY, IPROUTE};
use crate::{fuzz, integrations, mutants, simulate, soak, tested, verbs, vm};

pub(crate) const STAGES: &[&[Stage]] = &[&[
    Stage {
        name: "memory",
        about: "twenty times the messages of the proof that memory stays flat",
        budget: seconds(900),
        quick: false,
        tools: &[CLIPPY],
        work: Work::Function(|watchdog| {
            tested::test("--test memory_flat")
                .env("MEMORY_FLAT_TIMES", "20")
                .run(watchdog)
        }),
    },
    Stage {
        name: "refused",
        about: "programs that must not compile, with the compiler's messages",
        budget: seconds(300),
        quick: false,
        tools: &[CLIPPY],
        work: Work::Commands(&[
            "cargo clippy -p ibex-refused --all-targets -- -D warnings",
            "cargo test -p ibex-refused --test refused",
        ]),
    },
    Stage {
        name: "loom",
        about: "the models of the rings hold in every order of events",
        budget: seconds(300),
        quick: false,
        tools: &[],
        work: Work::Function(mutants::loom_whole),
    },
    Stage {
        name: "mutants",
        about: "each bug that is planted is found without loom, too, and a million sleeps lose no wake-up",
        budget: seconds(300),
        quick: false,
        tools: &[],
        work: Work::Function(mutants::mutants),
    },
    Stage {
        name: "declarations",
        about: "libibverbs as it is declared here and in the header of rdma-core",
        budget: seconds(300),
        quick: false,
        tools: verbs::BINDING_TOOLS,
        work: Work::Commands(&[
            "cargo clippy -p ibex-verbs --all-targets --all-features -- -D warnings",
            "cargo test -p ibex-verbs --lib --features rdma-sys",
        ]),
    },
    Stage {
        name: "conformance",
        about: "every promise, on every fabric by every driver, between real processes, and every first byte",
        budget: seconds(900),
        quick: false,
        tools: &[CLIPPY, IPROUTE],
        work: Work::Function(stages::conformance),
    },
    Stage {
        name: "masks",
        about: "every promise, over each RDMA device that lacks something",
        budget: seconds(300),
        quick: false,
        tools: &[CLIPPY],
        work: Work::Function(|watchdog| tested::test("--test conformance -- /fake/").run(watchdog)),
    },
    Stage {
        name: "guest",
        about: "a guest whose command takes too long, or that dies, is reported as such",
        budget: seconds(120),
        quick: false,
        tools: verbs::TOOLS,
        work: Work::Function(vm::test_without_status),
    },
    Stage {
        name: "integrations",
        about: "software of others, and its benchmarks, as optimized programs",
        budget: seconds(900),
        quick: false,
        tools: integrations::TOOLS,
        work: Work::Function(integrations::optimized),
    },
    Stage {
        name: "exchanges",
        about: "hyper and rustls over byte streams, a hundred thousand exchanges each",
        budget: seconds(1800),
        quick: false,
        tools: &[],
        work: Work::Function(|watchdog| {
            integrations::test("--test exchanges -- --skip /verbs/")
                .env("IBEX_TEST_EXCHANGES", "100000")
                .run(watchdog)
        }),
    },
    Stage {
        name: "simulation",
        about: "a hundred million steps of engines under faults break no rule, nor do ten thousand sessions",
        budget: seconds(900),
        quick: false,
        tools: &[CLIPPY],
        work: Work::Function(simulate::long),
    },
    Stage {
        name: "fuzz",
        about: "each parser meets a minute of hostile bytes, of a fuzzer, in a build with sanitizers",
        budget: seconds(900),
        quick: false,
        tools: fuzz::TOOLS,
        work: Work::Function(fuzz::long),
    },
    Stage {
        name: "soak",
        about: "five minutes over each fabric: processes are killed, stopped, starved and cut off",
        budget: seconds(900),
        quick: false,
        tools: &[CLIPPY, IPROUTE],
        work: Work::Function(soak::long),
    },
    Stage {
        name: "verbs",
        about: "the whole suite by each kind of completion queue, and every other way to use it",
        budget: seconds(1800),
        quick: false,
        tools: verbs::TOOLS,
        work: Work::Function(verbs::whole),
    },
    Stage {
        name: "two",
        about: "between two guests, a link disturbs packets and is cut, and nothing is lost",
        budget: seconds(600),
        quick: false,
        tools: verbs::TOOLS,
        work: Work::Function(verbs::two),
    },
]];
