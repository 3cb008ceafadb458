//! A ping-pong over a reliable connection between two queue pairs of this process.
//!
//! ```text
//! cargo run -p ibex-verbs --features fake --example rc_pingpong
//! cargo run -p ibex-verbs --features libibverbs --example rc_pingpong
//! ```
//!
//! The first runs over a device made of memory, the second over this machine's first device. Two
//! processes would send each other their endpoints over a connection of their own.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

#[cfg(not(feature = "libibverbs"))]
use ibex_verbs::provider::fake::{FakeDevice, FakeProvider};
use ibex_verbs::{
    AnonymousMemory, CompletionKind, CompletionWait, ConnectionSettings, DEFAULT_DRAIN_TIMEOUT,
    Device, FirstSequence, LocalPort, MemoryRegion, Operation, ProtectionDomain, QueuePair,
    QueuePairBuilder, ReceiveRequest, RegionAccess, SendRequest, Teardown, VerbsError, Verdict,
    WorkCompletion, WorkId, provider::Provider,
};

const ROUNDS: u64 = 10_000;
const PORT: u8 = 1;
/// A message is a number, which comes from and arrives at these places of an end's memory.
const BYTES: usize = 8;
const OUT: usize = 0;
const IN: usize = 64;

/// An end of the connection.
struct End {
    pair: QueuePair,
    completions: CompletionWait,
    memory: MemoryRegion<AnonymousMemory>,
}

impl End {
    fn new(device: &Device) -> Result<Self, Box<dyn Error>> {
        let domain = ProtectionDomain::new(device)?;
        let completions = CompletionWait::open(device, 16)?;
        let pair = QueuePairBuilder::new(&domain, completions.queue())
            .send_requests(4)
            .receives(4, 1)
            .build(PORT, ConnectionSettings::default())?;
        let memory = AnonymousMemory::new(4096)?;
        Ok(Self {
            memory: MemoryRegion::register(&domain, memory, RegionAccess::RECEIVE)?,
            completions,
            pair,
        })
    }

    /// The number at a place, which the device may write at any time.
    fn number(&self, place: usize) -> &AtomicU64 {
        // SAFETY: both places are aligned, inside the memory and zeroed at first, and every
        // reference into it is to an atomic.
        unsafe { self.memory.base().add(place).cast().as_ref() }
    }

    /// Gives the device memory for the next message.
    fn post_receive(&mut self) -> Result<(), Box<dyn Error>> {
        let entries = [self.memory.entry(IN..IN + BYTES)];
        let id = WorkId::new(Operation::Receive, 0, 0);
        let mut batch = self.pair.receive_queue().expect("its own").batch();
        batch.push(&ReceiveRequest::new(id, &entries))?;
        batch.post()?;
        Ok(())
    }

    fn send(&mut self, number: u64) -> Result<(), Box<dyn Error>> {
        self.number(OUT).store(number, Ordering::Relaxed);
        let entries = [self.memory.entry(OUT..OUT + BYTES)];
        let id = WorkId::new(Operation::Send, 0, 0);
        let mut batch = self.pair.send_batch();
        batch.push(&SendRequest::send(id, &entries).signaled())?;
        batch.post()?;
        Ok(())
    }

    /// Sleeps until a message has come, and posts a receive for the next.
    fn receive(&mut self) -> Result<u64, Box<dyn Error>> {
        let mut has_come = false;
        while !has_come {
            let mut room = [WorkCompletion::EMPTY; 4];
            for completion in self.completions.wait(&mut room, None)? {
                match completion.outcome()?.kind {
                    CompletionKind::Receive => has_come = true,
                    _ => self.pair.retire_sends(1),
                }
            }
        }
        self.pair.receive_queue().expect("its own").retire(1);
        let number = self.number(IN).load(Ordering::Relaxed);
        self.post_receive()?;
        Ok(number)
    }

    /// Ends the connection, and waits until nothing of it is outstanding.
    fn close(mut self) -> Result<Verdict, VerbsError> {
        let mut teardown = Teardown::begin(self.pair, 0, Instant::now(), DEFAULT_DRAIN_TIMEOUT);
        while teardown.verdict(Instant::now()) == Verdict::Draining {
            let mut room = [WorkCompletion::EMPTY; 4];
            let deadline = Some(teardown.deadline());
            for completion in self.completions.wait(&mut room, deadline)? {
                teardown.handle_completion(completion);
            }
        }
        Ok(teardown.verdict(Instant::now()))
    }
}

fn provider() -> Result<Arc<dyn Provider>, VerbsError> {
    #[cfg(feature = "libibverbs")]
    return Ok(Arc::new(ibex_verbs::provider::Libibverbs::load()?));
    #[cfg(not(feature = "libibverbs"))]
    Ok(FakeProvider::new(vec![FakeDevice::soft_roce("fake0", 1, [192, 0, 2, 1])]).provider())
}

fn main() -> Result<(), Box<dyn Error>> {
    let provider = provider()?;
    let listed = provider.devices()?;
    let first = listed.first().ok_or("there is no RDMA device")?;
    let device = Device::open(&provider, &first.name)?;
    let (mut one, mut other) = (End::new(&device)?, End::new(&device)?);
    one.post_receive()?;
    other.post_receive()?;

    let local = LocalPort::with_gid(&device, PORT, |_| true)?;
    let sequences = [1, 2].map(FirstSequence::from_random);
    let one_is = one.pair.endpoint(sequences[0], &local);
    let other_is = other.pair.endpoint(sequences[1], &local);
    one.pair.connect(sequences[0], local, other_is)?;
    other.pair.connect(sequences[1], local, one_is)?;

    let start = Instant::now();
    for round in 0..ROUNDS {
        one.send(round)?;
        let ping = other.receive()?;
        other.send(ping + 1)?;
        assert_eq!(one.receive()?, round + 1);
    }
    let each = start.elapsed() / ROUNDS as u32;
    println!("{ROUNDS} round trips over {}, {each:?} each", device.name());
    println!("the ends are {:?} and {:?}", one.close()?, other.close()?);
    Ok(())
}
