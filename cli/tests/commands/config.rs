//! `ibex config explain`.

use std::process::Command;

use serde_json::Value;

use crate::machine::{code, ibex, page};

#[test]
fn a_setting_has_its_value_unit_and_meaning() {
    let output = ibex(&["config", "explain", "node_credit"]);
    assert_eq!(code(&output), 0, "{output:?}");
    let page = page(&output);
    for text in [
        "NodeBuilder::node_credit_bytes",
        "the default)",
        "unit      bytes",
        "range     512 KiB to 1 TiB",
        "A higher value takes more memory",
    ] {
        assert!(page.contains(text), "{text}: {page}");
    }
    assert_eq!(code(&ibex(&["config", "explain", "no-such-setting"])), 2);
}

#[test]
fn a_variable_of_the_environment_is_the_source_of_its_setting() {
    let run = |name: &str, value: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ibex"));
        command
            .args(["config", "explain", "--json"])
            .env(name, value);
        command.output().expect("the command runs")
    };
    let output = run("IBEX_FABRICS", "tcp");
    let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let settings = all["settings"].as_array().expect("a list");
    let of = |name: &str| {
        let found = settings.iter().find(|setting| setting["name"] == name);
        found.unwrap_or_else(|| panic!("no {name}"))
    };
    let fabric = of("NodeBuilder::fabric");
    assert_eq!(
        (&fabric["value"], &fabric["source"]),
        (&"tcp".into(), &"environment".into())
    );
    assert_eq!(of("ChannelBuilder::window_bytes")["source"], "default");
    let output = run("IBEX_FABRICS", "ethernet");
    assert_eq!(code(&output), 3, "{output:?}");
}
