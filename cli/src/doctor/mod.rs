//! `ibex doctor`: what stops or slows a fabric here, why that matters, and what mends it.
//!
//! Each check reads files below a [`Root`] and adds [`Finding`]s, or the sentence that all is well.

mod host;
mod isolation;
mod memory;
mod rdma;
mod reach;
mod report;
mod security;

use std::fmt;

use serde::Serialize;

pub(crate) use self::security::EXPIRES_SOON;

use crate::Failure;
use crate::config;
use crate::devices::{self, Device};
use crate::options::DoctorOptions;
use crate::page::{Page, Tone, print_json};
use crate::root::Root;
use crate::session;

/// Something that stops or slows a fabric.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Finding {
    /// The check that found it.
    pub(crate) check: &'static str,
    pub(crate) severity: Severity,
    pub(crate) seen: String,
    pub(crate) why: String,
    /// The command or the setting that mends it.
    pub(crate) mend: String,
}

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// It stops a fabric.
    Problem,
    /// It slows a fabric, or stops it for some peers.
    Warning,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Problem => "problem",
            Self::Warning => "warning",
        })
    }
}

/// The findings, and the checks that found nothing.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Diagnosis {
    pub(crate) findings: Vec<Finding>,
    pub(crate) fine: Vec<Fine>,
}

/// A check that found nothing.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Fine {
    pub(crate) check: &'static str,
    pub(crate) text: String,
}

impl Diagnosis {
    fn problem(
        &mut self,
        check: &'static str,
        seen: impl Into<String>,
        why: impl Into<String>,
        mend: impl Into<String>,
    ) {
        self.add(
            Severity::Problem,
            check,
            [seen.into(), why.into(), mend.into()],
        );
    }

    fn warning(
        &mut self,
        check: &'static str,
        seen: impl Into<String>,
        why: impl Into<String>,
        mend: impl Into<String>,
    ) {
        self.add(
            Severity::Warning,
            check,
            [seen.into(), why.into(), mend.into()],
        );
    }

    fn add(&mut self, severity: Severity, check: &'static str, [seen, why, mend]: [String; 3]) {
        self.findings.push(Finding {
            check,
            severity,
            seen,
            why,
            mend,
        });
    }

    /// Notes that a check found nothing, unless it has a finding.
    fn fine(&mut self, check: &'static str, text: impl Into<String>) {
        if self.findings.iter().all(|finding| finding.check != check) {
            self.fine.push(Fine {
                check,
                text: text.into(),
            });
        }
    }

    fn has_problem(&self) -> bool {
        let mut severities = self.findings.iter().map(|finding| finding.severity);
        severities.any(|severity| severity == Severity::Problem)
    }
}

/// Runs the subcommand.
pub(crate) fn run(options: &DoctorOptions) -> Result<u8, Failure> {
    let security = session::security(&options.identity);
    let security = security.map_err(|error| Failure::said(error.to_string()))?;
    let root = Root::new(&options.common.root);
    let devices = devices::devices(&root);
    let mut diagnosis = examine(&root, &devices);
    security::check(security.as_ref(), &mut diagnosis);
    let mut page = Page::for_output();
    if !options.common.json {
        show(&diagnosis, &mut page);
        // The peer may take seconds to answer, so that what is known comes first.
        page.print()?;
    }
    let reached = options.to.as_deref().map(|to| {
        let mut peer = Diagnosis::default();
        let reached = reach::reach(to, security.clone(), &mut peer);
        (reached, peer)
    });
    let reached = reached.map(|(reached, peer)| {
        if !options.common.json {
            show_reached(&reached, &peer, &mut page);
        }
        diagnosis.findings.extend(peer.findings);
        diagnosis.fine.extend(peer.fine);
        reached
    });
    if let Some(file) = &options.report {
        report::write(
            file,
            &root,
            options.to.as_deref(),
            &diagnosis,
            reached.as_ref(),
        )
        .map_err(|error| Failure::said(format!("{}: {error}", file.display())))?;
    }
    if options.common.json {
        print_json(&Output {
            diagnosis: &diagnosis,
            to: reached.as_ref(),
        })?;
    } else {
        show_end(&diagnosis, options, &mut page);
        page.print()?;
    }
    Ok(if diagnosis.has_problem() { 3 } else { 0 })
}

