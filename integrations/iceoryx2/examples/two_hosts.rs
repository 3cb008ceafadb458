//! Publish-subscribe between two iceoryx2 systems that share no memory with each other, as on two
//! hosts: each has names and files of its own, and a link over ibex joins them.
//!
//! `cargo run --release -p ibex-iceoryx2 --example two_hosts` starts both systems on this machine, each as a
//! process. On two machines, start the one that subscribes first:
//!
//! ```sh
//! two_hosts subscribe --listen 10.0.0.1:7000
//! two_hosts publish --peer 10.0.0.1:7000
//! ```

use std::{
    env,
    error::Error,
    io::{BufRead, BufReader},
    process::{self, Command, Stdio},
    time::Duration,
};

use clap::{Parser, Subcommand};
use ibex::Node;
use ibex_iceoryx2::{IbexCarrier, Monitor};
use iceoryx2::{node::NodeBuilder, prelude::*};
use iceoryx2_link::Link;
use iceoryx2_link_tunnel::Tunnel;

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Subcommand)]
enum Role {
    /// Prints the published readings, until all have come.
    Subscribe {
        /// The address to listen at.
        #[arg(long, default_value = "127.0.0.1:0")]
        listen: String,
    },
    /// Publishes readings once there is a subscriber.
    Publish {
        /// The address at which the other system listens.
        #[arg(long)]
        peer: String,
    },
}

#[derive(Clone, Copy, Debug, ZeroCopySend)]
#[type_name("Reading")]
#[repr(C)]
struct Reading {
    number: u64,
    celsius: f64,
}

const SERVICE: &str = "sensors/temperature";
const READINGS: u64 = 5;

fn main() -> Result {
    match Arguments::parse().role {
        None => both(),
        Some(Role::Subscribe { listen }) => subscribe(&listen),
        Some(Role::Publish { peer }) => publish(&peer),
    }
}

/// Starts the two systems, and tells one the other's address.
fn both() -> Result {
    let program = env::current_exe()?;
    let mut subscriber = Command::new(&program)
        .arg("subscribe")
        .stdout(Stdio::piped())
        .spawn()?;
    let output = subscriber.stdout.take().ok_or("it is piped")?;
    let mut lines = BufReader::new(output).lines();
    let first = lines.next().ok_or("the subscriber ended at once")??;
    println!("{first}");
    let address = first.rsplit(' ').next().unwrap_or_default();
    let mut publisher = Command::new(&program)
        .args(["publish", "--peer", address])
        .spawn()?;
    for line in lines {
        println!("{}", line?);
    }
    let ends = [subscriber.wait()?, publisher.wait()?];
    match ends.iter().all(process::ExitStatus::success) {
        true => Ok(()),
        false => Err("one of the two failed".into()),
    }
}

fn subscribe(listen: &str) -> Result {
    let node = Node::builder().listen(listen).insecure_network().build()?;
    let address = node.local_addr().ok_or("it listens")?;
    println!("subscriber: listening at {address}");
    let carrier = IbexCarrier::new(node, [] as [&str; 0])?;
    let monitor = carrier.monitor();

    // The application and the program that runs the link share one process here.
    let config = system("subscriber")?;
    let application = NodeBuilder::new()
        .config(&config)
        .create::<ipc::Service>()?;
    let service = application
        .service_builder(&SERVICE.try_into()?)
        .publish_subscribe::<Reading>()
        .open_or_create()?;
    let subscriber = service.subscriber_builder().create()?;

    let mut taken = 0;
    run_link(carrier, &config, || {
        while let Some(reading) = subscriber.receive()? {
            let Reading { number, celsius } = *reading;
            println!(
                "subscriber: {number}: {celsius} °C, over {}",
                fabric(&monitor)
            );
            taken += 1;
        }
        Ok(taken == READINGS)
    })
}

fn publish(peer: &str) -> Result {
    let carrier = IbexCarrier::new(Node::client()?, [peer])?;
    let monitor = carrier.monitor();
    let config = system("publisher")?;
    let application = NodeBuilder::new()
        .config(&config)
        .create::<ipc::Service>()?;
    let service = application
        .service_builder(&SERVICE.try_into()?)
        .publish_subscribe::<Reading>()
        .open_or_create()?;
    let publisher = service.publisher_builder().create()?;

    let mut published = 0;
    run_link(carrier, &config, || {
        let services = monitor.stats().services;
        let sent = services.first().map_or(0, |service| service.sent);
        let is_there = services.iter().any(|service| !service.peers.is_empty());
        // Readings are published one after the other, as a sensor does.
        if is_there && published < READINGS && sent == published {
            published += 1;
            publisher.send_copy(Reading {
                number: published,
                celsius: 20.0 + 0.5 * published as f64,
            })?;
        }
        Ok(sent == READINGS && !is_there)
    })
}

/// Runs a link over the carrier, and the application's `turn`, until `turn` says that all is done.
fn run_link(
    carrier: IbexCarrier,
    config: &Config,
    mut turn: impl FnMut() -> Result<bool>,
) -> Result {
    let node = NodeBuilder::new().config(config).create::<ipc::Service>()?;
    let mut link = Link::new(node, Tunnel::new(carrier, config));
    let woken = link.listener()?;
    loop {
        link.discover()?;
        link.propagate()?;
        if turn()? {
            return Ok(());
        }
        // The peers wake the link; samples of this system do not.
        woken.timed_wait(|_| {}, Duration::from_millis(10))?;
    }
}

/// Returns the configuration of a system apart from all others on this machine, as another host
/// would be.
fn system(name: &str) -> Result<Config> {
    let mut config = Config::default();
    let prefix = format!("{name}_{}_", process::id());
    config.global.prefix = FileName::new(prefix.as_bytes()).map_err(|_| "a prefix")?;
    Ok(config)
}

fn fabric(monitor: &Monitor) -> String {
    let peers = monitor.stats().peers;
    peers
        .first()
        .map_or_else(|| "?".to_owned(), |peer| peer.fabric.to_string())
}
