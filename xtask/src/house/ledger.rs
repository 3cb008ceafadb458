//! The counts that are held: `xtask/house.txt`.

use std::cmp::Ordering;
use std::fmt;

use super::Count;
use crate::failure::Failure;

/// The file, relative to the root.
pub(super) const FILE: &str = "xtask/house.txt";

/// The lines of the file: a count's name, its value at commit 826ba384, the most that it may be, and
/// the aim; `-` for none. Behind them, the raises and what a user got for each.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ledger(Vec<[String; 4]>, Vec<String>);

impl Ledger {
    /// Reads the file's text.
    ///
    /// # Errors
    /// A line is not a name and three words.
    pub(super) fn parse(text: &str) -> Result<Self, Failure> {
        let lines = text.lines().skip_while(|line| !line.starts_with("name "));
        let (raises, lines): (Vec<_>, Vec<_>) = lines
            .filter(|line| !line.is_empty())
            .partition(|line| line.starts_with(RAISED));
        let entries = lines.into_iter().skip(1).map(|line| {
            let mut words = line.rsplit(' ').filter(|word| !word.is_empty());
            let cells = [words.next(), words.next(), words.next()];
            let name: Vec<_> = words.collect();
            let name = name.into_iter().rev().collect::<Vec<_>>().join(" ");
            let [Some(aim), Some(most), Some(before)] = cells else {
                return Err(Failure::new(format!(
                    "{FILE}: `{line}` has no three values"
                )));
            };
            Ok([name, before.to_owned(), most.to_owned(), aim.to_owned()])
        });
        let raises = raises.into_iter().map(str::to_owned).collect();
        Ok(Self(entries.collect::<Result<_, _>>()?, raises))
    }

    /// Returns the value before, the most and the aim of a count.
    fn held(&self, count: &Count) -> [&str; 3] {
        let entry = self.0.iter().find(|entry| entry[0] == count.name);
        entry.map_or(["-"; 3], |[_, before, most, aim]| [before, most, aim])
    }

    /// Returns the counts beside what is held.
    pub(super) fn table(&self, counts: &[Count]) -> String {
        let mut text = row("", ["826ba384", "held", "now", "aim"]);
        for count in counts {
            let [before, most, aim] = self.held(count);
            text += &row(&count.name, [before, most, &count.value.to_string(), aim]);
        }
        text
    }

    /// Compares counts with what is held. Prints those that are lower.
    ///
    /// # Errors
    /// A count has risen, or is not held.
    pub(super) fn check(&self, counts: &[Count]) -> Result<(), Failure> {
        let mut risen = String::new();
        let mut fallen = String::new();
        for count in counts {
            let Count { name, value, .. } = count;
            let [_, most, _] = self.held(count);
            // A count that is not held may be nothing.
            match value.cmp(&most.parse().unwrap_or(0)) {
                Ordering::Less => fallen += &format!("\n  {name}: {value}"),
                Ordering::Equal => {}
                Ordering::Greater => risen += &format!("\n  {name}: {value}, at most {most}"),
            }
        }
        if !fallen.is_empty() {
            println!("hold the lower values, by `cargo xtask house --write`:{fallen}");
        }
        match risen.is_empty() {
            true => Ok(()),
            false => Err(Failure::new(format!(
                "these counts have risen (`cargo xtask house --list` shows what they count):{risen}\n\
                 Take something away. If a user got something that is worth it, raise the value in\n\
                 {FILE} by hand, with a line `{RAISED}NAME, FROM -> TO: what a user got for it`."
            ))),
        }
    }

    /// Holds the values that are lower from now on, and those of new counts.
    pub(super) fn take_in(&mut self, counts: &[Count]) {
        let entries = counts.iter().map(|count| {
            let [before, most, aim] = self.held(count).map(str::to_owned);
            let most = most
                .parse()
                .map_or(count.value, |most| count.value.min(most));
            [count.name.clone(), before, most.to_string(), aim]
        });
        self.0 = entries.collect();
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HEAD)?;
        f.write_str(&row("name", ["826ba384", "most", "aim"]))?;
        let mut entries = self.0.iter();
        entries.try_for_each(|[name, values @ ..]| {
            f.write_str(&row(name, values.each_ref().map(|value| &value[..])))
        })?;
        let mut raises = self.1.iter();
        raises.try_for_each(|raise| writeln!(f, "{raise}"))
    }
}

fn row<const N: usize>(name: &str, cells: [&str; N]) -> String {
    let cells: String = cells.iter().map(|cell| format!(" {cell:>9}")).collect();
    format!("{name:38}{cells}\n")
}

/// The beginning of a line that explains a raise.
const RAISED: &str = "raised ";

const HEAD: &str = "\
# Counts over the published crates, without tests and the instruments of tests: their values at
# commit 826ba384, the most that each may be, and the aim. `cargo xtask house` counts, `--list` shows
# what the counts consist of, and `--write` writes lower values here. A raise is made by hand, with a
# line behind the table that says what a user got for it. Code is lines without
# comments. An ordering names its pair if the comment at its statement says `pairs with`; `Relaxed`
# has none. A fabric is asked for by `is_over_pair`, `DataPath` and the like outside files
# `*_path.rs`. A name may serve several types if it is `Builder`, `Error` or `State`; a type of
# another build, behind `cfg` in the same module or in a file `absent*.rs`, has its twin's name.

";
