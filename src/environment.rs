//! `IBEX_*` variables, by which a site overrides a program.
//!
//! A pure parser: names and values in, overrides and warnings out, or the first error. A process
//! that runs with more rights than its user reads no variable.
//! [`NodeBuilder`] documents each variable.
#![forbid(unsafe_code)]

use std::{env, fmt, time::Duration};

use ibex_transport::node::has_more_rights_than_its_user;

use crate::Fabric;

/// The `IBEX_*` variables that a node used when it was made, and those that it could not use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Environment {
    /// Variables that were set and took the place of what the program said, or the default, and
    /// their values.
    pub(crate) overrides: Vec<(&'static str, String)>,
    /// Variables that have no effect, and why not, as text; each is also a [`tracing`] warning.
    pub(crate) warnings: Vec<String>,
}

/// A variable that has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EnvironmentWarning {
    /// There is no such variable, and none of a similar name.
    Unknown {
        /// The variable's name.
        variable: String,
    },
    /// The variable concerns a fabric that this build does not have.
    NotCompiledIn {
        /// The variable's name.
        variable: &'static str,
        /// The fabric, and the cargo feature that it needs.
        fabric: Fabric,
    },
}

/// A variable that cannot be used.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum VariableError {
    /// The variable has a value that it may not have.
    #[error("{variable} is \"{value}\" in the environment; it may be {range}")]
    Value {
        /// The variable's name.
        variable: &'static str,
        /// The variable's value.
        value: String,
        /// The values that it may have.
        range: &'static str,
    },
    /// There is no such variable, and one of a similar name, which is probably meant. The node would
    /// run otherwise than its site wants.
    #[error(
        "{variable} is set in the environment and is no variable of ibex; is {nearest} meant? \
         Rename it or unset it"
    )]
    Misspelt {
        /// The variable's name.
        variable: String,
        /// The variable that may have been meant.
        nearest: &'static str,
    },
}

/// The settings that the variables make.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Site {
    /// The fabrics that may be used, the preferred one first.
    pub(crate) fabrics: Option<Vec<Fabric>>,
    pub(crate) device: Option<String>,
    pub(crate) port: Option<u8>,
    pub(crate) gid_index: Option<u32>,
    /// The key that names a partition.
    pub(crate) partition_key: Option<u16>,
    /// An MTU in bytes, which a port can have.
    pub(crate) mtu_bytes: Option<u32>,
    pub(crate) completions: Option<Completions>,
    pub(crate) fail_over_after: Option<Duration>,
    pub(crate) overrides: Vec<(&'static str, String)>,
    pub(crate) warnings: Vec<EnvironmentWarning>,
}

/// How completions are polled: `ibex_verbs::CompletionPolling`, which only builds with RDMA have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completions {
    Plain,
    Extended,
    ExtendedOneByOne,
}

/// A variable: its name, and its allowed values.
struct Variable {
    name: &'static str,
    range: &'static str,
    take: fn(&mut Site, &str) -> Option<()>,
}

