use ibex_harness::*;
use job::*;
fn main() -> std::process::ExitCode {
    if let Some(code) = pair::run_if_peer(|_, _| unreachable!()) { return code; }
    let cores = cores::choose(None).unwrap();
    let a: Vec<String> = std::env::args().collect();
    let limit = if a[1] == "shm" { limit::Limit::Shm } else { limit::Limit::Tcp };
    let mode = if a[2] == "l" { Mode::Latency } else { Mode::Stream };
    let job = Job { mode, size: a[3].parse().unwrap(), iters: a[4].parse().unwrap(), flip: a.get(5).is_some() };
    println!("{}", regime::measure(cores).unwrap());
    for _ in 0..3 {
    match limit.measure(cores, job) { Err(e) => println!("error {e}"), Ok(f) => 
    println!("{:?} {:.2} M/s {:.2} GB/s {:?} {} touched {}", f.one_way.map(|p| p.rounded()), f.messages_per_second()/1e6, f.bytes_per_second()/1e9, f.elapsed, f.tally.faults, f.bytes_touched()) }
    }
    std::process::ExitCode::SUCCESS
}
