//! A proxy between the ends of connections, which passes bytes on or harms them. Each connection
//! has a thread. Its buffers are small, so that a waiting end is noticed.
#![forbid(unsafe_code)]

use std::{
    collections::BTreeSet,
    fmt,
    io::{self, Read, Write},
    iter,
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd,
    sync::{
        Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{self, sockopt::set_socket_linger},
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

/// An order to lose whole reads of a connection's direction.
#[derive(Clone, Copy, Debug)]
struct Loss {
    connection: u64,
    is_back: bool,
    /// The number of bytes that pass before the loss.
    keep: usize,
    /// Reads still to be lost.
    reads: u64,
}

/// The place at which to harm a connection: before byte `at` of a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Plan {
    harm: Harm,
    is_back: bool,
    at: u64,
}

/// A proxy for one address. When it is dropped, its address refuses connections, and those that
/// exist go on.
pub struct Proxy {
    shared: Arc<Shared>,
    listener: Arc<TcpListener>,
    address: SocketAddr,
}

struct Shared {
    target: Mutex<SocketAddr>,
    /// Plans for new connections; `None` leaves them alone.
    plans: Mutex<Option<Plans>>,
    /// Orders to existing connections, each taken by one of them.
    orders: Mutex<Vec<(Harm, Duration)>>,
    harmed: [AtomicU64; HARMS.len()],
    live: Mutex<Live>,
    /// The number of the newest connection.
    newest: AtomicU64,
    damages: Mutex<Vec<Order>>,
    losses: Mutex<Vec<Loss>>,
    damaged: [AtomicU64; DAMAGES.len()],
    /// Damages one byte in this many, of each direction; 0 damages none.
    one_in: [AtomicU64; 2],
    /// Nothing passes, and nothing is closed.
    is_held: RwLock<bool>,
}

/// The connections that exist.
#[derive(Default)]
struct Live {
    ends: Vec<(u64, Arc<[TcpStream; 2]>)>,
    /// A new connection ends at once.
    is_cut_off: bool,
}

/// Plans to harm connections, each of which takes the next one, if there is one.
struct Plans {
    all: Vec<Plan>,
    next: Box<dyn Iterator<Item = Plan> + Send>,
    done: BTreeSet<Plan>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a proxy at {}", self.address)
    }
}

impl Proxy {
    /// Starts a proxy on loopback for connections to `target`.
    pub fn start(target: SocketAddr) -> io::Result<Self> {
        Self::with_plans(target, None)
    }

    /// Starts a proxy that harms the first connection before byte `at` of a direction, and no later
    /// one.
    pub fn at_byte(target: SocketAddr, harm: Harm, is_back: bool, at: u64) -> io::Result<Self> {
        let plan = Plan { harm, is_back, at };
        let plans = Plans {
            all: vec![plan],
            next: Box::new(iter::once(plan)),
            done: BTreeSet::new(),
        };
        Self::with_plans(target, Some(plans))
    }

    /// Starts a proxy that harms each connection once, within the first `bytes`: in each way before
    /// each byte of both directions, in an order that follows from a seed, repeatedly.
    pub fn at_every_byte(target: SocketAddr, bytes: u64, draw: &mut Draw) -> io::Result<Self> {
        let mut all = Vec::new();
        for at in 0..bytes {
            for is_back in [false, true] {
                all.extend(HARMS.map(|harm| Plan { harm, is_back, at }));
            }
        }
        draw.shuffle(&mut all);
        let plans = Plans {
            next: Box::new(all.clone().into_iter().cycle()),
            all,
            done: BTreeSet::new(),
        };
        Self::with_plans(target, Some(plans))
    }