const VARIABLES: &[Variable] = &[
    Variable {
        name: "IBEX_FABRICS",
        range: "fabrics (shm, tcp, verbs) with commas between them, each once",
        take: take_fabrics,
    },
    Variable {
        name: "IBEX_RDMA_DEVICE",
        range: "the name of a device, such as mlx5_0, or its GUID, such as guid:0002:c903:0000:0001",
        take: |site, value| {
            site.device = (!value.is_empty()).then(|| value.to_owned());
            site.device.is_some().then_some(())
        },
    },
    Variable {
        name: "IBEX_RDMA_PORT",
        range: "1 to 255",
        take: |site, value| {
            site.port = value.parse().ok().filter(|port| *port != 0);
            site.port.is_some().then_some(())
        },
    },
    Variable {
        name: "IBEX_RDMA_GID_INDEX",
        range: "0 to 255",
        take: |site, value| {
            site.gid_index = value.parse::<u8>().ok().map(u32::from);
            site.gid_index.is_some().then_some(())
        },
    },
    Variable {
        name: "IBEX_RDMA_PARTITION_KEY",
        range: "0x0001 to 0xffff, but for 0x8000",
        take: |site, value| {
            let key = match value.strip_prefix("0x") {
                Some(digits) => u16::from_str_radix(digits, 16).ok(),
                None => value.parse().ok(),
            };
            site.partition_key = key.filter(|key| key & 0x7fff != 0);
            site.partition_key.is_some().then_some(())
        },
    },
    Variable {
        name: "IBEX_RDMA_MTU",
        range: "256, 512, 1024, 2048 or 4096",
        take: |site, value| {
            let bytes = value.parse().ok();
            site.mtu_bytes = bytes.filter(|bytes| [256, 512, 1024, 2048, 4096].contains(bytes));
            site.mtu_bytes.is_some().then_some(())
        },
    },
    Variable {
        name: "IBEX_RDMA_COMPLETIONS",
        range: "plain, extended or one-by-one",
        take: |site, value| {
            site.completions = match value {
                "plain" => Some(Completions::Plain),
                "extended" => Some(Completions::Extended),
                "one-by-one" => Some(Completions::ExtendedOneByOne),
                _ => None,
            };
            site.completions.is_some().then_some(())
        },
    },
    Variable {
        name: "IBEX_RDMA_FAIL_OVER_AFTER",
        range: "milliseconds, or never",
        take: |site, value| {
            let time = match value {
                "never" => Some(Duration::MAX),
                _ => value.parse().ok().map(Duration::from_millis),
            };
            site.fail_over_after = time;
            time.map(drop)
        },
    },
];

/// Prefixes of names that are for ibex's own tests and tools.
const TOOLS: &[&str] = &[
    "IBEX_TEST_",
    "IBEX_CONFORMANCE_",
    "IBEX_FUZZ_",
    "IBEX_SIM_",
    "IBEX_VM_",
    "IBEX_MUTANT",
];

/// Prefix of all variables of ibex.
const PREFIX: &str = "IBEX_";
/// Prefix of the variables that concern verbs.
const RDMA_PREFIX: &str = "IBEX_RDMA_";

/// Returns the process's variables whose names begin with `IBEX_`. There are none for a process
/// that runs with more rights than the user who started it (setuid, setgid or file capabilities),
/// because that user sets them.
pub(crate) fn of_process() -> Vec<(String, String)> {
    if has_more_rights_than_its_user() {
        return Vec::new();
    }
    let all = env::vars_os();
    all.filter_map(|(name, value)| {
        let name = name.to_str().filter(|name| name.starts_with(PREFIX))?;
        Some((name.to_owned(), value.to_string_lossy().into_owned()))
    })
    .collect()
}

/// Reads the variables whose names begin with `IBEX_`, and ignores others.
pub(crate) fn parse(variables: &[(String, String)]) -> Result<Site, VariableError> {
    let mut site = Site::default();
    for (name, value) in variables {
        if !name.starts_with(PREFIX) || TOOLS.iter().any(|tool| name.starts_with(tool)) {
            continue;
        }
        let Some(variable) = VARIABLES.iter().find(|known| known.name == name) else {
            let variable = name.clone();
            if let Some(nearest) = nearest(name) {
                return Err(VariableError::Misspelt { variable, nearest });
            }
            site.warnings.push(EnvironmentWarning::Unknown { variable });
            continue;
        };
        let (value, taken) = (value.trim(), variable.take);
        taken(&mut site, value).ok_or_else(|| VariableError::Value {
            variable: variable.name,
            value: value.to_owned(),
            range: variable.range,
        })?;
        if name.starts_with(RDMA_PREFIX) && !cfg!(feature = "verbs") {
            let warning = EnvironmentWarning::NotCompiledIn {
                variable: variable.name,
                fabric: Fabric::Verbs,
            };
            site.warnings.push(warning);
            continue;
        }
        site.overrides.push((variable.name, value.to_owned()));
    }
    Ok(site)
}

