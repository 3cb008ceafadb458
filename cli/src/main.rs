//! The command `ibex`: what a machine offers to programs that use ibex, what stands in the way, and
//! the keys with which nodes authenticate each other.
#![forbid(unsafe_code)]

mod address;
mod config;
mod date;
mod devices;
mod doctor;
mod ed25519_key;
mod info;
mod keygen;
mod manual;
mod options;
mod page;
mod perf;
mod ping;
mod root;
mod route;
mod session;
mod top;
mod warnings;
mod watch;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, Parser};

use options::{Command, Config, Options};

/// Why a subcommand did not do its work.
#[derive(Debug)]
struct Failure {
    text: String,
    code: u8,
}

impl Failure {
    /// Makes a failure from its text.
    fn said(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            code: 1,
        }
    }

    /// Makes the failure of a command line that is wrong.
    fn usage(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            code: 2,
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // Who reads no further, as `head` does, wants no complaint.
            io::ErrorKind::BrokenPipe => Self::said(""),
            _ => Self::said(format!("the output cannot be written: {error}")),
        }
    }
}

fn main() -> ExitCode {
    // `perf` starts this program again as the other end.
    if let Some(code) = ibex_harness::pair::run_if_peer(ibex_measurement::session::answer_here) {
        return code;
    }
    let options = Options::try_parse().unwrap_or_else(|error| without_hidden(error).exit());
    let done = match options.command {
        Command::Info(options) => info::run(&options),
        Command::Doctor(options) => doctor::run(&options),
        Command::Keygen(options) => keygen::run(&options),
        Command::Ping(options) => ping::run(&options),
        Command::Perf(options) => perf::run(&options),
        Command::Watch(options) => watch::run(&options),
        Command::Top(options) => top::run(&options),
        Command::Config(Config::Explain(options)) => config::run(&options),
        Command::Completions { shell } => manual::completions(shell),
        Command::Man { folder } => manual::man(folder.as_deref()),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            if !failure.text.is_empty() {
                eprintln!("ibex: {}", failure.text);
            }
            ExitCode::from(failure.code)
        }
    }
}

/// Returns an error of the command line without the suggestion of an option that `--help` hides.
fn without_hidden(mut error: clap::Error) -> clap::Error {
    let command = Options::command();
    let mut hidden = command
        .get_subcommands()
        .flat_map(clap::Command::get_arguments)
        .filter(|argument| argument.is_hide_set())
        .filter_map(|argument| Some(format!("--{}", argument.get_long()?)));
    let is_hidden = match error.get(ContextKind::SuggestedArg) {
        Some(ContextValue::String(suggested)) => hidden.any(|name| *suggested == name),
        _ => false,
    };
    if is_hidden {
        error.remove(ContextKind::SuggestedArg);
    }
    error
}

/// Prints a text.
fn print(text: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes())?;
    output.flush()
}
