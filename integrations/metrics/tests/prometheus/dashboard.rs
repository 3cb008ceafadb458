//! The dashboard, as Grafana reads it.

use std::collections::BTreeSet;

use ibex_metrics::{Kind, TABLE};
use serde_json::Value;

/// `grafana.json`.
pub(crate) struct Dashboard(Value);

impl Dashboard {
    pub(crate) fn load() -> Self {
        let text = include_str!("../../grafana.json");
        Self(serde_json::from_str(text).expect("it is JSON"))
    }

    fn panels(&self) -> impl Iterator<Item = &Value> {
        self.0["panels"].as_array().expect("panels").iter()
    }

    /// Returns the expressions of all panels, and those of the variables.
    pub(crate) fn questions(&self) -> Vec<String> {
        let targets = self.panels().flat_map(|panel| panel["targets"].as_array());
        let expressions = targets.flatten().map(|target| {
            let expression = target["expr"].as_str();
            expression.expect("an expression").to_owned()
        });
        let variables = self.0["templating"]["list"].as_array();
        let variables = variables.expect("variables").iter().filter_map(|variable| {
            let query = variable["query"]["query"].as_str()?;
            let arguments = query.strip_prefix("label_values(")?.strip_suffix(')')?;
            let (metric, label) = arguments.split_once(", ").expect("a metric and a label");
            Some(format!("group by ({label}) ({metric})"))
        });
        expressions.chain(variables).collect()
    }
}

/// Returns an expression as Grafana sends it to Prometheus, with all nodes chosen.
pub(crate) fn asked(expression: &str) -> String {
    expression
        .replace("$__rate_interval", "30s")
        .replace("$node", ".*")
}

#[test]
fn the_dashboard_is_one_that_grafana_loads() {
    let dashboard = Dashboard::load();
    let all = &dashboard.0;
    assert!(all["title"].is_string() && all["uid"].is_string());
    assert!(
        all["schemaVersion"].as_u64() >= Some(36),
        "of Grafana 9 or newer"
    );
    assert_eq!(
        all.get("id"),
        None,
        "an imported dashboard gets its number there"
    );
    let mut ids = BTreeSet::new();
    let mut taken = BTreeSet::new();
    for panel in dashboard.panels() {
        let title = panel["title"].as_str().expect("a title");
        assert!(
            ids.insert(panel["id"].as_u64().expect("a number")),
            "{title}"
        );
        let at = |field: &str| panel["gridPos"][field].as_u64().expect("a place");
        assert!(at("x") + at("w") <= 24, "{title} is beside the grid");
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(taken.insert((x, y)), "{title} is on another panel");
            }
        }
        let is_row = panel["type"] == "row";
        assert_eq!(is_row, panel["targets"].is_null(), "{title}");
        let source = &panel["datasource"]["uid"];
        assert!(is_row || source == "${datasource}", "{title}: {source}");
    }
}

#[test]
fn every_question_is_about_metrics_of_the_table() {
    let names = TABLE.iter().flat_map(|metric| match metric.kind {
        Kind::Histogram => {
            let suffixes = ["_bucket", "_count", "_sum"];
            suffixes
                .map(|suffix| format!("{}{suffix}", metric.name))
                .to_vec()
        }
        _ => vec![metric.name.to_owned()],
    });
    let names: BTreeSet<_> = names.collect();
    for question in Dashboard::load().questions() {
        let words = question.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let ours = words.filter(|word| word.starts_with("ibex_") || word.starts_with("rpc_"));
        let ours = ours.filter(|word| *word != "rpc_method" && *word != "error_type");
        let ours: Vec<_> = ours.collect();
        assert!(!ours.is_empty(), "{question}");
        for word in ours {
            assert!(names.contains(word), "{word} of {question}");
        }
    }
}
