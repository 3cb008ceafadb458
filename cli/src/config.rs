//! `ibex config explain`: every setting of a node, of its channels and of its RDMA device, with its
//! value, where that comes from, and what changing it does.
//!
//! The settings are those of the library's builders, and the texts are the builders' own
//! documentation: nothing is written twice, and a setting that is added there is shown here.

use ibex::Node;
use serde::Serialize;

use crate::Failure;
use crate::options::ExplainOptions;
use crate::page::{Page, Tone, print_json};

/// The builders, and the files with their documentation.
const BUILDERS: &[(&str, &str)] = &[
    ("NodeBuilder", include_str!("../../src/node_builder.rs")),
    (
        "NodeBuilder",
        include_str!("../../src/node_builder/limits.rs"),
    ),
    (
        "ChannelBuilder",
        include_str!("../../src/channel_builder.rs"),
    ),
    ("RdmaSettings", include_str!("../../src/rdma/settings.rs")),
    ("Tuning", include_str!("../../src/rdma/tuning.rs")),
];

/// A setting.
#[derive(Debug, Serialize)]
struct Setting {
    /// The builder's method.
    name: String,
    value: String,
    source: Source,
    /// `bytes`, `time`, or nothing for a plain number or name.
    unit: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    range: Option<String>,
    /// The variable of the environment that overrides the setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    variable: Option<Variable>,
    /// What the setting does, and what changing it does, by paragraphs.
    meaning: Vec<String>,
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Source {
    Default,
    Environment,
}

/// A variable of the environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Variable {
    name: String,
    values: String,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Output<'a> {
    settings: &'a [Setting],
    /// Variables that have no effect, and why.
    warnings: &'a [String],
}

/// Runs the subcommand.
pub(crate) fn run(options: &ExplainOptions) -> Result<u8, Failure> {
    let node = node_of_environment().map_err(|obstacle| Failure {
        text: obstacle.seen,
        code: 3,
    })?;
    let mut settings = settings(node.environment());
    settings.retain(|setting| {
        let mut words = options.words.iter();
        words.all(|word| setting.name.to_lowercase().contains(&word.to_lowercase()))
    });
    if settings.is_empty() {
        return Err(Failure::usage(format!(
            "no setting's name has {}; `ibex config explain` shows all",
            options.words.join(" and ")
        )));
    }
    let warnings = node.environment_warnings();
    if options.json {
        let settings = &settings;
        print_json(&Output { settings, warnings })?;
        return Ok(0);
    }
    let mut page = Page::for_output();
    settings.iter().for_each(|setting| show(setting, &mut page));
    for warning in warnings {
        page.gap();
        page.row(0, "warning", 8, Tone::Warning, warning);
    }
    page.print()?;
    Ok(0)
}

/// Why no node can be made in this environment.
#[derive(Clone, Debug)]
pub(crate) struct Obstacle {
    /// What is wrong, with the variable and its value.
    pub(crate) seen: String,
    pub(crate) mend: String,
}

/// Makes a node without settings, so that only the environment can stand in its way.
pub(crate) fn node_of_environment() -> Result<Node, Obstacle> {
    let node = Node::builder().build();
    node.map_err(|error| {
        let set = std::env::vars_os().filter_map(|(name, value)| {
            let (name, value) = (
                name.into_string().ok()?,
                value.to_string_lossy().into_owned(),
            );
            Some((name, value))
        });
        let set: Vec<_> = set.filter(|(name, _)| name.starts_with("IBEX_")).collect();
        obstacle(&error.to_string(), &set)
    })
}

/// Says what an error has to do with these variables of the environment.
fn obstacle(error: &str, set: &[(String, String)]) -> Obstacle {
    let is_in_error = |name: &str| {
        let mut words = error.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
        words.any(|word| word == name)
    };
    let is_untold = |(name, value): &&(String, String)| {
        is_in_error(name) && !error.contains(&format!("\"{value}\""))
    };
    let wrong = set.iter().filter(is_untold);
    let wrong: Vec<_> = wrong
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let set = match wrong.is_empty() {
        true => String::new(),
        false => format!(" (set: {})", wrong.join(", ")),
    };
    let mut mend = "correct the variable or unset it where the program is started".to_owned();
    for (_, variable) in variables(BUILDERS[0].1) {
        if is_in_error(&variable.name) {
            mend += &format!("; {} may be {}", variable.name, variable.values);
        }
    }
    Obstacle {
        seen: format!("a node cannot be made with these variables: {error}{set}"),
        mend,
    }
}

