//! The words of the published crates, in the files that their roots lead to, without comments and
//! what is for tests alone.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::failure::Failure;

/// A file.
pub(super) struct Source {
    /// Relative to the root.
    pub(super) path: String,
    /// The crate's folder, and the modules that lead to the file.
    pub(super) place: Vec<String>,
    pub(super) words: Vec<Word>,
    /// The number of lines, with comments.
    pub(super) lines: usize,
    /// The lines with code, from 1, each with the column behind its last token.
    pub(super) code: BTreeMap<usize, usize>,
    text: Vec<String>,
}

/// A token; a group is the tokens between its delimiters.
pub(super) struct Word {
    pub(super) text: String,
    pub(super) line: usize,
    /// The line on which the innermost statement around it begins.
    statement: usize,
}

impl Source {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or is not Rust.
    pub(super) fn read(root: &Path, path: &str, place: Vec<String>) -> Result<Self, Failure> {
        let fails = |error| Failure::new(format!("{path}: {error}"));
        let text = fs::read_to_string(root.join(path)).map_err(|error| fails(error.to_string()))?;
        Self::new(path, &text, place).map_err(|error| fails(error.to_string()))
    }

    pub(super) fn new(
        path: &str,
        text: &str,
        place: Vec<String>,
    ) -> Result<Self, proc_macro2::LexError> {
        let tokens = text.parse()?;
        let text: Vec<_> = text.lines().map(str::to_owned).collect();
        let mut source = Self {
            path: path.to_owned(),
            place,
            words: Vec::new(),
            lines: text.len(),
            code: BTreeMap::new(),
            text,
        };
        source.walk(tokens, 1, true);
        Ok(source)
    }

    fn walk(&mut self, tokens: TokenStream, around: usize, is_block: bool) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let mut at = 0;
        let mut statement = None;
        while let Some(token) = tokens.get(at) {
            let (start, end) = (token.span().start(), token.span().end());
            let first = *statement.get_or_insert(start.line);
            if is(token, '#') {
                let is_inner = tokens.get(at + 1).is_some_and(|next| is(next, '!'));
                let attribute = tokens.get(at + 1 + usize::from(is_inner));
                if attribute_has(attribute, "doc", |_| true) {
                    at += 2 + usize::from(is_inner);
                    statement = statement.filter(|line| *line != start.line);
                    continue;
                }
                if attribute_has(attribute, "cfg", needs_tests) {
                    at += 1 + tokens[at..]
                        .iter()
                        .position(ends_item)
                        .unwrap_or(tokens.len());
                    let last = tokens.get(at - 1).or(tokens.last());
                    let last = last.map_or(end.line, |token| token.span().end().line);
                    self.lines -= last + 1 - first;
                    statement = None;
                    continue;
                }
            }
            let statement_here = if is_block { first } else { around };
            let note = |source: &mut Self, text: String, line| {
                let statement = statement_here;
                source.words.push(Word {
                    text,
                    line,
                    statement,
                });
            };
            if let TokenTree::Group(group) = token {
                let [open, close] = match group.delimiter() {
                    Delimiter::Parenthesis => ["(", ")"],
                    Delimiter::Brace => ["{", "}"],
                    Delimiter::Bracket => ["[", "]"],
                    Delimiter::None => ["", ""],
                };
                note(self, open.to_owned(), start.line);
                self.cover(start.line, start.column + 1);
                let is_block = group.delimiter() == Delimiter::Brace;
                self.walk(group.stream(), statement_here, is_block);
                note(self, close.to_owned(), end.line);
            } else {
                note(self, token.to_string(), start.line);
                (start.line..end.line).for_each(|line| self.cover(line, usize::MAX));
            }
            self.cover(end.line, end.column);
            if ends_item(token) {
                statement = None;
            }
            at += 1;
        }
    }

    fn cover(&mut self, line: usize, column: usize) {
        let behind = self.code.entry(line).or_default();
        *behind = (*behind).max(column);
    }

    /// Returns the comments from directly above a word's statement to the end of the word's line.
    pub(super) fn comments(&self, word: &Word) -> String {
        let is_comment =
            |line: &usize| !self.code.contains_key(line) && !self.text[line - 1].trim().is_empty();
        let above = (1..word.statement).rev().take_while(is_comment).last();
        let lines = above.unwrap_or(word.statement)..=word.line;
        let comments = lines.map(|line| {
            let behind = self.code.get(&line).copied().unwrap_or_default();
            self.text[line - 1].chars().skip(behind).chain(['\n'])
        });
        comments.flatten().collect()
    }
}

fn is(token: &TokenTree, letter: char) -> bool {
    matches!(token, TokenTree::Punct(one) if one.as_char() == letter)
}

/// Returns whether an item, a statement or an element of a list ends with a token.
fn ends_item(token: &TokenTree) -> bool {
    let is_block = matches!(token, TokenTree::Group(one) if one.delimiter() == Delimiter::Brace);
    is_block || is(token, ';') || is(token, ',')
}

/// Returns whether the brackets of an attribute hold this name, and behind it what is asked for.
fn attribute_has(group: Option<&TokenTree>, name: &str, has: fn(&[TokenTree]) -> bool) -> bool {
    let Some(TokenTree::Group(group)) = group else {
        return false;
    };
    let tokens: Vec<_> = group.stream().into_iter().collect();
    tokens
        .first()
        .is_some_and(|first| first.to_string() == name)
        && has(&tokens[1..])
}

/// Returns whether all alternatives of a condition, `(..)`, are in builds of tests alone.
fn needs_tests(condition: &[TokenTree]) -> bool {
    let [TokenTree::Group(group)] = condition else {
        return false;
    };
    let tokens: Vec<_> = group.stream().into_iter().collect();
    let parts = tokens
        .split(|token| is(token, ','))
        .filter(|part| !part.is_empty());
    parts
        .into_iter()
        .all(|part| match &part[0].to_string()[..] {
            "test" => true,
            "any" => needs_tests(&part[1..]),
            "all" => part[1..].iter().any(|group| match group {
                TokenTree::Group(group) => {
                    let tokens: Vec<_> = group.stream().into_iter().collect();
                    tokens.iter().any(|token| token.to_string() == "test")
                }
                _ => false,
            }),
            "feature" => INSTRUMENTS.contains(&&part[2].to_string()[..]),
            _ => false,
        })
}

/// The features by which tests get a device of memory, and look into private state.
const INSTRUMENTS: [&str; 3] = ["\"fake\"", "\"fake-device\"", "\"probe\""];
