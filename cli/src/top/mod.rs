//! `ibex top`: what a running node does, and why it is slow, as the node tells at its socket.

mod answer;
mod findings;
mod node;
mod screen;
mod slow;
mod table;

use std::io::{self, IsTerminal};
use std::thread;
use std::time::Duration;

use crate::options::TopOptions;
use crate::page::{Page, Tone};
use crate::{Failure, print};

use self::answer::Answer;
use self::node::Node;

/// Runs the subcommand.
pub(crate) fn run(options: &TopOptions) -> Result<u8, Failure> {
    let nodes = node::find(options.node.as_deref()).map_err(Failure::said)?;
    if nodes.is_empty() {
        let which = match &options.node {
            Some(wanted) => format!("no node that runs answers for `{wanted}`"),
            None => "no node of this user that runs can be inspected".to_owned(),
        };
        return Err(Failure {
            text: format!(
                "{which}; build it with `Node::builder().inspect()`, and run `ibex top` as the \
                 same user and with the same XDG_RUNTIME_DIR"
            ),
            code: 4,
        });
    }
    if options.json {
        nodes.iter().try_for_each(|node| print(&node.line))?;
        return Ok(0);
    }
    let Ok([node]) = <[Node; 1]>::try_from(nodes).map_err(|nodes| list(&nodes)) else {
        return Ok(0);
    };
    if options.once || !io::stdout().is_terminal() {
        return once(
            node,
            Duration::from_millis(options.interval_ms.min(FIRST_LOOK)),
        );
    }
    screen::run(node, Duration::from_millis(options.interval_ms))?;
    Ok(0)
}

/// Prints one table. Its rates are those of a moment.
fn once(mut node: Node, moment: Duration) -> Result<u8, Failure> {
    let before = node.answer;
    thread::sleep(moment);
    let now = node.connection.ask().map_err(Failure::said)?;
    let mut page = Page::for_output();
    table::write(Some(&before), &now, &mut page);
    page.print()?;
    Ok(0)
}

/// Prints which nodes there are.
fn list(nodes: &[Node]) {
    let mut page = Page::for_output();
    page.text(
        0,
        "Several nodes can be inspected; `ibex top PID` or `ibex top SOCKET` shows one:",
    );
    for Node { answer, path, .. } in nodes {
        let text = format!("{}: {}", title(answer), path.display());
        page.row(2, &answer.pid.to_string(), 10, Tone::Good, &text);
    }
    // Who reads no further wants no complaint.
    let _ = page.print();
}

/// Names a node: its name, program, process and address.
fn title(answer: &Answer) -> String {
    let name = answer.name.as_deref().unwrap_or("a node without a name");
    let program = answer.program.as_deref().unwrap_or("unknown program");
    let mut title = format!("{name} ({program}, process {})", answer.pid);
    if let Some(address) = &answer.address {
        title += &format!(", listening on {address}");
    }
    title
}

/// Milliseconds that `--once` looks for rates, so that there is an answer within a second.
const FIRST_LOOK: u64 = 500;
