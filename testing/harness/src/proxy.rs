//! A proxy between the ends of connections, which passes bytes on or harms them. Each connection
//! has a thread. Its buffers are small, so that a waiting end is noticed.
#![forbid(unsafe_code)]

use std::{
    collections::BTreeSet,
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::sockopt::set_socket_linger,
};

use crate::draw::Draw;

/// A fault of a whole connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Harm {
    /// Resets the connection at both ends.
    Reset,
    /// Ends the connection at both ends.
    Cut,
    /// Holds all bytes up for a while.
    Stall,
}

/// All kinds of harm.
pub const HARMS: [Harm; 3] = [Harm::Reset, Harm::Cut, Harm::Stall];

/// A fault of bytes on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Damage {
    /// Flips a bit.
    Flip,
    /// Loses some bytes.
    Drop,
    /// Repeats some bytes.
    Double,
    /// Swaps two bytes that differ.
    Swap,
}

/// All kinds of damage.
pub const DAMAGES: [Damage; 4] = [Damage::Flip, Damage::Drop, Damage::Double, Damage::Swap];

/// An order to damage bytes of a connection.
#[derive(Clone, Debug)]
struct Order {
    connection: u64,
    damage: Damage,
    is_back: bool,
    /// The number of bytes to pass first.
    after: u64,
    draw: Draw,
}

/// The place at which to harm a connection: before byte `at` of a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Plan {
    harm: Harm,
    is_back: bool,
    at: u64,
}

/// A proxy for one address.
pub struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
}

struct Shared {
    target: Mutex<SocketAddr>,
    /// Plans for new connections; `None` leaves them alone.
    plans: Mutex<Option<Plans>>,
    /// Orders to existing connections, each taken by one of them.
    orders: Mutex<Vec<(Harm, Duration)>>,
    harmed: [AtomicU64; HARMS.len()],
    connections: AtomicU64,
    /// The number of the newest connection.
    newest: AtomicU64,
    damages: Mutex<Vec<Order>>,
    damaged: [AtomicU64; DAMAGES.len()],
    /// Damages one byte in this many, of each direction; 0 damages none.
    one_in: [AtomicU64; 2],
}

/// Plans to harm each of the first bytes of both directions in each way, in an order that follows
/// from a seed, repeatedly.
struct Plans {
    all: Vec<Plan>,
    next: usize,
    done: BTreeSet<Plan>,
}

impl Proxy {
    /// Starts a proxy on loopback for connections to `target`.
    pub fn start(target: SocketAddr) -> io::Result<Self> {
        Self::with_plans(target, None)
    }

    /// Starts a proxy that harms each connection once, within the first `bytes`.
    pub fn at_every_byte(target: SocketAddr, bytes: u64, draw: &mut Draw) -> io::Result<Self> {
        let mut all = Vec::new();
        for at in 0..bytes {
            for is_back in [false, true] {
                all.extend(HARMS.map(|harm| Plan { harm, is_back, at }));
            }
        }
        draw.shuffle(&mut all);
        let plans = Plans {
            all,
            next: 0,
            done: BTreeSet::new(),
        };
        Self::with_plans(target, Some(plans))
    }

    fn with_plans(target: SocketAddr, plans: Option<Plans>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            plans: Mutex::new(plans),
            orders: Mutex::default(),
            harmed: Default::default(),
            connections: AtomicU64::new(0),
            newest: AtomicU64::new(0),
            damages: Mutex::default(),
            damaged: Default::default(),
            one_in: Default::default(),
        });
        let accepting = shared.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = accepting.clone();
                // An error ends the connection, which is one purpose of this proxy.
                thread::spawn(move || shared.pass_on(client));
            }
        });
        Ok(Self { shared, address })
    }

    /// Returns the address at which the proxy listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the target of connections that come from now on.
    pub fn set_target(&self, target: SocketAddr) {
        *self.shared.target.lock().expect("no panics") = target;
    }

    /// Harms one of the live connections. Returns false if there is none.
    pub fn harm_one(&self, harm: Harm, time: Duration) -> bool {
        if self.shared.connections.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.shared
            .orders
            .lock()
            .expect("no panics")
            .push((harm, time));
        true
    }

    /// Returns how often this harm was done.
    pub fn harmed(&self, harm: Harm) -> u64 {
        self.shared.harmed[harm as usize].load(Ordering::Relaxed)
    }

    /// Returns the number of the newest connection; the first is 1.
    pub fn newest(&self) -> u64 {
        self.shared.newest.load(Ordering::Acquire)
    }

    /// Damages a connection after `after` more bytes of one direction. Has no effect if the
    /// connection carries fewer.
    pub fn damage(
        &self,
        connection: u64,
        damage: Damage,
        is_back: bool,
        after: u64,
        draw: &mut Draw,
    ) {
        let order = Order {
            connection,
            damage,
            is_back,
            after,
            draw: Draw::new(draw.word()),
        };
        self.shared.damages.lock().expect("no panics").push(order);
    }

    /// Flips a bit in every `bytes`-th byte of one direction, on all connections.
    pub fn flip_one_in(&self, bytes: u64, is_back: bool) {
        self.shared.one_in[usize::from(is_back)].store(bytes, Ordering::Release);
    }

    /// Returns how often this damage was done.
    pub fn damaged(&self, damage: Damage) -> u64 {
        self.shared.damaged[damage as usize].load(Ordering::Acquire)
    }

    /// Returns the number of places that were harmed, and the number of places that connections
    /// reached.
    pub fn covered(&self) -> (usize, usize) {
        let plans = self.shared.plans.lock().expect("no panics");
        let Some(plans) = &*plans else {
            return (0, 0);
        };
        // Places behind the end of the longest connection cannot be harmed.
        let furthest = [false, true].map(|is_back| {
            let at = plans
                .done
                .iter()
                .filter(|plan| plan.is_back == is_back)
                .map(|plan| plan.at);
            at.max().unwrap_or(0)
        });
        let there_are = |plan: &&Plan| plan.at <= furthest[usize::from(plan.is_back)];
        (plans.done.len(), plans.all.iter().filter(there_are).count())
    }
}

