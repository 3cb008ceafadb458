//! perftest, the usual yardstick: `ib_send_lat` does what the [verbs
//! limit](crate::limit::Limit::Verbs) does in latency mode, and `ib_send_bw` and `ib_write_bw` what
//! a stream does. None of them touches a payload.
//!
//! If perftest is disturbed while it measures the frequency of its clock, it prints infinities; it
//! is then run once more.

#![forbid(unsafe_code)]

use crate::{Error, cores::Cores, foreign::Foreign, verbs_port::VerbsPort};

/// One-way times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names are the percentiles")]
pub struct Times {
    pub p5: f64,
    pub p50: f64,
}

/// The requests of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Requests {
    /// Bytes of a request.
    pub size: usize,
    /// The number of requests.
    pub count: u64,
    /// The most requests on their way.
    pub depth: u32,
    /// The interval of requests that ask for a completion.
    pub signaled: u32,
}

/// Returns the times of `ib_send_lat` between two processes on `cores`, both on `port`. They
/// exchange their addresses over the loopback interface.
pub fn send_latency(
    cores: Cores,
    port: &VerbsPort,
    size: usize,
    iters: u64,
) -> Result<Times, Error> {
    // `-H` prints all times, whatever frequency the CPU reports.
    let more = ["-H".to_owned()];
    let starting = "starting ib_send_lat, of perftest";
    let program = program("ib_send_lat", starting, port, (size, iters), more);
    twice(&program, cores, times)
}

/// Returns the messages per second of `ib_send_bw`, run like [`send_latency`].
pub fn send_rate(cores: Cores, port: &VerbsPort, requests: Requests) -> Result<f64, Error> {
    stream(
        "ib_send_bw",
        "starting ib_send_bw, of perftest",
        cores,
        port,
        requests,
    )
}

/// Returns the messages per second of `ib_write_bw`, run like [`send_latency`].
pub fn write_rate(cores: Cores, port: &VerbsPort, requests: Requests) -> Result<f64, Error> {
    stream(
        "ib_write_bw",
        "starting ib_write_bw, of perftest",
        cores,
        port,
        requests,
    )
}

fn stream(
    name: &'static str,
    starting: &'static str,
    cores: Cores,
    port: &VerbsPort,
    requests: Requests,
) -> Result<f64, Error> {
    let Requests {
        size,
        count,
        depth,
        signaled,
    } = requests;
    let more = [
        "-t".to_owned(),
        depth.to_string(),
        "-Q".to_owned(),
        signaled.to_string(),
    ];
    let program = program(name, starting, port, (size, count), more);
    twice(&program, cores, |output| rate(output, size))
}

fn program(
    name: &'static str,
    starting: &'static str,
    port: &VerbsPort,
    (size, iters): (usize, u64),
    more: impl IntoIterator<Item = String>,
) -> Foreign {
    let mut arguments: Vec<_> = ["-F", "-d", port.device(), "-x"]
        .map(str::to_owned)
        .into_iter()
        .chain([port.gid_index().to_string()])
        .chain(["-s".to_owned(), size.to_string()])
        .chain(["-n".to_owned(), iters.to_string()])
        .collect();
    arguments.extend(more);
    Foreign {
        program: name,
        starting,
        arguments,
        variables: Vec::new(),
        address: "127.0.0.1".to_owned(),
    }
}

fn twice<T>(program: &Foreign, cores: Cores, read: impl Fn(&str) -> Option<T>) -> Result<T, Error> {
    let first = read(&program.run(cores)?);
    match first {
        Some(figures) => Ok(figures),
        None => read(&program.run(cores)?).ok_or_else(|| program.void()),
    }
}

/// Parses lines `NUMBER, MICROSECONDS`. A time that is no number invalidates all.
fn times(output: &str) -> Option<Times> {
    let mut all = Vec::new();
    for line in output.lines() {
        if let Some((number, time)) = line.split_once(',')
            && number.trim().parse::<u64>().is_ok()
        {
            let time: f64 = time.trim().parse().ok()?;
            all.push((time.is_finite() && time > 0.0).then_some(time * 1000.0)?);
        }
    }
    all.sort_by(f64::total_cmp);
    let at = |percent: usize| all.get(all.len() * percent / 100).copied();
    Some(Times {
        p5: at(5)?,
        p50: at(50)?,
    })
}

/// Parses messages per second from the line `SIZE COUNT PEAK AVERAGE RATE`, which has MiB/s and
/// millions: takes whichever of the last two has more digits.
fn rate(output: &str, size: usize) -> Option<f64> {
    let columns = output.lines().find_map(|line| {
        let columns: Vec<_> = line.split_whitespace().collect();
        (columns.len() >= 5 && columns[0].parse() == Ok(size)).then_some(columns)
    })?;
    let number = |column: usize| columns[column].parse::<f64>().ok();
    let rate = match size {
        0..1024 => number(4)? * 1e6,
        _ => number(3)? * f64::from(1 << 20) / size as f64,
    };
    (rate.is_finite() && rate > 0.0).then_some(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_all_times() {
        let mut output = String::from("---\n local address: LID 0000\n#, usec\n");
        for time in (1..=100).rev() {
            output += &format!("{}, {time}.5\n", 101 - time);
        }
        output += " #bytes #iterations    t_min[usec]\n 64      100          1.5\n";
        let expected = Times {
            p5: 6500.0,
            p50: 51500.0,
        };
        assert_eq!(times(&output), Some(expected));
    }

    #[test]
    fn a_line_without_a_time_voids_the_run() {
        assert_eq!(times("#, usec\n1, inf\n2, 3.5\n"), None);
        assert_eq!(times("#, usec\n1, -nan\n2, 3.5\n"), None);
        assert_eq!(times("Couldn't connect to 127.0.0.1:18515\n"), None);
    }

    #[test]
    fn a_rate_is_of_the_column_with_more_digits() {
        let heading = " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   \
                       MsgRate[Mpps]\n";
        let small =
            format!("{heading} 64         20000            3.90               2.60   0.0425\n");
        assert_eq!(rate(&small, 64), Some(42_500.0));
        let large =
            format!("{heading} 65536      500              92.10              88.00  0.0014\n");
        assert_eq!(rate(&large, 65_536), Some(1408.0));
        let void = format!("{heading} 64         20000            inf                inf    inf\n");
        assert_eq!(rate(&void, 64), None);
        assert_eq!(rate(heading, 64), None);
    }
}
