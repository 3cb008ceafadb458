//! The arguments of each command.

use std::time::Duration;

use crate::failure::Failure;
use crate::stage::Stage;

/// The options of `cargo xtask test`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TestOptions {
    /// The stages to run; all, if empty.
    pub(crate) stages: Vec<String>,
    /// Runs only stages for the inner loop.
    pub(crate) quick: bool,
    /// Installs nothing.
    pub(crate) no_install: bool,
    /// Writes the times of a whole run of `cargo xtask test` into CONTRIBUTING.md.
    pub(crate) write: bool,
}

impl TestOptions {
    /// Reads the arguments behind `test` or `torture`, with the stages of that command.
    pub(crate) fn parse(stages: &[&[Stage]], arguments: &[String]) -> Result<Self, Failure> {
        let mut options = Self::default();
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match argument.as_str() {
                "--stage" => options.stages.push(stage_name(stages, rest.next())?),
                "--quick" => options.quick = true,
                "--no-install" => options.no_install = true,
                "--write" => options.write = true,
                _ => return Err(unknown(argument)),
            }
        }
        match options.write && !options.is_whole() {
            true => Err(Failure::new(
                "--write needs the times of all stages: neither --stage nor --quick",
            )),
            false => Ok(options),
        }
    }

    /// Returns whether all stages are to run.
    pub(crate) fn is_whole(&self) -> bool {
        self.stages.is_empty() && !self.quick
    }

    /// Returns whether a stage is to run. A named stage runs, quick or not.
    pub(crate) fn selects(&self, name: &str, is_quick: bool) -> bool {
        if self.stages.is_empty() {
            is_quick || !self.quick
        } else {
            self.stages.iter().any(|stage| stage == name)
        }
    }
}

/// The options of `cargo xtask bench`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct BenchOptions {
    /// Runs the benchmark in a guest.
    pub(crate) vm: bool,
    /// Prints JSON objects instead of a table.
    pub(crate) json: bool,
    /// Counts the instructions of a message, too.
    pub(crate) instructions: bool,
    /// Draws the pictures of the recorded figures, and measures nothing.
    pub(crate) plots: bool,
    /// Writes the figures into README.md and BENCHMARKS.md.
    pub(crate) write: bool,
    /// Runs only the rows whose names contain this.
    pub(crate) row: Option<String>,
}

impl BenchOptions {
    /// Reads the arguments behind `bench`.
    pub(crate) fn parse(arguments: &[String]) -> Result<Self, Failure> {
        let mut options = Self::default();
        for argument in arguments {
            match argument.as_str() {
                "--vm" => options.vm = true,
                "--json" => options.json = true,
                "--instructions" => options.instructions = true,
                "--plots" => options.plots = true,
                "--write" => options.write = true,
                row if !row.starts_with('-') && options.row.is_none() => {
                    options.row = Some(row.to_string());
                }
                _ => return Err(unknown(argument)),
            }
        }
        match options.write && (options.vm || options.json || options.instructions) {
            true => Err(Failure::new("--write takes no other option, only a ROW")),
            false => Ok(options),
        }
    }
}

/// The options of `cargo xtask fuzz`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FuzzOptions {
    /// The parser to fuzz.
    pub(crate) target: String,
    /// The duration; without one, fuzzing runs until it fails.
    pub(crate) time: Option<Duration>,
}

impl FuzzOptions {
    /// Reads the arguments behind `fuzz`.
    pub(crate) fn parse(arguments: &[String]) -> Result<Self, Failure> {
        let (mut target, mut time) = (None, None);
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            if argument == "--seconds" {
                let seconds = rest.next().and_then(|seconds| seconds.parse().ok());
                let seconds = seconds.ok_or_else(|| Failure::new("--seconds takes a number"))?;
                time = Some(Duration::from_secs(seconds));
            } else if argument.starts_with('-') || target.is_some() {
                return Err(unknown(argument));
            } else {
                target = Some(argument.clone());
            }
        }
        let missing = || Failure::new("name a target: the directories in fuzz/corpus");
        let target = target.ok_or_else(missing)?;
        Ok(Self { target, time })
    }
}

/// Returns whether the arguments ask for help, as a command's name or behind one.
pub(crate) fn ask_for_help(arguments: &[String]) -> bool {
    arguments.first().is_some_and(|first| first == "help")
        || arguments
            .iter()
            .any(|argument| matches!(argument.as_str(), "--help" | "-h"))
}