/// A direction of a connection.
struct Pipe<'a> {
    from: &'a TcpStream,
    to: &'a TcpStream,
    bytes: Vec<u8>,
    sent: usize,
    passed: u64,
    /// The byte that waits until the harm is done.
    barrier: Option<u64>,
    is_over: bool,
    /// The number of bytes read.
    read: u64,
    /// Damages to do, each with the byte before which it is due.
    damage: Vec<(u64, Order)>,
}

impl Shared {
    fn pass_on(&self, client: TcpStream) {
        let target = *self.target.lock().expect("no panics");
        let Ok(server) = TcpStream::connect(target) else {
            // Refuses the client as if nobody listened.
            let _ = set_socket_linger(&client, Some(Duration::ZERO));
            return;
        };
        let plan = self
            .plans
            .lock()
            .expect("no panics")
            .as_mut()
            .map(Plans::draw);
        self.connections.fetch_add(1, Ordering::Relaxed);
        let number = self.newest.fetch_add(1, Ordering::AcqRel) + 1;
        // An error of a connection ends that connection alone.
        let _ = self.shovel(number, &client, &server, plan);
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    fn shovel(
        &self,
        number: u64,
        client: &TcpStream,
        server: &TcpStream,
        plan: Option<Plan>,
    ) -> io::Result<()> {
        for socket in [client, server] {
            socket.set_nonblocking(true)?;
            socket.set_nodelay(true)?;
        }
        let barrier = |is_back| {
            plan.filter(|plan| plan.is_back == is_back)
                .map(|plan| plan.at)
        };
        let mut pipes = [
            Pipe::new(client, server, barrier(false)),
            Pipe::new(server, client, barrier(true)),
        ];
        while !pipes.iter().all(|pipe| pipe.is_over) {
            let mut orders = self.damages.lock().expect("no panics");
            orders.retain(|order| {
                if order.connection == number {
                    let pipe = &mut pipes[usize::from(order.is_back)];
                    pipe.damage.push((pipe.read + order.after, order.clone()));
                }
                // Discard orders for connections that are gone.
                order.connection > number
            });
            drop(orders);
            for (pipe, one_in) in pipes.iter_mut().zip(&self.one_in) {
                if pipe.shovel(&self.damaged, one_in.load(Ordering::Acquire))? {
                    let plan = plan.expect("it has a barrier");
                    self.plans
                        .lock()
                        .expect("no panics")
                        .as_mut()
                        .map(|plans| plans.done.insert(plan));
                    if !self.harm(plan.harm, PLANNED_STALL, [client, server]) {
                        return Ok(());
                    }
                }
            }
            let order = self.orders.lock().expect("no panics").pop();
            if let Some((harm, time)) = order
                && !self.harm(harm, time, [client, server])
            {
                return Ok(());
            }
            wait(&pipes)?;
        }
        Ok(())
    }

    /// Harms the connection. Returns whether it goes on.
    fn harm(&self, harm: Harm, time: Duration, sockets: [&TcpStream; 2]) -> bool {
        self.harmed[harm as usize].fetch_add(1, Ordering::Relaxed);
        match harm {
            Harm::Stall => {
                thread::sleep(time);
                return true;
            }
            // Closing such a socket resets its connection (socket(7), SO_LINGER).
            Harm::Reset => {
                for socket in sockets {
                    let _ = set_socket_linger(socket, Some(Duration::ZERO));
                }
            }
            Harm::Cut => {
                for socket in sockets {
                    let _ = socket.shutdown(Shutdown::Both);
                }
            }
        }
        false
    }
}

impl Plans {
    fn draw(&mut self) -> Plan {
        let plan = self.all[self.next];
        self.next = (self.next + 1) % self.all.len();
        plan
    }
}

impl<'a> Pipe<'a> {
    fn new(from: &'a TcpStream, to: &'a TcpStream, barrier: Option<u64>) -> Self {
        Self {
            from,
            to,
            bytes: Vec::new(),
            sent: 0,
            passed: 0,
            barrier,
            is_over: false,
            read: 0,
            damage: Vec::new(),
        }
    }

