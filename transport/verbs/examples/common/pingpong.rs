//! A ping-pong with checked messages, over any kind of queue pair.
//!
//! Two processes meet over TCP, as rdma-core's `ibv_*_pingpong` do, and either may be one of those.
//! Without the feature `libibverbs` both ends are threads of this process.
//!
//! Both send from the memory that they receive into, so rdma-core's programs send back what they got.
//! An end of these examples adds one to each byte, and checks that each message is its own last one
//! as it was, or with one added.

use std::env;
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use ibex_verbs::{
    AnonymousMemory, CompletionQueue, CompletionWait, ConnectionSettings, Device, FirstSequence,
    GlobalHeader, LocalPort, MemoryRegion, Operation, ProtectionDomain, RECEIVE_BATCH,
    ReceiveQueue, ReceiveRequest, RegionAccess, RemoteEndpoint, WorkCompletion, WorkId,
    provider::Provider,
};

use super::{
    Outcome,
    check::Check,
    exchange, open,
    options::{Options, USAGE},
};

/// What all kinds of queue pairs need.
pub(crate) struct Table {
    pub(crate) options: Options,
    pub(crate) device: Device,
    pub(crate) domain: ProtectionDomain,
    pub(crate) memory: MemoryRegion<AnonymousMemory>,
}

/// The queue pairs of one end.
pub(crate) trait Pairs: Sized {
    /// The addresses that are exchanged; those beyond the queue pairs' are zeros.
    const ADDRESSES: usize = 1;
    /// False if several messages are on their way at a time, which share one place in memory.
    const CHANGES: bool = true;

    fn new(table: &Table, completions: &CompletionQueue) -> Outcome<Self>;
    /// Returns what the peer has to know.
    fn endpoints(&self, first: FirstSequence, local: &LocalPort) -> Vec<RemoteEndpoint>;
    fn connect(
        &mut self,
        table: &Table,
        first: FirstSequence,
        local: LocalPort,
        peers: &[RemoteEndpoint],
    ) -> Outcome;
    fn post_receives(&mut self, table: &Table, count: u32) -> Outcome;
    /// Sends the message by one of the queue pairs, with a completion.
    fn post_send(&mut self, table: &Table, index: usize) -> Outcome;
    /// Notes that a request has completed.
    fn retire(&mut self, index: usize, operation: Operation);
    /// Returns which of the queue pairs has that number.
    fn index_of(&self, _number: u32) -> usize {
        0
    }
}

impl Table {
    fn new(provider: &Arc<dyn Provider>, options: Options) -> Outcome<Self> {
        let device = open(provider, options.device.as_deref())?;
        let domain = ProtectionDomain::new(&device)?;
        let bytes = options.bytes;
        let memory = AnonymousMemory::new(GlobalHeader::BYTES + bytes)
            .map_err(|error| format!("no memory for a message of --size {bytes}: {error}"))?;
        Ok(Self {
            memory: MemoryRegion::register(&domain, memory, RegionAccess::RECEIVE)?,
            options,
            device,
            domain,
        })
    }

    /// The place of the message, behind the room for a datagram's route.
    pub(crate) fn message(&self) -> Range<usize> {
        GlobalHeader::BYTES..GlobalHeader::BYTES + self.options.bytes
    }

    pub(crate) fn settings(&self) -> Outcome<ConnectionSettings> {
        let settings = ConnectionSettings::default().path_mtu(self.options.mtu);
        Ok(settings.service_level(self.options.service_level)?)
    }

    /// Posts receives for the message to a queue.
    pub(crate) fn post_receives(&self, queue: &mut ReceiveQueue, count: u32) -> Outcome {
        let entries = [self.memory.entry(self.message())];
        let mut left = count as usize;
        while left > 0 {
            let mut batch = queue.batch();
            for _ in 0..left.min(RECEIVE_BATCH) {
                batch.push(&ReceiveRequest::new(RECEIVE, &entries))?;
            }
            left -= batch.post()? as usize;
        }
        Ok(())
    }

    /// Returns the message as it is.
    pub(crate) fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.options.bytes];
        let place = self
            .memory
            .base()
            .as_ptr()
            .wrapping_add(self.message().start);
        // SAFETY: in bounds. A message has arrived and the next is an answer to what is not sent yet;
        // where there are several, all have the same bytes.
        unsafe { place.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        bytes
    }

    /// Writes the message.
    pub(crate) fn write(&self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.options.bytes);
        let place = self
            .memory
            .base()
            .as_ptr()
            .wrapping_add(self.message().start);
        // SAFETY: as in `read`.
        unsafe { place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
}

pub(crate) const RECEIVE: WorkId = WorkId::new(Operation::Receive, 0, 0);
pub(crate) const SEND: WorkId = WorkId::new(Operation::Send, 0, 0);

