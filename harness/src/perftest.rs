//! `ib_send_lat`, the yardstick of the field: it comes with perftest, and does what the
//! [verbs limit](crate::limit::Limit::Verbs) does in latency mode, but reads no payload.

#![forbid(unsafe_code)]

use std::{
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::{
    Error,
    cores::{Cores, keep_to},
    verbs_port::VerbsPort,
};

/// Times one way, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names are the percentiles")]
pub struct Times {
    pub p5: f64,
    pub p50: f64,
}

/// Runs `ib_send_lat` between two processes on `cores`, both on `port`; they agree over
/// the loopback interface.
pub fn send_latency(
    cores: Cores,
    port: &VerbsPort,
    size: usize,
    iters: u64,
) -> Result<Times, Error> {
    let command = |server: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command
            .args(["-d", port.device()])
            .args(["-x", &port.gid_index().to_string()])
            .args(["-s", &size.to_string()])
            .args(["-n", &iters.to_string()])
            // All times, whatever the CPU's frequency is said to be.
            .args(["-H", "-F"])
            .args(server)
            .stdin(Stdio::null());
        command
    };
    // A process keeps to the cores of the thread that starts it.
    keep_to(&cores[1..])?;
    let server = command(&[])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut server = Server(server.map_err(Error::io("starting ib_send_lat, of perftest"))?);
    keep_to(&cores[..1])?;
    let start = Instant::now();
    loop {
        let client = command(&["127.0.0.1"])
            .output()
            .map_err(Error::io("starting ib_send_lat, of perftest"))?;
        // The first attempts may come before the server listens.
        if client.status.success() {
            let _ = server.0.wait();
            return times(&String::from_utf8_lossy(&client.stdout))
                .ok_or_else(|| Error::subject(format!("{PROGRAM} printed no times")));
        }
        let ended = server
            .0
            .try_wait()
            .map_err(Error::io("waiting for ib_send_lat"))?;
        if ended.is_some() || start.elapsed() > PATIENCE {
            let said = String::from_utf8_lossy(&client.stderr);
            return Err(Error::subject(format!(
                "{PROGRAM} failed, {}: {}",
                client.status,
                said.lines().next().unwrap_or("without a word")
            )));
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// The answering process, which does not outlive us.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if it has been waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// From lines `NUMBER, MICROSECONDS`. A time that is no number, as perftest prints them when
/// it could not find out how fast the clock is, makes all void.
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

const PROGRAM: &str = "ib_send_lat";
/// Until both processes are there and have measured; in an emulator that takes seconds.
const PATIENCE: Duration = Duration::from_secs(60);

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
    fn what_is_no_time_is_void() {
        assert_eq!(times("#, usec\n1, inf\n2, 3.5\n"), None);
        assert_eq!(times("#, usec\n1, -nan\n2, 3.5\n"), None);
        assert_eq!(times("Couldn't connect to 127.0.0.1:18515\n"), None);
    }
}