    fn is_empty(&self) -> bool {
        self.sent == self.bytes.len()
    }

    /// Flips a bit in every `bytes`-th of the bytes just read.
    fn flip_one_in(&mut self, bytes: u64, flipped: &AtomicU64) {
        let start = self.read;
        for (at, byte) in (start + 1..).zip(&mut self.bytes) {
            if bytes != 0 && at % bytes == 0 {
                *byte ^= 1;
                flipped.fetch_add(1, Ordering::AcqRel);
            }
        }
    }

    /// Does the damages that are due in the bytes just read.
    fn damage_bytes(&mut self, damaged: &[AtomicU64]) {
        let start = self.read;
        self.read += self.bytes.len() as u64;
        let end = self.read;
        let bytes = &mut self.bytes;
        self.damage.retain_mut(|(at, order)| {
            if *at >= end {
                return true;
            }
            // Earlier damages may have shortened these bytes.
            let place = ((*at - start) as usize).min(bytes.len().saturating_sub(1));
            if bytes.is_empty() || !order.damage.befall(bytes, place, &mut order.draw) {
                // Damages the next bytes instead.
                *at = end;
                return true;
            }
            damaged[order.damage as usize].fetch_add(1, Ordering::AcqRel);
            false
        });
    }

    /// Passes on the bytes that have arrived. Returns whether it reached the barrier, which is
    /// removed.
    fn shovel(&mut self, damaged: &[AtomicU64], one_in: u64) -> io::Result<bool> {
        if self.is_over {
            return Ok(false);
        }
        if self.is_empty() {
            self.bytes.resize(BUFFER_BYTES, 0);
            self.sent = 0;
            let read = self.from.read(&mut self.bytes);
            self.bytes.truncate(*read.as_ref().unwrap_or(&0));
            self.flip_one_in(one_in, &damaged[Damage::Flip as usize]);
            self.damage_bytes(damaged);
            match read {
                Ok(0) => {
                    self.is_over = true;
                    // The other end may have closed already.
                    let _ = self.to.shutdown(Shutdown::Write);
                }
                Ok(_) => {}
                Err(error) if is_later(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let mut end = self.bytes.len();
        if let Some(barrier) = self.barrier {
            end = end.min(self.sent + (barrier - self.passed) as usize);
        }
        while self.sent < end {
            match self.to.write(&self.bytes[self.sent..end]) {
                Ok(written) => {
                    self.sent += written;
                    self.passed += written as u64;
                }
                Err(error) if is_later(&error) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(self
            .barrier
            .take_if(|barrier| *barrier == self.passed && end > 0)
            .is_some())
    }
}

impl Damage {
    /// Does the damage at byte `at`. Returns false if it is not possible there.
    fn befall(self, bytes: &mut Vec<u8>, at: usize, draw: &mut Draw) -> bool {
        let run = |draw: &mut Draw| match draw.once_in(4) {
            true => draw.of(1..RUN_BYTES) as usize,
            false => 1,
        };
        match self {
            Damage::Flip => bytes[at] ^= 1 << draw.of(0..8),
            Damage::Drop => {
                let end = (at + run(draw)).min(bytes.len());
                bytes.drain(at..end);
            }
            Damage::Double => {
                let end = (at + run(draw)).min(bytes.len());
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
            Damage::Swap => {
                let far = draw.of(1..RUN_BYTES) as usize;
                let mut others = (at + 1..bytes.len()).skip(far - 1).chain(0..at);
                match others.find(|other| bytes[*other] != bytes[at]) {
                    Some(other) => bytes.swap(at, other),
                    None => return false,
                }
            }
        }
        true
    }
}

fn is_later(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// Waits until a socket is ready, but not for long: orders do not wake this thread.
fn wait(pipes: &[Pipe<'_>; 2]) -> io::Result<()> {
    let open = pipes.iter().filter(|pipe| !pipe.is_over);
    let mut fds: Vec<_> = open
        .map(|pipe| match pipe.is_empty() {
            true => PollFd::from_borrowed_fd(pipe.from.as_fd(), PollFlags::IN),
            false => PollFd::from_borrowed_fd(pipe.to.as_fd(), PollFlags::OUT),
        })
        .collect();
    let timeout = Timespec::try_from(LOOK).expect("it is short");
    poll(&mut fds, Some(&timeout))?;
    Ok(())
}

/// The most bytes that are lost or repeated at once.
const RUN_BYTES: u64 = 64;
const BUFFER_BYTES: usize = 64 << 10;
const LOOK: Duration = Duration::from_millis(20);
const PLANNED_STALL: Duration = Duration::from_millis(20);