/// Runs an example, and prints what went wrong.
pub(crate) fn main<P: Pairs>(defaults: Options) -> ExitCode {
    let arguments: Vec<_> = env::args().skip(1).collect();
    if arguments.iter().any(|one| one == "-h" || one == "--help") {
        print!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let options = defaults.parse(arguments.into_iter());
    match options.and_then(|options| run::<P>(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs one end, or, over a device made of memory, both.
pub(crate) fn run<P: Pairs>(options: &Options) -> Outcome {
    let is_fake = cfg!(not(feature = "libibverbs"));
    if let (Some(host), true) = (&options.host, is_fake) {
        return Err(format!(
            "HOST needs the feature libibverbs: this build has only a device made of memory, which \
             does not reach {host}; add `--features libibverbs`, or leave out HOST"
        )
        .into());
    }
    let provider = super::provider()?;
    if is_fake {
        return both::<P>(&provider, options);
    }
    let port = options.port;
    let stream = match &options.host {
        Some(host) => TcpStream::connect((host.as_str(), port))
            .map_err(|error| format!("cannot connect to the server at {host}:{port}: {error}"))?,
        None => {
            let listener = TcpListener::bind(("::", port)).map_err(|error| {
                format!("cannot wait for a client at port {port}: {error}; see --port")
            })?;
            listener.accept()?.0
        }
    };
    end::<P>(&provider, options, stream)
}

/// Runs both ends in this process.
pub(crate) fn both<P: Pairs>(provider: &Arc<dyn Provider>, options: &Options) -> Outcome {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let address = listener.local_addr()?;
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            let stream = listener.accept()?.0;
            end::<P>(provider, options, stream)
        });
        let client = Options {
            host: Some(address.ip().to_string()),
            ..options.clone()
        };
        end::<P>(provider, &client, TcpStream::connect(address)?)?;
        server.join().expect("the server's thread did not panic")
    })
}

fn end<P: Pairs>(
    provider: &Arc<dyn Provider>,
    options: &Options,
    mut stream: TcpStream,
) -> Outcome {
    let table = Table::new(provider, options.clone())?;
    let depth = options.receives;
    let entries = depth + options.queue_pairs as u32 + 2;
    let mut completions = CompletionWait::open(&table.device, entries)?;
    let mut pairs = P::new(&table, completions.queue())?;
    pairs.post_receives(&table, depth)?;

    let is_meant = |index| options.gid_index.is_none_or(|wanted| wanted == index);
    let local = LocalPort::with_gid(&table.device, options.ib_port, |gid| is_meant(gid.index))?;
    let first = FirstSequence::from_random(std::process::id());
    let mut ours = pairs.endpoints(first, &local);
    let notified = ours.clone();
    let zeros = RemoteEndpoint {
        queue_pair: 0,
        first_sequence: FirstSequence::from_random(0),
        ..ours[0]
    };
    ours.resize(P::ADDRESSES, zeros);
    print_addresses("local", &notified);
    let is_client = options.host.is_some();
    if is_client {
        exchange::send(&mut stream, &ours)?;
    }
    let peers = exchange::receive(&mut stream, P::ADDRESSES, &local, options.mtu)?;
    print_addresses("remote", &peers[..notified.len()]);
    pairs.connect(&table, first, local, &peers)?;
    if is_client {
        exchange::send_done(&mut stream)?;
    } else {
        exchange::send(&mut stream, &ours)?;
        exchange::receive_done(&mut stream)?;
    }

    let start = Instant::now();
    let rounds = play(&table, &mut pairs, &mut completions, is_client)?;
    let each = start.elapsed() / u32::try_from(rounds.max(1))?;
    println!("{rounds} checked messages in each direction, {each:?} for both");
    Ok(())
}

fn print_addresses(whose: &str, addresses: &[RemoteEndpoint]) {
    for address in addresses {
        println!(
            "  {whose} address: LID {:#06x}, QPN {:#08x}, PSN {:#08x}, GID {}",
            address.lid,
            address.queue_pair,
            address.first_sequence.get(),
            address.gid
        );
    }
}

/// Exchanges all messages; returns how many.
fn play<P: Pairs>(
    table: &Table,
    pairs: &mut P,
    completions: &mut CompletionWait,
    is_client: bool,
) -> Outcome<u64> {
    let (rounds, depth) = (table.options.rounds, table.options.receives);
    let count = table.options.queue_pairs;
    let mut check = Check::new(P::CHANGES);
    // Of each queue pair, whether its send and its receive are awaited.
    let mut awaited = vec![[is_client, true]; count];
    if is_client {
        check.begin(table);
        (0..count).try_for_each(|index| pairs.post_send(table, index))?;
    }
    let (mut sent, mut received, mut posted) = (0, 0, depth);
    while sent < rounds || received < rounds {
        let mut room = [WorkCompletion::EMPTY; 16];
        for completion in completions.wait(&mut room, None)? {
            completion.outcome()?;
            let operation = completion.id().operation();
            let index = pairs.index_of(completion.queue_pair());
            pairs.retire(index, operation);
            if operation == Operation::Receive {
                received += 1;
                check.verify(table, received)?;
                posted -= 1;
                if posted as usize <= count {
                    pairs.post_receives(table, depth - posted)?;
                    posted = depth;
                }
                awaited[index][1] = false;
            } else {
                sent += 1;
                awaited[index][0] = false;
            }
            if sent < rounds && awaited[index] == [false; 2] {
                check.answer(table);
                pairs.post_send(table, index)?;
                awaited[index] = [true; 2];
            }
        }
    }
    Ok(received)
}
