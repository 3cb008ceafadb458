//! Other libraries over the same device, by the ping-pong program that each provides: UCX's active
//! messages and libfabric's messages. Like ibex they have queues, credit and headers of their own.
//! Unlike ibex's, neither program touches a payload.

#![forbid(unsafe_code)]

use crate::{Error, cores::Cores, foreign::Foreign, verbs_port::VerbsPort};

/// Returns the median one-way time of `ucx_perftest -t am_lat` over `rc_verbs`, in nanoseconds.
///
/// Uses `bcopy`, since UCX sends up to some 60 bytes by the shorter way.
pub fn ucx_latency(cores: Cores, port: &VerbsPort, size: usize, iters: u64) -> Result<f64, Error> {
    let line = format!(
        "-t am_lat -x rc_verbs -D bcopy -v -d {}:{} -s {size} -n {iters} -w {}",
        port.device(),
        port.number,
        iters / 10
    );
    let program = Foreign {
        program: "ucx_perftest",
        starting: "starting ucx_perftest, of ucx-utils",
        arguments: words(&line),
        variables: vec![("UCX_IB_GID_INDEX", port.gid_index().to_string())],
        address: "127.0.0.1".to_owned(),
    };
    ucx_median(&program.run(cores)?).ok_or_else(|| program.void())
}

/// Returns the mean one-way time of `fi_pingpong` over the provider `verbs`, in nanoseconds. The
/// program reports no other figure.
pub fn libfabric_latency(
    cores: Cores,
    port: &VerbsPort,
    size: usize,
    iters: u64,
) -> Result<f64, Error> {
    let address = port.address();
    let address = address.ok_or_else(|| Error::subject("the device's port has no IP address"))?;
    let program = Foreign {
        program: "fi_pingpong",
        starting: "starting fi_pingpong, of libfabric-bin",
        arguments: words(&format!("-p verbs -e msg -S {size} -I {iters}")),
        variables: Vec::new(),
        address: address.to_string(),
    };
    libfabric_mean(&program.run(cores)?).ok_or_else(|| program.void())
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// Parses the last line `ITERATIONS,MEDIAN,...`, in microseconds.
fn ucx_median(output: &str) -> Option<f64> {
    let of_line = |line: &str| {
        let (iterations, rest) = line.split_once(',')?;
        iterations.trim().parse::<u64>().ok()?;
        rest.split(',').next()?.trim().parse().ok()
    };
    time(output.lines().filter_map(of_line).next_back()?)
}

/// Parses the column `usec/xfer` of the last line.
fn libfabric_mean(output: &str) -> Option<f64> {
    let heading = output.lines().find(|line| line.contains("usec/xfer"))?;
    let column = heading
        .split_whitespace()
        .position(|name| name == "usec/xfer")?;
    let last = output.lines().rfind(|line| !line.trim().is_empty())?;
    time(last.split_whitespace().nth(column)?.parse().ok()?)
}

fn time(microseconds: f64) -> Option<f64> {
    (microseconds.is_finite() && microseconds > 0.0).then_some(microseconds * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ucx_says_the_median_last() {
        let output = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw\n\
                      3000,41.250,43.1,44.0,1.2\n5000,37.500,43.1,44.0,1.2\n";
        assert_eq!(ucx_median(output), Some(37_500.0));
        assert_eq!(ucx_median("iterations,50.0_percentile_lat\n"), None);
    }

    #[test]
    fn libfabric_says_the_mean() {
        let output = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                      64      3k      =3k      375k        0.33s      1.15      55.61       0.02\n";
        assert_eq!(libfabric_mean(output), Some(55_610.0));
        assert_eq!(libfabric_mean("no such provider\n"), None);
    }
}