/// Fails if there are arguments, for a command that takes none.
pub(crate) fn expect_none(arguments: &[String]) -> Result<(), Failure> {
    arguments
        .first()
        .map_or(Ok(()), |first| Err(unknown(first)))
}

fn stage_name(stages: &[&[Stage]], name: Option<&String>) -> Result<String, Failure> {
    let names = || stages.iter().copied().flatten().map(|stage| stage.name);
    let all = || names().collect::<Vec<_>>().join(", ");
    let name = name.ok_or_else(|| Failure::new(format!("--stage takes one of {}", all())))?;
    if names().any(|known| known == name) {
        Ok(name.clone())
    } else {
        Err(Failure::new(format!(
            "there is no stage `{name}`; there are {}",
            all()
        )))
    }
}

pub(crate) fn unknown(argument: &str) -> Failure {
    Failure::new(format!(
        "unknown argument `{argument}`; `cargo xtask` lists the commands"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stages::STAGES;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(String::from).collect()
    }

    #[test]
    fn stages_add_up_and_switches_switch() {
        let options =
            TestOptions::parse(STAGES, &words("--stage fmt --no-install --stage unit")).unwrap();
        assert_eq!(options.stages, ["fmt", "unit"]);
        assert!(options.no_install && !options.quick);
    }

    #[test]
    fn unknown_stages_and_arguments_are_named() {
        let failure = TestOptions::parse(STAGES, &words("--stage fmtt"))
            .unwrap_err()
            .to_string();
        assert!(
            failure.starts_with("there is no stage `fmtt`; there are fmt, "),
            "{failure}"
        );
        let failure = TestOptions::parse(STAGES, &words("--fast"))
            .unwrap_err()
            .to_string();
        assert!(
            failure.starts_with("unknown argument `--fast`"),
            "{failure}"
        );
        assert!(TestOptions::parse(STAGES, &words("--stage")).is_err());
        assert!(TestOptions::parse(STAGES, &words("--write --quick")).is_err());
        assert!(TestOptions::parse(STAGES, &words("--write")).unwrap().write);
    }

    #[test]
    fn one_row_may_be_named() {
        let options = BenchOptions::parse(&words("--vm latency --json")).unwrap();
        assert!(options.vm && options.json);
        assert_eq!(options.row.as_deref(), Some("latency"));
        assert!(BenchOptions::parse(&words("one two")).is_err());
        assert!(BenchOptions::parse(&words("--plots")).unwrap().plots);
        assert!(BenchOptions::parse(&words("--write tcp")).unwrap().write);
        assert!(BenchOptions::parse(&words("--write --vm")).is_err());
        assert!(BenchOptions::parse(&words("--rows")).is_err());
    }

    #[test]
    fn help_is_asked_for_with_and_without_a_command() {
        for line in ["--help", "-h", "help", "test --help", "test --quick -h"] {
            assert!(ask_for_help(&words(line)), "{line}");
        }
        for line in ["test", "fuzz help", "test --stage fmt"] {
            assert!(!ask_for_help(&words(line)), "{line}");
        }
    }

    #[test]
    fn a_named_stage_runs_even_if_it_is_not_quick() {
        let all = TestOptions::default();
        let quick = TestOptions {
            quick: true,
            ..TestOptions::default()
        };
        let named = TestOptions {
            stages: vec!["fuzz".into()],
            quick: true,
            ..TestOptions::default()
        };
        let selected =
            |options: &TestOptions| [options.selects("fmt", true), options.selects("fuzz", false)];
        assert_eq!(selected(&all), [true, true]);
        assert_eq!(selected(&quick), [true, false]);
        assert_eq!(selected(&named), [false, true]);
    }

    #[test]
    fn fuzzing_takes_one_target_and_perhaps_a_time() {
        let options = FuzzOptions::parse(&words("ring --seconds 60")).unwrap();
        assert_eq!(options.target, "ring");
        assert_eq!(options.time, Some(Duration::from_secs(60)));
        assert_eq!(FuzzOptions::parse(&words("ring")).unwrap().time, None);
        for wrong in [
            "",
            "ring frames",
            "ring --seconds",
            "ring --seconds soon",
            "--all",
        ] {
            assert!(FuzzOptions::parse(&words(wrong)).is_err(), "{wrong}");
        }
    }
}
