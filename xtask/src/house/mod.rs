//! `cargo xtask house`: counts over the published crates, which must not rise.

mod census;
mod ledger;
mod source;
mod tree;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use crate::failure::Failure;
use crate::watchdog::Watchdog;
use crate::workspace;
use census::Census;
use ledger::Ledger;

/// A count.
struct Count {
    name: String,
    value: usize,
    /// What it counts, for those who want to lower it; empty for lines.
    places: Vec<String>,
}

/// Runs the stage `house`.
pub(crate) fn stage(_: &Watchdog) -> Result<(), Failure> {
    run(&[]).map(drop)
}

/// Runs the command.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, Failure> {
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let (is_list, is_write, root) = match arguments[..] {
        [] => (false, false, None),
        ["--list"] => (true, false, None),
        ["--write"] => (false, true, None),
        [folder] if !folder.starts_with('-') => (false, false, Some(Path::new(folder))),
        _ => {
            return Err(Failure::new(
                "it takes --list, --write, or the folder of a clone",
            ));
        }
    };
    let counted = root.unwrap_or(workspace::root());
    let census = Census::of(counted)?;
    let counts = counts(counted, &census)?;
    let file = workspace::root().join(ledger::FILE);
    let fails = |error| Failure::new(format!("{}: {error}", ledger::FILE));
    let mut ledger = Ledger::parse(&fs::read_to_string(&file).map_err(fails)?)?;
    for count in counts
        .iter()
        .filter(|count| is_list && !count.places.is_empty())
    {
        println!("{}:\n  {}\n", count.name, count.places.join("\n  "));
    }
    print!("{}", ledger.table(&counts));
    if is_write {
        ledger.take_in(&counts);
        fs::write(&file, ledger.to_string()).map_err(fails)?;
        tree::write(&census)?;
    } else if root.is_none() {
        ledger.check(&counts)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn counts(root: &Path, census: &Census) -> Result<Vec<Count>, Failure> {
    let plain = |name: &str, value| Count {
        name: name.to_owned(),
        value,
        places: Vec::new(),
    };
    let listed = |name: &str, places: Vec<String>| Count {
        name: name.to_owned(),
        value: places.len(),
        places,
    };
    let mut counts = vec![
        plain("lines", census.lines),
        plain("lines of code", census.code.values().sum()),
    ];
    for (folder, lines) in &census.code {
        let folder = Path::new(folder).join("src");
        counts.push(plain(
            &format!("lines of code in {}", folder.display()),
            *lines,
        ));
    }
    let methods = census.methods();
    let most_methods = methods.first().map_or(0, |(count, _)| *count);
    let large = methods.iter().filter(|(count, _)| *count > METHODS);
    let large = large.map(|(count, name)| format!("{name}: {count}"));
    let mut asking: Vec<_> = census
        .questions
        .iter()
        .filter_map(|place| place.split(':').next())
        .collect();
    asking.dedup();
    counts.extend([
        plain("types and traits", census.types.len()),
        plain("methods of the largest type", most_methods),
        listed("types of more than 60 methods", large.collect()),
        listed("files of more than 500 lines", long_files(root)?),
        listed("orderings that name no pair", census.unpaired.clone()),
        plain("files that ask which fabric", asking.len()),
        listed("questions which fabric", census.questions.clone()),
        listed("names of several types", census.shared_names()),
        listed("traits of one implementor", census.lone_traits()),
    ]);
    Ok(counts)
}

/// Returns the files of the published crates with too many lines, those of tests too.
fn long_files(root: &Path) -> Result<Vec<String>, Failure> {
    let mut long = Vec::new();
    let folders = workspace::published(root)?.into_iter();
    let mut paths: Vec<_> = folders
        .map(|folder| root.join(folder).join("src"))
        .collect();
    while let Some(path) = paths.pop() {
        if let Ok(entries) = fs::read_dir(&path) {
            paths.extend(entries.flatten().map(|entry| entry.path()));
        } else if let Ok(text) = fs::read_to_string(&path)
            && text.lines().count() > FILE_LINES
        {
            let path = path.strip_prefix(root).unwrap_or(&path).display();
            long.push(format!("{path}: {}", text.lines().count()));
        }
    }
    long.sort_unstable();
    Ok(long)
}

/// The most lines of a file, and the most methods of a type.
const FILE_LINES: usize = 500;
const METHODS: usize = 60;

#[cfg(test)]
mod tests {
    use super::source::Source;
    use super::*;

    /// Strings, comments, and items for tests look like what is counted.
    const SOURCE: &str = r##"//! Documentation.

/// More of it.
pub struct Ring {
    text: &'static str, // Ordering::Release
}

impl Ring {
    fn one(&self) {
        /* a block */
        let _ = "
            shares_memory
        ";
    }

    #[cfg(all(test, feature = "verbs"))]
    fn two(&self) {
        self.shares_memory();
    }
}

pub mod inner {
    pub struct Ring;
    impl<T> From<T> for Ring {}

    impl Ring {
        fn three(&self) {
            // FIRST, pairs with `four`.
            self.flag
                .store(true, Ordering::Release);
            self.flag.store(true, Ordering::SeqCst); // pairs with `four`
            let text = "pairs with"; self.flag.load(Ordering::Acquire);
            self.flag.load(Ordering::Relaxed);
            if self.session.shares_memory() || path == DataPath::Frames {}
        }
    }
}

trait Alone {}
impl Alone for Ring {}

#[cfg(any(test, feature = "fake"))]
struct OfTests;

#[cfg(test)]
mod tests {}
"##;

    #[test]
    fn strings_comments_and_tests_are_told_from_code() {
        let source = Source::new("src/ring.rs", SOURCE, vec![String::new()]).expect("Rust");
        assert_eq!(source.lines, SOURCE.lines().count() - 8);
        let mut census = Census::default();
        assert!(census.take_in(Path::new(""), &source).is_empty());
        assert_eq!(census.code.values().sum::<usize>(), 26);
        assert_eq!(census.types.len(), 3, "{:?}", census.types);
        assert_eq!(census.unpaired, ["src/ring.rs:32"]);
        assert_eq!(census.questions, ["src/ring.rs:34", "src/ring.rs:34"]);
        assert_eq!(census.shared_names(), ["Ring: 2"]);
        assert_eq!(census.lone_traits(), ["Alone"]);
        let methods = [(1, "Ring"), (1, "Ring")];
        assert_eq!(census.methods(), methods);
    }

    /// A build without a feature has other types of the same names.
    #[test]
    fn a_type_behind_a_condition_has_its_name_alone() {
        let mut census = Census::default();
        let mut take_in = |path, text, module: &str| {
            let place = vec![String::new(), module.to_owned()];
            let source = Source::new(path, text, place).expect("Rust");
            assert!(census.take_in(Path::new(""), &source).is_empty());
            census.shared_names()
        };
        let both = "#[cfg(unix)] type Port = u16; #[cfg(not(unix))] type Port = u32;";
        assert!(take_in("src/ports.rs", both, "ports").is_empty());
        assert!(take_in("src/absent_ports.rs", "struct Port;", "absent").is_empty());
        let shared = take_in("src/other.rs", "struct Port;", "other");
        assert_eq!(shared, ["Port: 2"]);
    }

    #[test]
    fn a_count_that_rises_is_refused() {
        let text = "# about\n\nname                before  most  aim\nlines of code           70    60   50\n";
        let mut ledger = Ledger::parse(text).expect("a ledger");
        let count = |value| {
            [Count {
                name: "lines of code".to_owned(),
                value,
                places: Vec::new(),
            }]
        };
        assert!(ledger.check(&count(60)).is_ok());
        assert!(ledger.check(&count(59)).is_ok());
        let failure = ledger
            .check(&count(61))
            .expect_err("it has risen")
            .to_string();
        assert!(
            failure.contains("lines of code: 61, at most 60"),
            "{failure}"
        );
        // To write the counts raises none: that is done by hand, with a line that says why.
        ledger.take_in(&count(61));
        assert!(ledger.check(&count(61)).is_err());
        ledger.take_in(&count(59));
        assert!(ledger.check(&count(60)).is_err());
        assert_eq!(Ledger::parse(&ledger.to_string()), Ok(ledger));
    }
}
