//! The command runner: every task of this repository except building it, written down here and
//! nowhere else.
//!
//! `cargo xtask` alone lists the commands, as `--help` does. Continuous integration runs the same
//! commands as a developer: `.ci/run` calls `./test`, which calls `cargo xtask test`.
#![deny(unsafe_code)]

mod disk;
mod failure;
mod figures;
#[cfg(test)]
mod floors;
mod fuzz;
mod house;
mod instructions;
mod integrations;
#[cfg(test)]
mod limited_warnings;
mod links;
mod minimum;
mod mutants;
mod mutated_copy;
mod options;
mod process_tree;
#[cfg(test)]
mod public_api;
mod release;
mod remarks;
mod report;
mod rustdoc;
mod simulate;
mod soak;
mod stage;
mod stage_table;
mod stages;
mod step;
mod tested;
mod tool;
mod torture;
mod verbs;
mod vm;
mod watchdog;
mod workspace;

use std::process::ExitCode;

use failure::Failure;
use options::{BenchOptions, FuzzOptions, TestOptions};
use stage::Stage;
use stages::STAGES;
use vm::VmOptions;

/// A command: its name, its arguments and its purpose.
struct CommandEntry {
    name: &'static str,
    arguments: &'static str,
    about: &'static str,
    run: fn(&[String]) -> Result<ExitCode, Failure>,
}

const COMMANDS: &[CommandEntry] = &[
    CommandEntry {
        name: "test",
        arguments: "[--stage NAME]... [--quick] [--no-install] | --write",
        about: "run all tests, stage by stage; --quick: the stages for the inner loop;\n      \
                --no-install: a stage that lacks a tool fails, nothing is installed;\n      \
                --write: write the times of the stages into CONTRIBUTING.md, if all pass",
        run: |arguments| {
            let options = TestOptions::parse(STAGES, arguments)?;
            let report = stage::run(STAGES, &options)?;
            if options.write && report.failed() == 0 {
                stage_table::write(STAGES, &report)?;
            }
            Ok(report.exit_code())
        },
    },
    CommandEntry {
        name: "torture",
        arguments: "[--stage NAME]... [--no-install]",
        about: "go on for two or three hours with what `test` has little time for: the whole suite\n      \
                in the guest and over each mask, planted bugs, optimized integrations, longer\n      \
                simulation, fuzzing, soak and memory proofs",
        run: |arguments| {
            step::play_everything();
            run_stages(torture::STAGES, arguments)
        },
    },
    CommandEntry {
        name: "release-check",
        arguments: "[--stage NAME]... [--no-install]",
        about: "whether the crates can be published; installs cargo-deny, cargo-hack and\n      \
                cargo-semver-checks, which takes some minutes",
        run: |arguments| run_stages(release::STAGES, arguments),
    },
    CommandEntry {
        name: "vm",
        arguments: "[--pair | --two] [--time-out SECONDS] [--cpus N] [--memory MIB]\n      \
                    [--release NAME] [--packages FILE] [--update] [--no-install]\n      \
                    [--label TEXT] -- COMMAND [ARGUMENT]...",
        about: "run a command in a guest with soft-RoCE, see vm/README.md; --pair: two\n      \
                devices and a link; --two: two guests; the exit status is the command's,\n      \
                124 when its time was out, 125 when the guest never reported",
        run: |arguments| Ok(vm::run(&VmOptions::parse(arguments)?)),
    },
    CommandEntry {
        name: "bench",
        arguments: "[--vm] [--json] [--instructions] [ROW] | --write [ROW] | --plots",
        about: "measure ibex beside its limits, the rows whose names hold ROW; on the device that\n      \
                IBEX_TEST_DEVICE names only those of verbs; --vm: these in one boot of a guest,\n      \
                beside perftest, UCX and libfabric too; --instructions: callgrind counts those\n      \
                of a message first; --write: measure shared memory, TCP and TLS in some ten\n      \
                minutes, and write the rows, with commit and machine, into README.md and\n      \
                BENCHMARKS.md; --plots: draw docs/figures from these pages",
        run: |arguments| verbs::bench(&BenchOptions::parse(arguments)?),
    },
    CommandEntry {
        name: "fuzz",
        arguments: "TARGET [--seconds N]",
        about: "fuzz one parser, until it fails or for N seconds",
        run: |arguments| fuzz::run(&FuzzOptions::parse(arguments)?),
    },
    CommandEntry {
        name: "simulate",
        arguments: "[--seconds N | --steps N] [--seed S]",
        about: "run engines, two or up to 32, over the simulated fabric, from seeds that follow\n      \
                from one; a seed alone: that run, with its options",
        run: simulate::run,
    },
    CommandEntry {
        name: "soak",
        arguments: "[--seconds N] [--fabric shm | tcp | verbs] [--seed S] [--json]",
        about: "kill, stop, starve and cut off processes that send to each other, with a\n      \
                checker beside them; verbs: in a guest; `-- --help` has the rest",
        run: soak::run,
    },
    CommandEntry {
        name: "house",
        arguments: "[--list | --write | FOLDER]",
        about: "count lines, methods, files, orderings and names of the published crates, and fail\n      \
                if a count is above xtask/house.txt; --list: what is counted; --write: hold the\n      \
                present values, and renew the table in ARCHITECTURE.md; FOLDER: count another clone",
        run: house::run,
    },
    CommandEntry {
        name: "corpus",
        arguments: "",
        about: "write fuzz/corpus anew, after a change of what stands on the wire",
        run: |arguments| {
            options::expect_none(arguments)?;
            fuzz::write_corpus()
        },
    },
];

fn run_stages(
    stages: &'static [&'static [Stage]],
    arguments: &[String],
) -> Result<ExitCode, Failure> {
    let options = TestOptions::parse(stages, arguments)?;
    if options.write {
        return Err(options::unknown("--write"));
    }
    Ok(stage::run(stages, &options)?.exit_code())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((name, rest)) = arguments.split_first() else {
        return print_help();
    };
    // The option may stand at any position: a call for help runs nothing.
    if options::ask_for_help(&arguments) {
        return print_help();
    }
    let Some(command) = COMMANDS.iter().find(|command| command.name == name) else {
        eprint!("there is no command `{name}`\n\n{}", help());
        return ExitCode::from(USAGE);
    };
    (command.run)(rest).unwrap_or_else(|failure| {
        eprintln!("cargo xtask {name}: {failure}");
        ExitCode::from(USAGE)
    })
}

fn print_help() -> ExitCode {
    print!("{}", help());
    ExitCode::SUCCESS
}

/// Returns the text that `cargo xtask` alone and `--help` print.
fn help() -> String {
    let mut text = String::from("commands:\n");
    for command in COMMANDS {
        let (name, arguments, about) = (command.name, command.arguments, command.about);
        let call = format!("cargo xtask {name} {arguments}");
        text += &format!("  {}\n      {about}\n", call.trim_end());
    }
    let lists = [
        ("stages of `cargo xtask test`, * in --quick too:\n", STAGES),
        ("stages of `cargo xtask torture`:\n", torture::STAGES),
        ("stages of `cargo xtask release-check`:\n", release::STAGES),
    ];
    for (title, stages) in lists {
        text += title;
        for stage in stages.iter().copied().flatten() {
            let mark = if stage.quick { '*' } else { ' ' };
            text += &format!("  {mark} {:<12} {}\n", stage.name, stage.about);
        }
    }
    text
}

/// The exit status of a command that could not begin.
const USAGE: u8 = 2;