/// What `--json` prints.
#[derive(Serialize)]
struct Output<'a> {
    #[serde(flatten)]
    diagnosis: &'a Diagnosis,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<&'a reach::Reached>,
}

/// Makes every check of this machine.
fn examine(root: &Root, devices: &[Device]) -> Diagnosis {
    let mut diagnosis = Diagnosis::default();
    rdma::check(root, devices, &mut diagnosis);
    memory::check(root, devices, &mut diagnosis);
    isolation::check(root, &mut diagnosis);
    host::check(root, &mut diagnosis);
    environment(root, &mut diagnosis);
    diagnosis
}

/// Checks the variables of this process's environment, which a node respects.
fn environment(root: &Root, diagnosis: &mut Diagnosis) {
    if !root.is_machine() {
        return;
    }
    match config::node_of_environment() {
        Ok(node) => {
            for warning in node.environment_warnings() {
                diagnosis.warning(
                    "environment",
                    format!("{warning}."),
                    "Someone expects an effect that it does not have.",
                    "unset it; `ibex config explain` shows all variables",
                );
            }
            diagnosis.fine("environment", "a node can be made with its variables");
        }
        Err(obstacle) => diagnosis.problem(
            "environment",
            format!("{}.", obstacle.seen),
            "A program that builds a node with such an environment gets this error, and no fabric.",
            obstacle.mend,
        ),
    }
}

fn show(diagnosis: &Diagnosis, page: &mut Page) {
    for finding in &diagnosis.findings {
        show_finding(finding, page);
    }
    if !diagnosis.fine.is_empty() {
        page.title("Fine");
        for fine in &diagnosis.fine {
            page.row(2, fine.check, 14, Tone::Good, &fine.text);
        }
    }
}

fn show_finding(finding: &Finding, page: &mut Page) {
    let tone = match finding.severity {
        Severity::Problem => Tone::Bad,
        Severity::Warning => Tone::Warning,
    };
    page.gap();
    page.row(0, &finding.severity.to_string(), 8, tone, finding.check);
    page.row(2, "seen", 6, Tone::Plain, &finding.seen);
    page.row(2, "why", 6, Tone::Plain, &finding.why);
    page.row(2, "mend", 6, Tone::Title, &finding.mend);
}

fn show_reached(reached: &reach::Reached, peer: &Diagnosis, page: &mut Page) {
    page.title(&format!("The way to {}", reached.asked_for));
    for attempt in &reached.addresses {
        page.row(
            2,
            &attempt.address.to_string(),
            22,
            Tone::Plain,
            &attempt.outcome.to_string(),
        );
    }
    if let Some(session) = &reached.session {
        page.row(
            2,
            "session",
            22,
            Tone::Good,
            &format!("{}: {}", session.fabric, session.reason),
        );
    }
    for finding in &peer.findings {
        show_finding(finding, page);
    }
}

fn show_end(diagnosis: &Diagnosis, options: &DoctorOptions, page: &mut Page) {
    let count = |severity| {
        let same = diagnosis
            .findings
            .iter()
            .filter(|finding| finding.severity == severity);
        same.count()
    };
    let (problems, warnings) = (count(Severity::Problem), count(Severity::Warning));
    let plural = |count, word: &str| match count {
        1 => format!("1 {word}"),
        count => format!("{count} {word}s"),
    };
    page.title(&format!(
        "{}, {}",
        plural(problems, "problem"),
        plural(warnings, "warning")
    ));
    if let Some(file) = &options.report {
        page.text(
            0,
            &format!(
                "{} has all of this without names and addresses",
                file.display()
            ),
        );
    }
}
