//! What is counted in the words of all files.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::source::{Source, Word};
use crate::failure::Failure;
use crate::workspace;

/// What was found.
#[derive(Default)]
pub(super) struct Census {
    /// Lines with code of each crate, by its folder.
    pub(super) code: BTreeMap<String, usize>,
    /// Lines with code of each file.
    files: BTreeMap<String, usize>,
    /// Lines with comments.
    pub(super) lines: usize,
    /// Atomic orderings stronger than `Relaxed` whose comment names no partner.
    pub(super) unpaired: Vec<String>,
    /// Questions which fabric carries a session's data, outside the files that answer it.
    pub(super) questions: Vec<String>,
    /// Types and traits, each behind its crate and modules.
    pub(super) types: Vec<(Vec<String>, String)>,
    /// Those of them outside the twins `absent*.rs`, each once where two of a module are behind `cfg`.
    named: BTreeSet<(Vec<String>, String)>,
    /// The places and types of the functions of inherent `impl`s.
    methods: Vec<(Vec<String>, String)>,
    traits: Vec<String>,
    /// The trait of each implementation.
    implemented: Vec<String>,
}

/// What a brace opens.
enum Block {
    Module(String),
    Inherent(String),
    Other,
}

impl Census {
    /// Counts the published crates of the workspace at `root`.
    pub(super) fn of(root: &Path) -> Result<Self, Failure> {
        let mut census = Self::default();
        for folder in workspace::published(root)? {
            let entry = Path::new(&folder).join("src/lib.rs").display().to_string();
            let mut files = vec![(entry, vec![folder])];
            while let Some((path, place)) = files.pop() {
                files.extend(census.take_in(root, &Source::read(root, &path, place)?));
            }
        }
        Ok(census)
    }

    /// Counts a file. Returns those of the modules that it declares, with their places.
    pub(super) fn take_in(&mut self, root: &Path, source: &Source) -> Vec<(String, Vec<String>)> {
        *self.code.entry(source.place[0].clone()).or_default() += source.code.len();
        *self.files.entry(source.path.clone()).or_default() += source.code.len();
        self.lines += source.lines;
        let words = &source.words;
        let text = |at: usize| words.get(at).map_or("", |word| &word.text[..]);
        let file = Path::new(&source.path).file_name();
        let is_twin = file.is_some_and(|file| file.to_string_lossy().starts_with("absent"));
        let (mut files, mut path) = (Vec::new(), None);
        let (mut blocks, mut next) = (Vec::new(), Block::Other);
        for (at, word) in words.iter().enumerate() {
            self.look_at(source, at);
            let is_item = blocks.iter().all(|block| matches!(block, Block::Module(_)));
            let mut place = source.place.clone();
            place.extend(blocks.iter().filter_map(|block| match block {
                Block::Module(name) => Some(name.clone()),
                _ => None,
            }));
            let name = text(at + 1).to_owned();
            match &word.text[..] {
                "{" => blocks.push(std::mem::replace(&mut next, Block::Other)),
                "}" => drop(blocks.pop()),
                "path" if name == "=" => path = Some(text(at + 2).trim_matches('"')),
                "mod" if is_item && text(at + 2) == "{" => next = Block::Module(name),
                "mod" if is_item => {
                    place.push(name);
                    files.push((file_of(root, source, &place, path.take()), place));
                }
                "struct" | "enum" | "union" | "type" | "trait" if is_item && is_name(&name) => {
                    if word.text == "trait" {
                        self.traits.push(name.clone());
                    }
                    if !is_twin {
                        self.named.insert((place.clone(), name.clone()));
                    }
                    self.types.push((place, name));
                }
                "impl" => match (implementation(&words[at + 1..]), is_item) {
                    ((Some(name), _), _) => self.implemented.push(name),
                    ((_, Some(name)), true) => next = Block::Inherent(name),
                    _ => {}
                },
                "fn" if is_name(&name) => {
                    if let Some(Block::Inherent(name)) = blocks.last() {
                        self.methods.push((place, name.clone()));
                    }
                }
                _ => {}
            }
        }
        files
    }

    /// Looks for orderings and questions.
    fn look_at(&mut self, source: &Source, at: usize) {
        let words = &source.words;
        let text = |back: usize| at.checked_sub(back).map_or("", |at| &words[at].text[..]);
        let place = || format!("{}:{}", source.path, words[at].line);
        let is_strong = STRONG.contains(&text(0)) && text(1) == ":" && text(3) == "Ordering";
        if is_strong && !source.comments(&words[at]).contains("pairs with") {
            self.unpaired.push(place());
        }
        let is_asked = text(1) == "." && QUESTIONS.contains(&text(0));
        let is_variant = text(0).starts_with(char::is_uppercase);
        let is_compared = is_variant && text(1) == ":" && PATHS.contains(&text(3));
        if (is_asked || is_compared) && !source.path.ends_with("_path.rs") {
            self.questions.push(place());
        }
    }

