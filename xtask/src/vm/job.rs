//! The input of a guest: two shell scripts, one with settings and one with the command.

use std::path::Path;

use crate::vm::options::Topology;

/// A folder of this machine that the guest mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// The tag by which the guest mounts it.
    pub(crate) tag: String,
    /// The path on this machine.
    pub(crate) here: String,
    /// The path in the guest.
    pub(crate) there: String,
}

/// Returns the settings that `vm/init` and `vm/guest` read.
pub(crate) fn settings(
    topology: Topology,
    guest_number: u32,
    has_our_root: bool,
    shares: &[Share],
) -> String {
    let own_root = if has_our_root { "yes" } else { "" };
    let mut text = format!(
        "topology={}\nnumber={guest_number}\nown_root={own_root}\neach_share() {{\n\t:\n",
        topology.name()
    );
    for share in shares {
        text += &format!("\t\"$1\" {} {}\n", quoted(&share.tag), quoted(&share.there));
    }
    text += "}\n";
    text
}

/// Returns the script of the command, in this folder and with these variables.
pub(crate) fn script(
    command: &[String],
    folder: &Path,
    variables: impl IntoIterator<Item = (String, String)>,
) -> String {
    let mut text = String::new();
    for (name, value) in variables {
        text += &format!("export {name}={}\n", quoted(&value));
    }
    text += &format!("cd {} || exit 126\n", quoted(&folder.to_string_lossy()));
    text += "exec --";
    for word in command {
        text += &format!(" {}", quoted(word));
    }
    text += "\n";
    text
}

/// Returns whether the guest's command sees a variable of this process: those about this library
/// except about guests, and those that Rust programs read.
pub(crate) fn is_passed_on(name: &str) -> bool {
    let is_name = |rest: &str| rest.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let is_ours = |rest: &str| is_name(rest) && !rest.starts_with("VM_");
    name.strip_prefix("IBEX_").is_some_and(is_ours) || RUST_VARIABLES.contains(&name)
}

/// Quotes a word for the shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

const RUST_VARIABLES: &[&str] = &[
    "RUST_BACKTRACE",
    "RUST_LOG",
    "RUST_MIN_STACK",
    "RUST_TEST_THREADS",
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn every_word_reaches_the_program_as_it_is() {
        let words = ["printf", "<%s>", "it's", "a b", "$HOME", "`x`\n;", "", "-n"];
        let command = words.map(String::from);
        let value = "1 '2' \"3\"".to_string();
        let script = script(&command, Path::new("/"), [("IBEX_X".into(), value)]);
        let output = Command::new("bash").arg("-c").arg(script).output().unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        assert_eq!(printed, "<it's><a b><$HOME><`x`\n;><><-n>");
    }

    #[test]
    fn the_settings_name_each_share() {
        let share = |tag: &str, there: &str| Share {
            tag: tag.into(),
            here: "/somewhere".into(),
            there: there.into(),
        };
        let shares = [share("share0", "/repository's"), share("share1", "/target")];
        let mut script = settings(Topology::Pair, 1, true, &shares);
        script +=
            "show() { echo \"$1 at $2\"; }\neach_share show\necho $topology $number $own_root";
        let output = Command::new("sh").arg("-c").arg(script).output().unwrap();
        assert_eq!(
            String::from_utf8(output.stdout).unwrap(),
            "share0 at /repository's\nshare1 at /target\npair 1 yes\n"
        );
    }

    #[test]
    fn only_variables_of_ours_and_rusts_are_passed_on() {
        let names = [
            "IBEX_TEST_DEVICE",
            "RUST_BACKTRACE",
            "IBEX_VM_CACHE",
            "IBEX_X()",
            "RUST_RECURSION_COUNT",
            "PATH",
        ];
        let passed = names.into_iter().filter(|name| is_passed_on(name));
        assert_eq!(
            passed.collect::<Vec<_>>(),
            ["IBEX_TEST_DEVICE", "RUST_BACKTRACE"]
        );
    }
}