    fn with_plans(target: SocketAddr, plans: Option<Plans>) -> io::Result<Self> {
        let listener = Arc::new(TcpListener::bind((HOST, 0))?);
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            plans: Mutex::new(plans),
            orders: Mutex::default(),
            harmed: Default::default(),
            live: Mutex::default(),
            newest: AtomicU64::new(0),
            damages: Mutex::default(),
            losses: Mutex::default(),
            damaged: Default::default(),
            one_in: Default::default(),
            is_held: RwLock::new(false),
        });
        let (accepting, knocks) = (shared.clone(), listener.clone());
        thread::spawn(move || {
            for client in knocks.incoming() {
                match client {
                    Ok(client) => {
                        let shared = accepting.clone();
                        thread::spawn(move || shared.pass_on(client));
                    }
                    // The socket listens no more (accept(2), EINVAL).
                    Err(error) if error.kind() == io::ErrorKind::InvalidInput => break,
                    Err(_) => {}
                }
            }
        });
        Ok(Self {
            shared,
            listener,
            address,
        })
    }

    /// Returns the address at which the proxy listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the target of connections that come from now on.
    pub fn set_target(&self, target: SocketAddr) {
        *self.shared.target.lock().expect("no panics") = target;
    }

    /// Lets nothing pass any more, as a network that is cut, or lets everything pass again. Meanwhile
    /// connections are accepted and reach the target, and none is closed. When this returns,
    /// everything that a connection had begun to pass on has passed.
    pub fn hold(&self, holds: bool) {
        *self.shared.is_held.write().expect("no panics") = holds;
    }

    /// Ends all connections at both ends. Later ones pass.
    pub fn cut(&self) {
        self.shared.live().cut();
    }

    /// Ends all connections at both ends, and each later one at once, until [`mend`](Self::mend).
    pub fn cut_off(&self) {
        self.shared.live().cut_off();
    }

    /// Lets later connections pass again.
    pub fn mend(&self) {
        self.shared.live().is_cut_off = false;
    }

    /// Ends all connections at both ends, and the proxy: its address refuses later ones.
    pub fn unplug(self) {
        let shared = self.shared.clone();
        drop(self);
        shared.live().cut_off();
    }

    /// Harms one of the live connections. Returns false if there is none.
    pub fn harm_one(&self, harm: Harm, time: Duration) -> bool {
        if self.shared.live().ends.is_empty() {
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

    /// Loses everything that the next `reads` reads of one direction bring, except for the first
    /// `keep` bytes. A read brings one write of an end, if the ends write seldom. Returns when the
    /// connection has taken the order, or at once if it is one to come.
    pub fn lose(&self, connection: u64, is_back: bool, keep: usize, reads: u64) {
        let loss = Loss {
            connection,
            is_back,
            keep,
            reads,
        };
        let losses = || self.shared.losses.lock().expect("no panics");
        losses().push(loss);
        while !losses().is_empty() && self.newest() == connection {
            thread::sleep(Duration::from_millis(1));
        }
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
    /// The bytes that still pass, and the number of reads to lose.
    loss: (usize, u64),
}

impl Shared {
    /// Waits while the proxy is held. It cannot be held again before the returned guard is dropped.
    fn let_go(&self) -> RwLockReadGuard<'_, bool> {
        loop {
            let is_held = self.is_held.read().expect("no panics");
            if !*is_held {
                return is_held;
            }
            drop(is_held);
            thread::sleep(LOOK);
        }
    }

    fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().expect("no panics")
    }

    fn pass_on(&self, client: TcpStream) {
        if self.live().is_cut_off {
            return;
        }
        let target = *self.target.lock().expect("no panics");
        let Ok(server) = TcpStream::connect(target) else {
            // Refuses the client as if nobody listened.
            let _let_go = self.let_go();
            let _ = set_socket_linger(&client, Some(Duration::ZERO));
            return;
        };
        let ends = Arc::new([client, server]);
        let mut live = self.live();
        if live.is_cut_off {
            return;
        }
        let number = self.newest.fetch_add(1, Ordering::AcqRel) + 1;
        live.ends.push((number, ends.clone()));
        drop(live);
        let plan = self
            .plans
            .lock()
            .expect("no panics")
            .as_mut()
            .and_then(|plans| plans.next.next());
        // An error of a connection ends that connection alone.
        let _ = self.shovel(number, &ends, plan);
        self.live().ends.retain(|(other, _)| *other != number);
    }

    fn shovel(
        &self,
        number: u64,
        [client, server]: &[TcpStream; 2],
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
            let let_go = self.let_go();
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
            let mut losses = self.losses.lock().expect("no panics");
            for loss in losses.extract_if(.., |loss| loss.connection == number) {
                pipes[usize::from(loss.is_back)].loss = (loss.keep, loss.reads);
            }
            drop(losses);
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
            drop(let_go);
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

impl Live {
    fn cut_off(&mut self) {
        self.is_cut_off = true;
        self.cut();
    }

    fn cut(&self) {
        for end in self.ends.iter().flat_map(|(_, ends)| &**ends) {
            // The other end may have closed already.
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Ends the thread that accepts.
        let _ = net::shutdown(&self.listener, net::Shutdown::Both);
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
            loss: (0, 0),
        }
    }

    fn is_empty(&self) -> bool {
        self.sent == self.bytes.len()
    }

    /// Flips a bit in every `bytes`-th of the bytes just read.
    fn flip_one_in(&mut self, bytes: u64, flipped: &AtomicU64) {
        if bytes == 0 {
            return;
        }
        let first = (bytes - 1 - self.read % bytes) as usize;
        for byte in self.bytes.iter_mut().skip(first).step_by(bytes as usize) {
            *byte ^= 1;
            flipped.fetch_add(1, Ordering::AcqRel);
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
            // No step goes through all bytes, which takes milliseconds in an unoptimized build.
            let mut buffer = [0; BUFFER_BYTES];
            let read = self.from.read(&mut buffer);
            let bytes = *read.as_ref().unwrap_or(&0);
            self.bytes.clear();
            self.bytes.extend_from_slice(&buffer[..bytes]);
            self.sent = 0;
            self.flip_one_in(one_in, &damaged[Damage::Flip as usize]);
            self.damage_bytes(damaged);
            self.lose_bytes();
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
        let has_next = !self.is_empty();
        Ok(self
            .barrier
            .take_if(|barrier| *barrier == self.passed && has_next)
            .is_some())
    }
}

impl Pipe<'_> {
    /// Loses the bytes that were read, if they are to be lost.
    fn lose_bytes(&mut self) {
        let (keep, reads) = &mut self.loss;
        if *reads > 0 && !self.bytes.is_empty() {
            *reads -= 1;
            self.bytes.truncate(*keep);
            *keep -= self.bytes.len();
        }
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
/// The address of proxies, which may use thousands of ports. Listeners of tests, which may need
/// their ports again, have another one.
const HOST: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const BUFFER_BYTES: usize = 64 << 10;
const LOOK: Duration = Duration::from_millis(20);
const PLANNED_STALL: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_proxy_passes_nothing_and_closes_nothing() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let proxy = Proxy::start(listener.local_addr().unwrap()).unwrap();
        let mut near = TcpStream::connect(proxy.address()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        let mut byte = [0];
        near.write_all(b"a").unwrap();
        far.read_exact(&mut byte).unwrap();

        proxy.hold(true);
        near.write_all(b"b").unwrap();
        let mut late = TcpStream::connect(proxy.address()).unwrap();
        late.write_all(b"c").unwrap();
        let nothing = |far: &mut TcpStream| {
            far.set_read_timeout(Some(5 * LOOK)).unwrap();
            let error = far.read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            far.set_read_timeout(None).unwrap();
        };
        let (mut late_far, _) = listener.accept().unwrap();
        nothing(&mut far);
        nothing(&mut late_far);

        proxy.hold(false);
        far.read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"b");
        late_far.read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"c");
    }

    #[test]
    fn a_connection_is_harmed_before_its_byte_and_later_ones_are_not() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        for at in [0, 1, 3] {
            let target = listener.local_addr().unwrap();
            let proxy = Proxy::at_byte(target, Harm::Cut, false, at).unwrap();
            for passes in [at as usize, 4] {
                let mut near = TcpStream::connect(proxy.address()).unwrap();
                near.write_all(b"abcd").unwrap();
                near.shutdown(Shutdown::Write).unwrap();
                let mut came = Vec::new();
                listener.accept().unwrap().0.read_to_end(&mut came).unwrap();
                assert_eq!(came, b"abcd"[..passes]);
            }
            assert_eq!(proxy.harmed(Harm::Cut), 1);
        }
    }

    #[test]
    fn a_proxy_that_is_cut_off_ends_connections_and_an_unplugged_one_refuses_them() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let proxy = Proxy::start(listener.local_addr().unwrap()).unwrap();
        let address = proxy.address();
        let meet = || {
            let near = TcpStream::connect(address).unwrap();
            (near, listener.accept().unwrap().0)
        };
        let is_over = |(near, far): &(TcpStream, TcpStream)| {
            [near, far].map(|mut end| assert_eq!(end.read(&mut [0]).unwrap(), 0))
        };
        let first = meet();
        while proxy.newest() < 1 {
            thread::yield_now();
        }
        proxy.cut_off();
        is_over(&first);
        let mut refused = TcpStream::connect(address).unwrap();
        assert_eq!(refused.read(&mut [0]).unwrap(), 0);
        proxy.mend();
        let second = meet();
        while proxy.newest() < 2 {
            thread::yield_now();
        }
        proxy.unplug();
        is_over(&second);
        let error = TcpStream::connect(address).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