    /// Returns the lines with code of a folder, which ends with `/`, and of its module's file beside it.
    pub(super) fn code_in(&self, folder: &str) -> usize {
        let beside = format!("{}.rs", folder.trim_end_matches('/'));
        let files = self.files.iter();
        let files = files.filter(|(path, _)| path.starts_with(folder) || **path == beside);
        files.map(|(_, lines)| lines).sum()
    }

    /// Returns the number of functions of each type that has some, the most first.
    pub(super) fn methods(&self) -> Vec<(usize, &str)> {
        let mut counts = BTreeMap::<usize, usize>::new();
        for (place, name) in &self.methods {
            let types = self.types.iter().enumerate();
            let types = types.filter(|(_, one)| one.0[0] == place[0] && one.1 == *name);
            // Of several types of that name, the one that is declared closest.
            let shared = |one: &[String]| one.iter().zip(place).take_while(|(a, b)| a == b).count();
            let closest = types.max_by_key(|(_, one)| (shared(&one.0), Reverse(one.0.len())));
            if let Some((at, _)) = closest {
                *counts.entry(at).or_default() += 1;
            }
        }
        let mut counts: Vec<_> = counts
            .iter()
            .map(|(at, n)| (*n, &self.types[*at].1[..]))
            .collect();
        counts.sort_unstable_by_key(|count| Reverse(*count));
        counts
    }

    /// Returns the names that several types have, but those that each module may have.
    pub(super) fn shared_names(&self) -> Vec<String> {
        let mut counts = BTreeMap::<&str, usize>::new();
        self.named
            .iter()
            .for_each(|(_, name)| *counts.entry(name).or_default() += 1);
        let is_shared = |(name, count): &(&str, usize)| *count > 1 && !ANYWHERE.contains(name);
        let shared = counts.into_iter().filter(is_shared);
        shared
            .map(|(name, count)| format!("{name}: {count}"))
            .collect()
    }

    /// Returns the traits that are implemented once.
    pub(super) fn lone_traits(&self) -> Vec<String> {
        let count = |name: &String| self.implemented.iter().filter(|one| *one == name).count();
        let lone: BTreeSet<_> = self.traits.iter().filter(|name| count(name) == 1).collect();
        lone.into_iter().cloned().collect()
    }
}

/// Returns the file of the module at `place` that a file declares.
fn file_of(root: &Path, source: &Source, place: &[String], path: Option<&str>) -> String {
    let declaring = Path::new(&source.path);
    let mut below = declaring.with_file_name("");
    if let Some(path) = path {
        return below.join(path).display().to_string();
    }
    if !declaring.ends_with("lib.rs") && !declaring.ends_with("mod.rs") {
        below = declaring.with_extension("");
    }
    below.extend(&place[source.place.len()..]);
    let file = below.with_extension("rs");
    let exists = root.join(&file).exists();
    let file = if exists { file } else { below.join("mod.rs") };
    file.display().to_string()
}

/// Returns the trait of the `impl` before these words, or the type without one.
fn implementation(words: &[Word]) -> (Option<String>, Option<String>) {
    let (mut depth, mut before, mut last) = (0, "", None);
    for word in words.iter().map(|word| &word.text[..]) {
        match word {
            "<" => depth += 1,
            ">" if before != "-" => depth -= 1,
            _ if depth > 0 => {}
            "for" => return (last, None),
            "{" | "where" => return (None, last),
            "}" | ";" | "(" | ")" | "," | "=" => break,
            name if is_name(name) => last = Some(name.to_owned()),
            _ => {}
        }
        before = word;
    }
    (None, None)
}

fn is_name(word: &str) -> bool {
    word.starts_with(|letter: char| letter.is_alphabetic() || letter == '_')
}

/// The atomic orderings that have a partner.
const STRONG: [&str; 4] = ["Acquire", "Release", "AcqRel", "SeqCst"];
/// The questions which fabric carries data, by the names that they have or had. A question of a new
/// name is added here.
const QUESTIONS: [&str; 5] = [
    "shares_memory",
    "data_in_band",
    "carries_data",
    "has_device",
    "is_over_pair",
];
/// The types whose variants are the answers.
const PATHS: [&str; 4] = ["DataPath", "ReceivePath", "SendPath", "SessionPath"];
/// The names that types of several modules may have.
const ANYWHERE: [&str; 3] = ["Builder", "Error", "State"];