fn show(setting: &Setting, page: &mut Page) {
    page.title(&setting.name);
    let (source, tone) = match (setting.source, &setting.variable) {
        (Source::Environment, Some(variable)) => (
            format!("from {} in the environment", variable.name),
            Tone::Good,
        ),
        _ => ("the default".to_owned(), Tone::Plain),
    };
    page.row(
        2,
        "value",
        10,
        tone,
        &format!("{} ({source})", setting.value),
    );
    if !setting.unit.is_empty() {
        page.row(2, "unit", 10, Tone::Plain, setting.unit);
    }
    if let Some(range) = &setting.range {
        page.row(2, "range", 10, Tone::Plain, range);
    }
    if let Some(variable) = &setting.variable {
        let text = format!("{}: {}", variable.name, variable.values);
        page.row(2, "variable", 10, Tone::Plain, &text);
    }
    for paragraph in &setting.meaning {
        page.text(2, paragraph);
    }
}

/// Returns all settings, given the variables that are in effect.
fn settings(environment: &[(&str, String)]) -> Vec<Setting> {
    let overrides = variables(BUILDERS[0].1);
    let mut settings = Vec::new();
    for (builder, source) in BUILDERS {
        for (method, parameters, documentation) in methods(source) {
            let Some(default) = sentence(&documentation, "Default: ") else {
                continue;
            };
            let name = format!("{builder}::{method}");
            let variable = overrides.iter().find(|(setting, _)| *setting == name);
            let variable = variable.map(|(_, variable)| variable.clone());
            let set = environment
                .iter()
                .find(|(name, _)| variable.as_ref().is_some_and(|known| known.name == *name));
            settings.push(Setting {
                value: set.map_or(default, |(_, value)| value.clone()),
                source: match set {
                    Some(_) => Source::Environment,
                    None => Source::Default,
                },
                unit: unit(&method, &parameters),
                range: sentence(&documentation, "Range: "),
                variable,
                meaning: documentation,
                name,
            });
        }
    }
    settings
}

/// Returns the public methods of a source file that change `self`: name, parameters, and the
/// paragraphs of the documentation.
fn methods(source: &str) -> Vec<(String, String, Vec<String>)> {
    let mut found = Vec::new();
    let mut lines: Vec<&str> = Vec::new();
    let mut rest = source.lines();
    while let Some(line) = rest.next() {
        let line = line.trim();
        if let Some(text) = line.strip_prefix("///") {
            lines.push(text.strip_prefix(' ').unwrap_or(text));
            continue;
        }
        if line.starts_with("#[") {
            continue;
        }
        let lines = std::mem::take(&mut lines);
        let Some((method, mut parameters)) = line
            .strip_prefix("pub fn ")
            .and_then(|line| line.split_once('('))
            .map(|(method, parameters)| (method, parameters.to_owned()))
        else {
            continue;
        };
        if parameters.is_empty() {
            parameters = rest.by_ref().take(2).collect::<Vec<_>>().concat();
        }
        let parameters = parameters.trim();
        if parameters.starts_with("mut self") || parameters.starts_with("self,") {
            found.push((method.to_owned(), parameters.to_owned(), paragraphs(&lines)));
        }
    }
    found
}

/// Returns the paragraphs of a documentation, without programs and links.
fn paragraphs(lines: &[&str]) -> Vec<String> {
    let mut paragraphs = vec![String::new()];
    let mut is_program = false;
    for line in lines {
        is_program ^= line.starts_with("```");
        let last = paragraphs.last_mut().expect("there is one at least");
        match *line {
            _ if is_program || line.starts_with("```") => {}
            "" if !last.is_empty() => paragraphs.push(String::new()),
            "" => {}
            item if item.starts_with("- ") && !last.is_empty() => {
                paragraphs.push(item.to_owned());
            }
            line => {
                if !last.is_empty() {
                    last.push(' ');
                }
                last.push_str(line.trim_start());
            }
        }
    }
    paragraphs.retain(|paragraph| !paragraph.is_empty());
    paragraphs.iter().map(|text| without_links(text)).collect()
}

