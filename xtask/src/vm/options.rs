//! The arguments of `cargo xtask vm`.

use std::thread;
use std::time::Duration;

use crate::failure::Failure;

/// The options of `cargo xtask vm`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VmOptions {
    /// The program and its arguments.
    pub(crate) command: Vec<String>,
    /// The longest time that it may run, after booting.
    pub(crate) time_out: Duration,
    /// The prefix of each line of output from the guest.
    pub(crate) label: String,

    // The machine.
    pub(crate) topology: Topology,
    pub(crate) cpus: u32,
    pub(crate) memory_mib: u32,

    // The software.
    /// A file that lists packages in addition to `vm/packages`.
    pub(crate) packages: Option<String>,
    /// The only release of `vm/releases` to use.
    pub(crate) release: Option<String>,
    /// Fetches the release again, even if the cache has it.
    pub(crate) update: bool,
    /// Installs nothing on this machine.
    pub(crate) no_install: bool,
}

/// The RDMA devices of the guest, and the links between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    /// A single device.
    One,
    /// Two devices of one guest, at the ends of a link.
    Pair,
    /// A device in each of two guests, with a link between them.
    Two,
}

impl VmOptions {
    /// Reads the arguments behind `vm`.
    pub(crate) fn parse(arguments: &[String]) -> Result<Self, Failure> {
        let mut options = Self {
            command: Vec::new(),
            time_out: DEFAULT_TIME_OUT,
            label: String::new(),
            topology: Topology::One,
            cpus: 0,
            memory_mib: DEFAULT_MEMORY_MIB,
            packages: None,
            release: None,
            update: false,
            no_install: false,
        };
        let mut cpus = None;
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match argument.as_str() {
                "--pair" => options.choose(Topology::Pair)?,
                "--two" => options.choose(Topology::Two)?,
                "--time-out" => {
                    options.time_out = Duration::from_secs(number(argument, rest.next())?.into());
                }
                "--label" => {
                    let label = rest.next();
                    let label = label.ok_or_else(|| Failure::new("--label takes a text"))?;
                    options.label = label.clone();
                }
                "--cpus" => cpus = Some(number(argument, rest.next())?),
                "--memory" => options.memory_mib = number(argument, rest.next())?,
                "--packages" => {
                    let file = rest.next();
                    let file = file.ok_or_else(|| Failure::new("--packages takes a file"))?;
                    options.packages = Some(file.clone());
                }
                "--release" => {
                    let name = rest.next().ok_or_else(|| {
                        Failure::new("--release takes one of those that vm/releases lists")
                    })?;
                    options.release = Some(name.clone());
                }
                "--update" => options.update = true,
                "--no-install" => options.no_install = true,
                "--" => options.command.extend(rest.by_ref().cloned()),
                unknown if unknown.starts_with('-') => {
                    return Err(Failure::new(format!(
                        "unknown argument `{unknown}`; what belongs to the command stands behind `--`"
                    )));
                }
                program => {
                    options.command.push(program.to_string());
                    options.command.extend(rest.by_ref().cloned());
                }
            }
        }
        if options.command.is_empty() {
            return Err(Failure::new(
                "name a command, such as `cargo xtask vm -- ibv_devinfo`",
            ));
        }
        options.cpus = cpus.unwrap_or_else(|| options.topology.default_cpus());
        Ok(options)
    }

    fn choose(&mut self, topology: Topology) -> Result<(), Failure> {
        if self.topology != Topology::One && self.topology != topology {
            return Err(Failure::new("--pair and --two exclude each other"));
        }
        self.topology = topology;
        Ok(())
    }
}

impl Topology {
    /// Returns the name by which `vm/guest` knows it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Pair => "pair",
            Self::Two => "two",
        }
    }

    /// Returns two CPUs, or fewer if the machine has fewer: CPUs of a guest that wait for one
    /// another's core turn a latency of 35 µs into one of 3 ms.
    fn default_cpus(self) -> u32 {
        let there_are = thread::available_parallelism().map_or(1, usize::from);
        match self {
            Self::Two => 1,
            Self::One | Self::Pair => there_are.min(2) as u32,
        }
    }
}

fn number(name: &str, value: Option<&String>) -> Result<u32, Failure> {
    let number = value.and_then(|value| value.parse().ok());
    number
        .filter(|&number| number > 0)
        .ok_or_else(|| Failure::new(format!("{name} takes a number above 0")))
}

/// The guest is about 15 times slower than this machine.
const DEFAULT_TIME_OUT: Duration = Duration::from_secs(600);

/// The idle guest takes 170 MiB; the rest is for the memory that tests register and write.
const DEFAULT_MEMORY_MIB: u32 = 2048;

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<VmOptions, Failure> {
        let words: Vec<String> = line.split_whitespace().map(String::from).collect();
        VmOptions::parse(&words)
    }

    #[test]
    fn arguments_behind_the_dashes_belong_to_the_command() {
        let options = parse("--pair --time-out 5 --cpus 1 -- ib_send_lat --pair -- x").unwrap();
        assert_eq!(options.command, ["ib_send_lat", "--pair", "--", "x"]);
        assert_eq!(options.topology, Topology::Pair);
        assert_eq!(options.time_out, Duration::from_secs(5));
        assert_eq!(options.cpus, 1);
        // Without dashes, the command begins with the first word that is no option.
        let options = parse("--memory 1024 sh --two").unwrap();
        assert_eq!(options.command, ["sh", "--two"]);
        assert_eq!(options.memory_mib, 1024);
        assert_eq!(options.topology, Topology::One);
    }

    #[test]
    fn a_label_is_a_text() {
        assert_eq!(parse("--label A| true").unwrap().label, "A|");
        assert_eq!(parse("true").unwrap().label, "");
    }

    #[test]
    fn two_guests_share_the_cores() {
        assert_eq!(parse("--two true").unwrap().cpus, 1);
        assert_eq!(parse("--two --cpus 2 true").unwrap().cpus, 2);
    }

    #[test]
    fn a_wrong_option_or_missing_command_is_named() {
        for (line, diagnosis) in [
            ("", "name a command"),
            ("--", "name a command"),
            ("--pear -- true", "unknown argument `--pear`"),
            ("--time-out -- true", "--time-out takes a number above 0"),
            ("--cpus 0 true", "--cpus takes a number above 0"),
            ("--label", "--label takes a text"),
            ("--memory", "--memory takes a number above 0"),
            ("--pair --two true", "--pair and --two exclude each other"),
            ("--release", "--release takes"),
        ] {
            let failure = parse(line).unwrap_err().to_string();
            assert!(failure.starts_with(diagnosis), "`{line}`: {failure}");
        }
    }
}