fn take_fabrics(site: &mut Site, value: &str) -> Option<()> {
    let mut fabrics = Vec::new();
    for name in value.split(',').map(str::trim) {
        let mut all = Fabric::FASTEST_FIRST.into_iter();
        let fabric = all.find(|fabric| fabric.name() == name)?;
        if fabrics.contains(&fabric) {
            return None;
        }
        fabrics.push(fabric);
    }
    site.fabrics = Some(fabrics);
    Some(())
}

/// Returns the known name that ends alike, or else the one that differs least, unless it is
/// altogether different.
fn nearest(name: &str) -> Option<&'static str> {
    let tail = &name[PREFIX.len() - 1..];
    let known = || VARIABLES.iter().map(|variable| variable.name);
    if tail.len() > 1
        && let Some(alike) = known().find(|known| known.ends_with(tail))
    {
        return Some(alike);
    }
    let (least, near) = known().map(|known| (distance(name, known), known)).min()?;
    // Suggests a name only if less than half of the part behind the prefix differs.
    (2 * least < near.len().max(name.len()) - PREFIX.len()).then_some(near)
}

/// Returns the number of letters to add, remove or change to turn one word into the other (the
/// [Levenshtein distance](https://en.wikipedia.org/wiki/Levenshtein_distance)).
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.bytes().enumerate() {
            let changed = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

impl fmt::Display for EnvironmentWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EnvironmentWarning::Unknown { variable } => {
                write!(
                    f,
                    "{variable} is no variable of ibex and has no effect; there are"
                )?;
                let known = VARIABLES.iter().map(|variable| variable.name);
                known.enumerate().try_for_each(|(index, name)| {
                    write!(f, "{}{name}", if index == 0 { " " } else { ", " })
                })
            }
            EnvironmentWarning::NotCompiledIn { variable, fabric } => write!(
                f,
                "{variable} is about {fabric}, which is not compiled in (feature `{fabric}`)"
            ),
        }
    }
}

