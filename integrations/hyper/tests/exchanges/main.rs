//! Other libraries over byte streams: hyper's HTTP/1.1 and HTTP/2, and HTTP/1.1 within rustls, on
//! each fabric and driver, exchange after exchange, without a hang.
//!
//! A trial is called `exchange/fabric/driver`. `fake` is an RDMA device made of memory, with the
//! feature `fake-device`; `verbs` is a real one, with the feature `verbs` and if there is one. Each
//! trial has 1,000 exchanges, 100 on a real device, or as many as `IBEX_TEST_EXCHANGES` says. Only
//! the wake-ups of the streams move the tasks: they contain no timer, and a watch beside them
//! reports the last exchange.

mod http;
mod watch;

use std::{env, process::ExitCode};

use ibex_integrations_testing::{Cell, DRIVERS, Meeting, trials};
use libtest_mimic::Arguments;
use watch::Watch;

/// The protocol of an exchange.
#[derive(Clone, Copy, Debug)]
enum Exchange {
    Http1,
    Http2,
    Tls,
}

const EXCHANGES: [(&str, Exchange); 3] = [
    ("http1", Exchange::Http1),
    ("http2", Exchange::Http2),
    ("tls", Exchange::Tls),
];

fn main() -> ExitCode {
    let trials = trials(&EXCHANGES, &DRIVERS, play);
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn play(cell: Cell, exchange: Exchange) {
    let count = count(cell);
    let (watch, progress) = Watch::of(count);
    watch.over(move || {
        let runtime = cell.driver.runtime();
        runtime.block_on(async {
            let meeting = Meeting::over(cell).await;
            match exchange {
                Exchange::Http1 => http::one(&meeting, count, &progress).await,
                Exchange::Http2 => http::two(&meeting, count, &progress).await,
                Exchange::Tls => http::within_tls(&meeting, count, &progress).await,
            }
            meeting.part().await;
        });
    });
}

fn count(cell: Cell) -> u64 {
    match env::var("IBEX_TEST_EXCHANGES") {
        Ok(count) => count.parse().expect("a number"),
        Err(_) if cell.over.is_slow() => 100,
        Err(_) => 1_000,
    }
}
