//! Sealed tcp beside rustls itself: the same messages over ibex, through rustls' unbuffered API on
//! a bare socket, and through tokio-rustls.
//!
//! `cargo bench --bench sealed` takes about a minute, and prints the rows of the table in
//! BENCHMARKS.md. The subjects take turns, and each figure is the median of its turns; the ratio is to
//! rustls' unbuffered loop. All use the same
//! provider, and therefore the same cipher. Both ends are threads of one process, each on its own
//! core, except tokio's. Compare only figures of the same run.

use std::{error::Error, sync::Arc, thread, time::Duration};

use ibex::rustls::{
    self, ClientConfig, RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use ibex_harness::{
    authority::{Authority, Request},
    cores::{self, Cores},
};

mod over_ibex;
mod over_rustls;
mod over_tokio;
mod strangers;

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome {
    // `cargo test --benches` omits `--bench`; then a short run shows that the program works.
    let is_test = !std::env::args().any(|argument| argument == "--bench");
    let turns = if is_test { 1 } else { 7 };
    let configs = Configs::make()?;
    println!(
        "| | ibex | rustls | tokio-rustls | ratio to rustls | aim |\n|---|---|---|---|---|---|"
    );
    for (name, shape) in SHAPES {
        let shape = Shape {
            messages: if is_test { 20 } else { shape.messages },
            ..shape
        };
        let mut figures = SUBJECTS.map(|_| Vec::new());
        for _ in 0..turns {
            for (subject, figures) in SUBJECTS.iter().zip(&mut figures) {
                figures.push(subject.measure(shape, &configs)?);
            }
        }
        let medians = figures.map(|mut turns| {
            turns.sort_unstable();
            turns[turns.len() / 2]
        });
        println!("{}", row(name, shape, medians));
    }
    let rounds = if is_test { 20 } else { 50_000 };
    let floods = (0..turns).map(|_| apart(|cores| strangers::measure(rounds, cores)));
    let mut floods = floods.collect::<Outcome<Vec<_>>>()?;
    let ratio =
        |figures: &strangers::Figures| figures.flooded.as_secs_f64() / figures.alone.as_secs_f64();
    floods.sort_by(|one, other| ratio(one).total_cmp(&ratio(other)));
    let came: usize = floods.iter().map(|flood| flood.strangers).sum();
    eprintln!("{came} strangers came");
    let (middle, last) = (&floods[turns / 2], &floods[turns - 1]);
    println!(
        "| {STRANGERS} | {:.2} µs | alone {:.2} µs | | {:.2} to {:.2} | 1 |",
        middle.flooded.as_secs_f64() * 1e6,
        middle.alone.as_secs_f64() * 1e6,
        ratio(&floods[0]),
        ratio(last),
    );
    Ok(())
}

/// Returns a row of medians, in the order of [`SUBJECTS`]; a missed aim makes its ratio bold.
fn row(name: &str, shape: Shape, medians: [Duration; SUBJECTS.len()]) -> String {
    let figures = medians.map(|median| shape.figure(median));
    let [ibex, rustls, tokio, plain] = figures;
    let (ratio, unit, aim, is_met) = match shape.is_stream {
        true => (ibex / rustls, "GB/s", "≥ 0.9", ibex / rustls >= 0.9),
        false => (ibex / rustls, "µs", "plain + 1.3 µs", ibex <= plain + 1.3),
    };
    let sign = if shape.is_stream { "" } else { " ×" };
    let bold = if is_met { "" } else { "**" };
    format!(
        "| {name} | {ibex:.2} {unit} (plain {plain:.2}) | {rustls:.2} {unit} | {tokio:.2} {unit} | \
         {bold}{ratio:.2}{sign}{bold} | {aim} |"
    )
}

/// The messages of a measurement.
#[derive(Clone, Copy)]
struct Shape {
    size: usize,
    messages: usize,
    /// Messages go one way as fast as possible, or there and back if false.
    is_stream: bool,
}

impl Shape {
    /// Returns microseconds one way, or gigabytes per second.
    fn figure(self, taken: Duration) -> f64 {
        let seconds = taken.as_secs_f64();
        match self.is_stream {
            true => (self.size * self.messages) as f64 / seconds / 1e9,
            false => seconds / self.messages as f64 / 2.0 * 1e6,
        }
    }
}

/// The shapes, with their labels in BENCHMARKS.md.
const SHAPES: [(&str, Shape); 3] = [
    ("TLS, 64 B, one-way latency", shape(64, 50_000, false)),
    ("TLS, 64 KiB, throughput", shape(64 << 10, 20_000, true)),
    ("TLS, 1 MiB, throughput", shape(1 << 20, 1_200, true)),
];

/// The label of the ping-pong beside strangers.
const STRANGERS: &str = "TLS, 64 B, one-way latency while a stranger connects each millisecond and \
                         stays, up to 500 at a time";

const fn shape(size: usize, messages: usize, is_stream: bool) -> Shape {
    Shape {
        size,
        messages,
        is_stream,
    }
}

/// The carrier of the messages. The others are compared to the second.
#[derive(Clone, Copy)]
enum Subject {
    Ibex,
    Rustls,
    TokioRustls,
    PlainIbex,
}

const SUBJECTS: [Subject; 4] = [
    Subject::Ibex,
    Subject::Rustls,
    Subject::TokioRustls,
    Subject::PlainIbex,
];

impl Subject {
    /// Measures the time until the last message is known to have arrived.
    fn measure(self, shape: Shape, configs: &Configs) -> Outcome<Duration> {
        match self {
            Subject::Ibex => apart(|cores| over_ibex::measure(shape, true, cores)),
            Subject::PlainIbex => apart(|cores| over_ibex::measure(shape, false, cores)),
            Subject::Rustls => apart(|cores| over_rustls::measure(shape, configs, cores)),
            Subject::TokioRustls => over_tokio::measure(shape, configs),
        }
    }
}

/// Runs `measure` in a thread that is pinned to the first of two cores; the second is for the other
/// end.
fn apart<T: Send>(measure: impl FnOnce(Cores) -> Outcome<T> + Send) -> Outcome<T> {
    let cores = cores::choose(None)?;
    thread::scope(|scope| {
        let measured = scope.spawn(move || {
            cores::keep_to(&cores[..1])?;
            measure(cores)
        });
        measured.join().map_err(|_| "a thread panicked")?
    })
}

/// rustls' configurations: TLS 1.3 by certificates, with the provider that ibex uses.
pub(crate) struct Configs {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Configs {
    fn make() -> Outcome<Self> {
        let folder = std::env::temp_dir().join(format!("ibex-sealed-{}", std::process::id()));
        let made = Self::with_files_in(&folder);
        std::fs::remove_dir_all(&folder)?;
        made
    }

    fn with_files_in(folder: &std::path::Path) -> Outcome<Self> {
        let authority = Authority::new("ca", folder)?;
        let mut request = Request::new("node", &[]);
        request.dns_names = &["localhost"];
        let files = authority.issue(&request)?;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&files.authorities)?)?;
        let chain = vec![CertificateDer::from_pem_file(&files.chain)?];
        let key = PrivateKeyDer::from_pem_file(&files.key)?;
        let provider = Arc::new(rustls_graviola::default_provider());
        let versions = &[&rustls::version::TLS13];
        let client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        server.send_tls13_tickets = 0;
        Ok(Self {
            client: Arc::new(client),
            server: Arc::new(server),
        })
    }

    fn name(&self) -> ServerName<'static> {
        ServerName::try_from("localhost").expect("a name")
    }
}

fn payload(number: usize, shape: Shape) -> Vec<u8> {
    let mut bytes = vec![0x5a; shape.size];
    bytes[0] = number as u8;
    bytes
}

/// Checks that a subject delivered the messages unchanged and in order.
fn check(message: &[u8], number: usize, shape: Shape) -> Outcome {
    let is_right = message.len() == shape.size
        && message[0] == number as u8
        && message[1..].iter().all(|byte| *byte == 0x5a);
    match is_right {
        true => Ok(()),
        false => Err(format!("message {number} is not what was sent").into()),
    }
}
