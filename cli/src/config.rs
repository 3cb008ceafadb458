//! `ibex config explain`: every setting of a node, of its channels and of its RDMA device, with its
//! value, where that comes from, and what changing it does.
//!
//! The settings are the rows of the library's table, and the texts are the builders' own
//! documentation: nothing is written twice, and a setting that is added there is shown here.

use ibex::{Node, NodeBuilder};
use serde::Serialize;

use crate::Failure;
use crate::options::ExplainOptions;
use crate::page::{Page, Tone, print_json};

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
    range: Option<&'static str>,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Variable {
    name: &'static str,
    values: &'static str,
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
    for (name, values) in NodeBuilder::settings()
        .iter()
        .filter_map(|row| row.variable)
    {
        if is_in_error(name) {
            mend += &format!("; {name} may be {values}");
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
    if let Some(range) = setting.range {
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
    let rows = NodeBuilder::settings().into_iter();
    rows.map(|row| {
        let variable = row.variable.map(|(name, values)| Variable { name, values });
        let set = environment
            .iter()
            .find(|(name, _)| variable.is_some_and(|known| known.name == *name));
        Setting {
            name: format!("{}::{}", row.builder, row.name),
            value: set.map_or_else(|| without_links(row.default), |(_, value)| value.clone()),
            source: match set {
                Some(_) => Source::Environment,
                None => Source::Default,
            },
            unit: row.unit,
            range: Some(row.range).filter(|range| !range.is_empty()),
            variable,
            meaning: paragraphs(row.documentation),
        }
    })
    .collect()
}

/// Returns the paragraphs of a documentation, without programs and links.
fn paragraphs(documentation: &str) -> Vec<String> {
    let mut paragraphs = vec![String::new()];
    let mut is_program = false;
    for line in documentation.lines() {
        let line = line.strip_prefix(' ').unwrap_or(line);
        is_program ^= line.starts_with("```");
        let last = paragraphs.last_mut().expect("there is one at least");
        match line {
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
            mend.contains("; IBEX_FABRICS may be fabrics (shm, tcp, verbs) with commas"),
            "{mend}"
        );
    }

    #[test]
    fn a_variable_overrides_its_settings_and_no_others() {
        let known = settings(&[]);
        let variables = known.iter().filter_map(|setting| setting.variable);
        assert!(variables.clone().any(|known| known.name == "IBEX_FABRICS"));
        for Variable { name, .. } in variables {
            for setting in settings(&[(name, "as set".to_owned())]) {
                let source = match setting.variable {
                    Some(variable) if variable.name == name => Source::Environment,
                    _ => Source::Default,
                };
                assert_eq!(setting.source, source, "{name}: {setting:?}");
                let is_set = setting.value == "as set";
                assert_eq!(is_set, source == Source::Environment, "{setting:?}");
            }
        }
    }
}
