//! A Prometheus of the machine, and the questions that it is asked.

use std::{
    env, fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    process::{self, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use ibex_harness::process::Process;
use serde_json::Value;

/// A Prometheus that scrapes one page. Dropping it ends it and removes its folder.
pub(crate) struct Prometheus {
    address: SocketAddr,
    folder: PathBuf,
    process: Process,
}

impl Prometheus {
    /// Starts one that scrapes every two seconds.
    pub(crate) fn scraping(page: SocketAddr) -> Self {
        let folder = env::temp_dir().join(format!("ibex-prometheus-{}", process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let settings = folder.join("prometheus.yml");
        let text = format!(
            "global:\n  scrape_interval: 2s\n  scrape_timeout: 2s\nscrape_configs:\n  - \
             job_name: ibex\n    static_configs:\n      - targets: ['{page}']\n"
        );
        fs::write(&settings, text).expect("a file");
        // It logs to its standard error.
        let mut command = Command::new("sh");
        command
            .args(["-c", "exec prometheus \"$@\" 2>&1", "prometheus"])
            .arg(format!("--config.file={}", settings.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.join("data").display()
            ))
            .args(["--web.listen-address=127.0.0.1:0", "--log.level=info"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut process = Process::start("prometheus", &mut command).expect("it starts");
        let address = process.hear("msg=\"Listening on\" address=");
        let address = address.expect("it listens").parse().expect("an address");
        process.hear("Server is ready").expect("it is ready");
        Self {
            address,
            folder,
            process,
        }
    }

    /// Waits until a metric was scraped this many times.
    pub(crate) fn await_scrapes(&self, metric: &str, times: u32) {
        let begun = Instant::now();
        let question = format!("count_over_time({metric}[1h]) >= {times}");
        while self.ask(&question).is_empty() {
            let targets = self.api("targets");
            assert!(begun.elapsed() < WATCHDOG, "no scrape: {targets}");
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Returns the samples of an expression's answer, now.
    pub(crate) fn ask(&self, expression: &str) -> Vec<Value> {
        let answer = self.api(&format!("query?query={}", encoded(expression)));
        match answer["data"]["result"].as_array() {
            Some(samples) if answer["status"] == "success" => samples.clone(),
            _ => panic!("{expression}: {answer}"),
        }
    }

    /// Returns the kind and help of each metric, as they were scraped.
    pub(crate) fn metadata(&self) -> Value {
        self.api("metadata")["data"].take()
    }

    fn api(&self, path: &str) -> Value {
        let (status, text) = get(self.address, &format!("/api/v1/{path}"));
        let answer = serde_json::from_str(&text);
        answer.unwrap_or_else(|error| panic!("{path}: status {status}, {error}: {text}"))
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Gets a page. Returns the status and the body.
pub(crate) fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut server = TcpStream::connect(address).expect("it listens");
    server.set_read_timeout(Some(WATCHDOG)).expect("a limit");
    // Version 1.0 gets the body in one piece.
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    server.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    server.read_to_string(&mut answer).expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    (status.expect("a status"), body.to_owned())
}

/// Writes a text as a part of a URL.
fn encoded(text: &str) -> String {
    let bytes = text.bytes();
    let encoded = bytes.map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    });
    encoded.collect()
}

/// More than all of this takes.
const WATCHDOG: Duration = Duration::from_secs(180);