ibex_base::debug_as_display!(VariableError);

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(variables: &[(&str, &str)]) -> Result<Site, VariableError> {
        let owned = |(name, value): &(&str, &str)| (name.to_string(), value.to_string());
        parse(&variables.iter().map(owned).collect::<Vec<_>>())
    }

    #[test]
    fn each_variable_sets_its_own_and_is_told() {
        let all = [
            ("IBEX_FABRICS", " tcp, shm"),
            ("IBEX_RDMA_DEVICE", "mlx5_1"),
            ("IBEX_RDMA_PORT", "2"),
            ("IBEX_RDMA_GID_INDEX", "0"),
            ("IBEX_RDMA_PARTITION_KEY", "0x8001"),
            ("IBEX_RDMA_MTU", "1024"),
            ("IBEX_RDMA_COMPLETIONS", "one-by-one"),
            ("IBEX_RDMA_FAIL_OVER_AFTER", "2500"),
        ];
        assert_eq!(all.len(), VARIABLES.len());
        let site = parsed(&all).unwrap();
        assert_eq!(site.fabrics, Some(vec![Fabric::Tcp, Fabric::Shm]));
        assert_eq!(site.device.as_deref(), Some("mlx5_1"));
        assert_eq!((site.port, site.gid_index), (Some(2), Some(0)));
        assert_eq!(site.partition_key, Some(0x8001));
        assert_eq!(site.mtu_bytes, Some(1024));
        assert_eq!(site.completions, Some(Completions::ExtendedOneByOne));
        assert_eq!(site.fail_over_after, Some(Duration::from_millis(2500)));
        let told: Vec<_> = site.overrides.iter().map(|(name, _)| *name).collect();
        let without = site.warnings.iter().map(|warning| match warning {
            EnvironmentWarning::NotCompiledIn { variable, .. } => *variable,
            other => panic!("{other}"),
        });
        let said: Vec<_> = told.into_iter().chain(without).collect();
        assert_eq!(said, all.map(|(name, _)| name));
        assert_eq!(site.overrides[0].1, "tcp, shm");
        let of_rdma = match cfg!(feature = "verbs") {
            true => 0,
            false => 7,
        };
        assert_eq!(site.warnings.len(), of_rdma, "not compiled in");
    }

    #[test]
    fn nothing_set_says_nothing() {
        assert_eq!(parsed(&[]), Ok(Site::default()));
        let others = [("HOME", "/root"), ("IBEXTRA", "1"), ("ibex_fabrics", "shm")];
        assert_eq!(parsed(&others), Ok(Site::default()));
    }

    #[test]
    fn an_unusable_value_is_an_error_that_names_the_range() {
        let cases = [
            (
                "IBEX_FABRICS",
                "",
                "fabrics (shm, tcp, verbs) with commas between them, each once",
            ),
            ("IBEX_FABRICS", "shm,shm", VARIABLES[0].range),
            ("IBEX_FABRICS", "shm,ethernet", VARIABLES[0].range),
            ("IBEX_RDMA_DEVICE", "", VARIABLES[1].range),
            ("IBEX_RDMA_PORT", "0", "1 to 255"),
            ("IBEX_RDMA_PORT", "256", "1 to 255"),
            ("IBEX_RDMA_PORT", "eth0", "1 to 255"),
            ("IBEX_RDMA_GID_INDEX", "-1", "0 to 255"),
            ("IBEX_RDMA_GID_INDEX", "256", "0 to 255"),
            (
                "IBEX_RDMA_PARTITION_KEY",
                "0x8000",
                "0x0001 to 0xffff, but for 0x8000",
            ),
            (
                "IBEX_RDMA_PARTITION_KEY",
                "8001h",
                "0x0001 to 0xffff, but for 0x8000",
            ),
            ("IBEX_RDMA_MTU", "1500", "256, 512, 1024, 2048 or 4096"),
            (
                "IBEX_RDMA_COMPLETIONS",
                "auto",
                "plain, extended or one-by-one",
            ),
            ("IBEX_RDMA_FAIL_OVER_AFTER", "1s", "milliseconds, or never"),
        ];
        for (variable, value, range) in cases {
            let error = parsed(&[(variable, value)]).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("{variable} is \"{value}\" in the environment; it may be {range}")
            );
        }
    }

    #[test]
    fn a_misspelt_name_is_an_error_that_names_the_nearest_that_is_known() {
        let cases = [
            ("IBEX_FABRIC", "IBEX_FABRICS"),
            ("IBEX_RMDA_DEVICE", "IBEX_RDMA_DEVICE"),
            ("IBEX_DEVICE", "IBEX_RDMA_DEVICE"),
            ("IBEX_GID_INDEX", "IBEX_RDMA_GID_INDEX"),
        ];
        for (name, nearest) in cases {
            let said = parsed(&[(name, "1")]).unwrap_err().to_string();
            assert!(said.starts_with(&format!("{name} is set")), "{said}");
            assert!(said.contains(&format!("is {nearest} meant?")), "{said}");
        }
    }

    /// It may be another program's, or one of another release.
    #[test]
    fn an_altogether_unknown_name_is_a_warning_that_lists_the_known_ones() {
        let site = parsed(&[("IBEX_COLOUR", "1")]).unwrap();
        let variable = "IBEX_COLOUR".to_owned();
        let warning = EnvironmentWarning::Unknown { variable };
        assert_eq!(site.warnings, std::slice::from_ref(&warning));
        assert!(site.overrides.is_empty());
        let said = warning.to_string();
        assert!(said.contains("there are IBEX_FABRICS, "), "{said}");
    }

    #[test]
    fn variables_of_tests_and_tools_are_ignored() {
        let tools = [
            "IBEX_TEST_DEVICE",
            "IBEX_TEST_SESSIONS",
            "IBEX_MUTANT",
            "IBEX_SIM_SEED",
            "IBEX_VM_CACHE",
            "IBEX_FUZZ_TARGET",
            "IBEX_CONFORMANCE_PART",
        ];
        assert_eq!(parsed(&tools.map(|name| (name, "x"))), Ok(Site::default()));
        let ours = VARIABLES.iter().map(|variable| variable.name);
        for name in ours {
            assert!(!TOOLS.iter().any(|tool| name.starts_with(tool)), "{name}");
        }
    }

    #[test]
    fn a_distance_counts_letters() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("same", "same"), 0);
    }
}
