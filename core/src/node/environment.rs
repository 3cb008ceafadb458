//! `IBEX_*` variables, by which whoever starts a program overrides its settings.
//!
//! A row of the table has a variable's name, values and setting, and how it sets that; the
//! documentation of [`NodeBuilder`] and `ibex config explain` show the rows. A process that runs with
//! more rights than its user reads no variable.
#![forbid(unsafe_code)]

use std::{env, time::Duration};

use ibex_transport::node::has_more_rights_than_its_user;

use crate::{
    Fabric, NodeBuilder,
    error::{Required, VariableError},
    node::builder::is_compiled_in,
    shared_memory::parse_share_with,
};

/// The `IBEX_*` variables that a node used when it was made, and those that it could not use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Environment {
    /// Variables that were set and took the place of what the program said, or the default, and
    /// their values.
    pub(crate) overrides: Vec<(&'static str, String)>,
    /// Variables that have no effect, and why not, as text; each is also a [`tracing`] warning.
    pub(crate) warnings: Vec<String>,
    /// The value of `IBEX_FABRICS`, if it is set.
    fabrics: Option<String>,
}

impl Environment {
    /// Returns who requires a fabric that is required.
    pub(crate) fn required(&self) -> Required {
        Required(self.fabrics.clone())
    }
}

/// A variable.
struct Variable {
    name: &'static str,
    /// The values that it may have.
    values: &'static str,
    /// The builder and the method of the setting that it overrides.
    overrides: (&'static str, &'static str),
    /// Overrides the setting, and returns the fabrics that the value concerns, or `None` if the
    /// variable may not have this value.
    set: fn(&mut NodeBuilder, &str) -> Option<Vec<Fabric>>,
}

/// Writes the table of the variables, and `table_of_variables!`, which is its documentation.
macro_rules! variables {
    ($(
        $name:ident = $values:literal overrides $builder:ident::$setting:ident $($note:literal)?,
        $set:expr;
    )+) => {
        const VARIABLES: &[Variable] = &[$(Variable {
            name: stringify!($name),
            values: $values,
            overrides: (stringify!($builder), stringify!($setting)),
            set: $set,
        }),+];

        macro_rules! table_of_variables {
            () => { concat!($(
                "| `", stringify!($name), "` | ", $values, " | `", stringify!($builder), "::",
                stringify!($setting), "`", $($note,)? " |\n",
            )+) };
        }
    };
}

/// Reads a value for a setting of RDMA, which only builds with the feature `verbs` have.
macro_rules! rdma {
    (|$text:ident| $read:expr, |$rdma:ident, $value:ident: $type:ty| $set:expr) => {
        |node, $text| {
            let $value: $type = $read?;
            #[cfg(feature = "verbs")]
            {
                let $rdma = &mut node.settings.rdma;
                $set;
            }
            #[cfg(not(feature = "verbs"))]
            let _ = (node, $value);
            Some(vec![Fabric::Verbs])
        }
    };
}

variables! {
    IBEX_FABRICS = "fabrics (shm, tcp, verbs) with commas between them, each once"
        overrides NodeBuilder::fabric
        ": a single one is required; of several the first is preferred, and the fabrics that are \
         not named are forbidden",
        set_fabrics;
    IBEX_SHARE_MEMORY_WITH = "nobody, anyone, group:GID, or users:UID,UID"
        overrides NodeBuilder::share_memory_with,
        |node, text| {
            node.settings.share_memory_with = parse_share_with(text)?;
            Some(vec![Fabric::Shm])
        };
    IBEX_SHARED_MEMORY_DIRECTORY = "the path of a directory"
        overrides NodeBuilder::shared_memory_directory,
        |node, text| {
            let path = Some(text).filter(|path| !path.is_empty())?;
            node.settings.shared_memory_directory = Some(path.into());
            Some(vec![Fabric::Shm])
        };
    IBEX_RDMA_DEVICE = "the name of a device, such as mlx5_0, or its GUID, such as \
                        guid:0002:c903:0000:0001" overrides RdmaSettings::device,
        rdma!(
            |text| Some(text.to_owned()).filter(|name| !name.is_empty()),
            |rdma, name: String| rdma.device = Some(name)
        );
    IBEX_RDMA_PORT = "1 to 255" overrides RdmaSettings::port,
        rdma!(
            |text| text.parse().ok().filter(|port| *port != 0),
            |rdma, port: u8| rdma.port = Some(port)
        );
    IBEX_RDMA_GID_INDEX = "0 to 255" overrides RdmaSettings::gid_index,
        rdma!(|text| text.parse().ok(), |rdma, index: u8| rdma.gid_index = Some(index.into()));
    IBEX_RDMA_PARTITION_KEY = "0x0001 to 0xffff, but for 0x8000"
        overrides RdmaSettings::partition_key,
        rdma!(
            |text| partition_key(text).filter(|key| key & 0x7fff != 0),
            |rdma, key: u16| rdma.partition_key = ibex_verbs::PartitionKey::new(key)
        );
    IBEX_RDMA_MAX_RAILS = "0 to 3" overrides RdmaSettings::max_rails,
        rdma!(
            |text| text.parse().ok().filter(|rails| *rails <= 3),
            |rdma, rails: u8| rdma.max_rails = Some(rails)
        );
    IBEX_RDMA_MTU = "256, 512, 1024, 2048 or 4096"
        overrides Tuning::path_mtu "; each session also respects what both ports carry",
        rdma!(
            |text| text.parse().ok().filter(|bytes| [256, 512, 1024, 2048, 4096].contains(bytes)),
            |rdma, bytes: u32| if let Some(mtu) = ibex_verbs::Mtu::from_bytes(bytes) {
                rdma.connection = rdma.connection.path_mtu(mtu);
            }
        );
    IBEX_RDMA_COMPLETIONS = "plain or extended" overrides Tuning::completion_polling,
        rdma!(
            |text| ["plain", "extended"].iter().position(|way| *way == text),
            |rdma, way: usize| {
                use ibex_verbs::CompletionPolling::{Extended, Plain};
                rdma.resources.completion_polling = Some([Plain, Extended][way]);
            }
        );
    IBEX_RDMA_FAIL_OVER_AFTER = "milliseconds, or never" overrides NodeBuilder::fail_over_after,
        |node, text| {
            node.settings.time.fail_over_after = match text {
                "never" => Duration::MAX,
                _ => Duration::from_millis(text.parse().ok()?),
            };
            Some(vec![Fabric::Verbs])
        };
}