/// Returns a text with the words of its links alone.
fn without_links(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once('[') {
        plain.push_str(before);
        let Some((words, after)) = link.split_once(']') else {
            plain.push('[');
            rest = link;
            continue;
        };
        plain.push_str(words);
        rest = match after
            .strip_prefix('(')
            .and_then(|after| after.split_once(')'))
        {
            Some((_, after)) => after,
            None => after,
        };
    }
    plain.push_str(rest);
    plain
}

/// Returns the sentence that begins with this word, without the word and the full stop.
fn sentence(paragraphs: &[String], word: &str) -> Option<String> {
    let text = paragraphs.iter().find_map(|text| text.split_once(word))?.1;
    // A full stop within a name or a number has no space behind it.
    let end = text.find(". ").unwrap_or(text.trim_end_matches('.').len());
    Some(text[..end].to_owned())
}

fn unit(method: &str, parameters: &str) -> &'static str {
    let parameters = parameters.split(')').next().unwrap_or(parameters);
    match parameters {
        _ if parameters.contains("Duration") => "time",
        _ if parameters.contains("bytes:") || method.ends_with("_bytes") => "bytes",
        _ => "",
    }
}

/// Returns the variables of the table in the documentation of `NodeBuilder`, each behind the
/// setting that it overrides.
fn variables(source: &str) -> Vec<(String, Variable)> {
    let rows = source.lines().filter_map(|line| {
        let row = line.trim().strip_prefix("/// | `IBEX_")?;
        let mut columns = row.split(" | ");
        let name = format!("IBEX_{}", columns.next()?.trim_end_matches('`'));
        let values = columns.next()?.replace('`', "");
        let overridden = columns.next()?;
        let setting = overridden.split('`').nth(1)?;
        let setting = match setting.contains("::") {
            true => setting.to_owned(),
            false => format!("NodeBuilder::{setting}"),
        };
        Some((setting, Variable { name, values }))
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_has_a_value_and_a_meaning() {
        let settings = settings(&[]);
        assert!(settings.len() > 40, "{}", settings.len());
        for setting in &settings {
            assert!(!setting.value.is_empty(), "{setting:?}");
            let text = setting.meaning.join(" ");
            assert!(!text.contains("](") && !text.contains("```"), "{setting:?}");
        }
        let linger = settings
            .iter()
            .find(|one| one.name == "NodeBuilder::linger");
        let linger = linger.expect("a setting with a time");
        assert_eq!((linger.unit, linger.source), ("time", Source::Default));
    }

    #[test]
    fn an_obstacle_names_variable_value_and_what_is_possible() {
        let set = [("IBEX_FABRIC", "tcp"), ("IBEX_RDMA_PORT", "2")];
        let set = set.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let Obstacle { seen, mend } = obstacle("IBEX_FABRIC: is IBEX_FABRICS meant?", &set);
        assert!(seen.ends_with("meant? (set: IBEX_FABRIC=tcp)"), "{seen}");
        assert!(
            mend.ends_with("; IBEX_FABRICS may be shm, tcp, verbs, separated by commas"),
            "{mend}"
        );
    }

    #[test]
    fn every_variable_overrides_a_setting() {
        let variables = variables(BUILDERS[0].1);
        assert_eq!(variables.len(), 8, "{variables:?}");
        let settings = settings(&[("IBEX_RDMA_PORT", "2".to_owned())]);
        for (name, variable) in variables {
            let setting = settings.iter().find(|setting| setting.name == name);
            let setting = setting.unwrap_or_else(|| panic!("{name} is no setting"));
            assert_eq!(setting.variable.as_ref(), Some(&variable));
            if variable.name == "IBEX_RDMA_PORT" {
                assert_eq!(
                    (setting.value.as_str(), setting.source),
                    ("2", Source::Environment)
                );
            }
        }
    }
}
