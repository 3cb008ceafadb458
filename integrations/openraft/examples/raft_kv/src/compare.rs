//! Compares a cluster over ibex and one over tokio's TCP, in turns.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use tokio::time::Instant;

use crate::{
    harness::{Cluster, Launch},
    lines::DEPOSED,
    node::Wire,
    types::Failure,
};

/// A comparison: its place and its length.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The path of this program.
    pub program: PathBuf,
    /// The directory in which the nodes' directories are made; if it is in memory, no disk is
    /// measured.
    pub directory: PathBuf,
    /// The number of turns of each wire.
    pub rounds: usize,
    /// Writes of one measurement with 64 outstanding; an eighth of them with one.
    pub writes: u64,
}

/// Figures of one turn.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    one: Figures,
    many: Figures,
    /// Time from the leader's death to the next acknowledged write.
    recovery_ms: f64,
    after: Figures,
}

#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    rate: f64,
    p50_us: f64,
}

/// The turns of each wire; displayed as a table.
#[derive(Debug)]
pub struct Table {
    turns: BTreeMap<&'static str, Vec<Turn>>,
    void: BTreeMap<&'static str, usize>,
}

/// The error of a turn whose leader lost an election: its figures are worth nothing.
#[derive(Debug)]
struct Deposed;

impl fmt::Display for Deposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("another node was elected during a measurement, again and again")
    }
}

impl std::error::Error for Deposed {}

/// Measures each wire in turn. A turn whose leader is deposed begins anew with a new cluster; the
/// table gives the number of such turns.
///
/// # Errors
///
/// A cluster cannot be started, does not write, or changes its leader in ten attempts at a turn.
pub async fn run(comparison: Comparison) -> Result<Table, Failure> {
    let mut turns = BTreeMap::<_, Vec<Turn>>::new();
    let mut void = BTreeMap::<_, usize>::new();
    for round in 0..comparison.rounds {
        for (name, wire) in WIRES {
            eprintln!("round {} of {}: {name}", round + 1, comparison.rounds);
            let mut attempts = 1;
            let turn = loop {
                match turn(&comparison, wire).await {
                    Err(error) if error.is::<Deposed>() && attempts < MAX_ATTEMPTS => attempts += 1,
                    ended => break ended?,
                }
                eprintln!("another node was elected: the turn begins anew");
                *void.entry(name).or_default() += 1;
            };
            turns.entry(name).or_default().push(turn);
        }
    }
    Ok(Table { turns, void })
}

async fn turn(comparison: &Comparison, wire: Wire) -> Result<Turn, Failure> {
    let mut cluster = Cluster::start(Launch {
        program: comparison.program.clone(),
        directory: comparison.directory.clone(),
        wire,
        has_proxies: false,
    })
    .await?;
    let leader = cluster.leader().await?;
    let (few, many) = (comparison.writes / 8, comparison.writes);
    bench(&cluster, leader, 1, few / 8).await?;
    let mut turn = Turn {
        one: bench(&cluster, leader, 1, few).await?,
        many: bench(&cluster, leader, 64, many).await?,
        ..Turn::default()
    };
    cluster.kill(leader)?;
    let start = Instant::now();
    let next = loop {
        let next = cluster.leader().await?;
        let written = cluster.ask(next, "put after 1").await;
        if written.is_ok_and(|answer| answer == "ok") {
            break next;
        }
    };
    turn.recovery_ms = start.elapsed().as_secs_f64() * 1e3;
    turn.after = bench(&cluster, next, 64, many).await?;
    Ok(turn)
}

async fn bench(
    cluster: &Cluster,
    leader: u64,
    outstanding: u64,
    count: u64,
) -> Result<Figures, Failure> {
    let request = format!("bench {outstanding} {count}");
    let patience = std::time::Duration::from_secs(120);
    let answer = cluster.ask_within(leader, &request, patience).await?;
    if answer == DEPOSED {
        return Err(Deposed.into());
    }
    match answer.split(' ').collect::<Vec<_>>()[..] {
        ["rate", rate, "p50", p50] => Ok(Figures {
            rate: rate.parse()?,
            p50_us: p50.parse()?,
        }),
        _ => Err(answer.into()),
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| measured | {} | {} | {} | tcp : TCP | shm : TCP |",
            WIRES[0].0, WIRES[1].0, WIRES[2].0
        )?;
        writeln!(f, "|---|---|---|---|---|---|")?;
        for (name, figure) in ROWS {
            write!(f, "| {name} |")?;
            for (wire, _) in WIRES {
                let values = self.values(wire, figure);
                write!(f, " {} |", middle(values, 0))?;
            }
            for (wire, _) in &WIRES[1..] {
                let values = self.values(wire, figure).into_iter();
                let ratios = values.zip(self.values(WIRES[0].0, figure));
                let ratios = ratios.map(|(value, base)| value / base).collect();
                write!(f, " {} |", middle(ratios, 2))?;
            }
            writeln!(f)?;
        }
        for (wire, turns) in &self.void {
            writeln!(
                f,
                "Of {wire}, {turns} turns began anew: another node was elected."
            )?;
        }
        Ok(())
    }
}

impl Table {
    fn values(&self, wire: &str, figure: fn(&Turn) -> f64) -> Vec<f64> {
        let turns = self.turns.get(wire).into_iter().flatten();
        turns.map(figure).collect()
    }
}

/// Returns the median, the least and the greatest.
fn middle(mut values: Vec<f64>, digits: usize) -> String {
    values.sort_by(f64::total_cmp);
    match values[..] {
        [] => "-".to_owned(),
        [only] => format!("{only:.digits$}"),
        [least, .., most] => {
            let middle = values[values.len() / 2];
            format!("{middle:.digits$} ({least:.digits$} to {most:.digits$})")
        }
    }
}

const MAX_ATTEMPTS: usize = 10;

const WIRES: [(&str, Wire); 3] = [
    ("tokio TCP", Wire::Sockets),
    ("ibex tcp", Wire::Tcp),
    ("ibex shm", Wire::Shm),
];

type Row = (&'static str, fn(&Turn) -> f64);

const ROWS: [Row; 7] = [
    ("writes/s, 1 outstanding", |turn| turn.one.rate),
    ("p50 in µs, 1 outstanding", |turn| turn.one.p50_us),
    ("writes/s, 64 outstanding", |turn| turn.many.rate),
    ("p50 in µs, 64 outstanding", |turn| turn.many.p50_us),
    ("ms from the leader's death to the next write", |turn| {
        turn.recovery_ms
    }),
    ("writes/s of two nodes then, 64 outstanding", |turn| {
        turn.after.rate
    }),
    ("p50 in µs of two nodes then, 64 outstanding", |turn| {
        turn.after.p50_us
    }),
];