pub(crate) use table_of_variables as table;

/// Returns the variable that overrides a setting, and the values that it may have.
pub(crate) fn variable_of(builder: &str, setting: &str) -> Option<(&'static str, &'static str)> {
    let mut all = VARIABLES.iter();
    let variable = all.find(|variable| variable.overrides == (builder, setting))?;
    Some((variable.name, variable.values))
}

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

/// Lets the variables whose names begin with `IBEX_` override a node's settings. Ignores others.
pub(crate) fn apply(
    variables: &[(String, String)],
    node: &mut NodeBuilder,
) -> Result<Environment, VariableError> {
    let mut environment = Environment::default();
    for (name, value) in variables {
        if !name.starts_with(PREFIX) || TOOLS.iter().any(|tool| name.starts_with(tool)) {
            continue;
        }
        let Some(variable) = VARIABLES.iter().find(|known| known.name == name) else {
            let variable = name.clone();
            if let Some(nearest) = nearest(name) {
                return Err(VariableError::Misspelt { variable, nearest });
            }
            let known: Vec<_> = VARIABLES.iter().map(|variable| variable.name).collect();
            environment.warnings.push(format!(
                "{name} is no variable of ibex and has no effect; there are {}",
                known.join(", ")
            ));
            continue;
        };
        let (name, value) = (variable.name, value.trim());
        let fabrics = (variable.set)(node, value).ok_or_else(|| VariableError::Value {
            variable: name,
            value: value.to_owned(),
            range: variable.values,
        })?;
        if variable.overrides == ("NodeBuilder", "fabric") {
            environment.fabrics = Some(value.to_owned());
        }
        if fabrics.iter().any(|fabric| is_compiled_in(*fabric)) {
            environment.overrides.push((name, value.to_owned()));
        }
        for fabric in fabrics.iter().filter(|fabric| !is_compiled_in(**fabric)) {
            environment.warnings.push(format!(
                "{name} is about {fabric}, which is not compiled in (feature `{fabric}`)"
            ));
        }
    }
    Ok(environment)
}

fn set_fabrics(node: &mut NodeBuilder, value: &str) -> Option<Vec<Fabric>> {
    let mut fabrics = Vec::new();
    for name in value.split(',').map(str::trim) {
        let mut all = Fabric::FASTEST_FIRST.into_iter();
        let fabric = all.find(|fabric| fabric.name() == name)?;
        if fabrics.contains(&fabric) {
            return None;
        }
        fabrics.push(fabric);
    }
    node.allow_only(&fabrics);
    Some(fabrics)
}

/// Reads a partition's key, in either of the ways in which it is written.
fn partition_key(text: &str) -> Option<u16> {
    match text.strip_prefix("0x") {
        Some(digits) => u16::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Node;

    fn applied(
        variables: &[(&str, &str)],
        node: &mut NodeBuilder,
    ) -> Result<Environment, VariableError> {
        let owned = |(name, value): &(&str, &str)| (name.to_string(), value.to_string());
        apply(&variables.iter().map(owned).collect::<Vec<_>>(), node)
    }

    fn parsed(variables: &[(&str, &str)]) -> Result<Environment, VariableError> {
        applied(variables, &mut Node::builder())
    }

    #[test]
    fn each_variable_sets_its_own_and_is_told() {
        let all = [
            ("IBEX_FABRICS", " tcp, shm"),
            ("IBEX_SHARE_MEMORY_WITH", "users:1000, 1001"),
            ("IBEX_SHARED_MEMORY_DIRECTORY", "/run/ibex"),
            ("IBEX_RDMA_DEVICE", "mlx5_1"),
            ("IBEX_RDMA_PORT", "2"),
            ("IBEX_RDMA_GID_INDEX", "0"),
            ("IBEX_RDMA_PARTITION_KEY", "0x8001"),
            ("IBEX_RDMA_MAX_RAILS", "2"),
            ("IBEX_RDMA_MTU", "1024"),
            ("IBEX_RDMA_COMPLETIONS", "extended"),
            ("IBEX_RDMA_FAIL_OVER_AFTER", "2500"),
        ];
        assert_eq!(all.len(), VARIABLES.len());
        let mut node = Node::builder();
        let environment = applied(&all, &mut node).unwrap();
        let settings = &node.settings;
        let policies = [settings.tcp, settings.shm].map(|policy| format!("{policy:?}"));
        assert_eq!(policies, ["Prefer", "Auto"]);
        assert_eq!(
            settings.share_memory_with,
            crate::shared_memory::ShareWith::Users(vec![1000, 1001])
        );
        assert_eq!(
            settings.shared_memory_directory.as_deref(),
            Some(std::path::Path::new("/run/ibex"))
        );
        assert_eq!(settings.time.fail_over_after, Duration::from_millis(2500));
        #[cfg(feature = "verbs")]
        {
            use crate::rdma::{CompletionPolling, RdmaSettings, Tuning};
            use ibex_verbs::PartitionKey;

            let rdma = &settings.rdma;
            assert_eq!(rdma.device.as_deref(), Some("mlx5_1"));
            assert_eq!((rdma.port, rdma.gid_index), (Some(2), Some(0)));
            assert_eq!(rdma.partition_key, PartitionKey::new(0x8001));
            assert_eq!(rdma.max_rails, Some(2));
            let polling = CompletionPolling::Extended;
            let tuning = Tuning::new().path_mtu(1024).completion_polling(polling);
            let expected = RdmaSettings::new().tuning(tuning);
            assert_eq!(rdma.resources(0), expected.resources(0));
        }
        let notified: Vec<_> = environment
            .overrides
            .iter()
            .map(|(name, _)| *name)
            .collect();
        let (_, rdma): (Vec<_>, Vec<_>) = all
            .into_iter()
            .map(|(name, _)| name)
            .partition(|name| notified.contains(name));
        let not_there =
            |name: &&str| name.starts_with("IBEX_RDMA_") && cfg!(not(feature = "verbs"));
        let names = all.iter().map(|(name, _)| *name);
        assert_eq!(rdma, names.filter(not_there).collect::<Vec<_>>());
        assert_eq!(environment.warnings.len(), rdma.len(), "not compiled in");
        assert_eq!(environment.overrides[0].1, "tcp, shm");
    }

    #[test]
    #[cfg(feature = "verbs")]
    fn variables_override_what_they_name_and_nothing_else() {
        let rdma = crate::rdma::RdmaSettings::new()
            .device("mlx5_0")
            .gid_index(3);
        let mut node = Node::builder().rdma(rdma);
        applied(&[("IBEX_RDMA_PORT", "2")], &mut node).unwrap();
        let rdma = &node.settings.rdma;
        assert_eq!(rdma.device.as_deref(), Some("mlx5_0"));
        assert_eq!((rdma.port, rdma.gid_index), (Some(2), Some(3)));
    }

    #[test]
    fn nothing_set_says_nothing() {
        assert_eq!(parsed(&[]), Ok(Environment::default()));
        let others = [("HOME", "/root"), ("IBEXTRA", "1"), ("ibex_fabrics", "shm")];
        assert_eq!(parsed(&others), Ok(Environment::default()));
    }

    #[test]
    fn an_unusable_value_is_an_error_that_names_the_range() {
        let cases = [
            (
                "IBEX_FABRICS",
                "",
                "fabrics (shm, tcp, verbs) with commas between them, each once",
            ),
            ("IBEX_FABRICS", "shm,shm", VARIABLES[0].values),
            ("IBEX_FABRICS", "shm,ethernet", VARIABLES[0].values),
            ("IBEX_SHARE_MEMORY_WITH", "group:", VARIABLES[1].values),
            ("IBEX_SHARE_MEMORY_WITH", "users:1,", VARIABLES[1].values),
            ("IBEX_SHARE_MEMORY_WITH", "1000", VARIABLES[1].values),
            ("IBEX_SHARED_MEMORY_DIRECTORY", "", VARIABLES[2].values),
            ("IBEX_RDMA_DEVICE", "", VARIABLES[3].values),
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
            ("IBEX_RDMA_COMPLETIONS", "auto", "plain or extended"),
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
        let environment = parsed(&[("IBEX_COLOUR", "1")]).unwrap();
        let [warning] = &environment.warnings[..] else {
            panic!("{environment:?}");
        };
        assert!(environment.overrides.is_empty());
        assert!(
            warning.starts_with("IBEX_COLOUR is no variable"),
            "{warning}"
        );
        assert!(warning.contains("there are IBEX_FABRICS, "), "{warning}");
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
        assert_eq!(
            parsed(&tools.map(|name| (name, "x"))),
            Ok(Environment::default())
        );
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
