//! A codec of the program's own, for messages whose layout others have fixed.
//!
//! Feeds of market data, sensors and firmware come in structs of fixed width and byte order. Here a
//! trade travels as 20 bytes of big-endian fields. A receiver gets exactly these bytes from
//! [`Message::bytes`](ibex::Message::bytes).
//!
//! Run it: `cargo run --release --example custom_codec`. Both nodes live in one process, since only
//! the codec matters here.

use std::{error::Error, thread};

use ibex::{
    Codec, Node,
    codec::{EncodeError, Invalid, MIN_ALIGNMENT, SchemaInfo, SlotWriter},
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// A trade as the program sees it. The derive macro generates the schema that both ends compare.
#[derive(Clone, Copy, Debug, PartialEq, ibex::Schema)]
struct Trade {
    instrument: u64,
    price: i64, // in ten thousandths
    size: u32,
}

/// The codec: a type that names the format and has no values. Fields are big-endian, in the order
/// of the struct.
enum BigEndian {}

/// The bytes of a trade.
const TRADE_BYTES: usize = 20;

impl Codec<Trade> for BigEndian {
    /// A received message dereferences to this.
    type View = Trade;
    /// The value kept beside the message's bytes, decoded once because readers want native numbers.
    /// A codec whose messages are read in place keeps `()`.
    type Held = Trade;

    fn alignment() -> usize {
        MIN_ALIGNMENT
    }

    /// Names the format and its structure. If the peer's differ in either, the channel does not
    /// open.
    fn schema() -> SchemaInfo {
        SchemaInfo::of::<Trade>("example/big-endian", &[])
    }

    /// Returns the size ahead of encoding, so that enough room is reserved at the first attempt.
    fn size(_: &Trade) -> Option<usize> {
        Some(TRADE_BYTES)
    }

    /// Writes into the memory that is sent from. If a write does not fit, `?` returns the overflow,
    /// and ibex calls this function again with more room.
    fn encode(trade: &Trade, slot: &mut SlotWriter<'_>) -> std::result::Result<(), EncodeError> {
        slot.write(&trade.instrument.to_be_bytes())?;
        slot.write(&trade.price.to_be_bytes())?;
        slot.write(&trade.size.to_be_bytes())?;
        Ok(())
    }

    /// Decodes a peer's bytes, which may be anything, or returns an error that says why they are no
    /// trade.
    fn open(payload: &[u8]) -> std::result::Result<Trade, Invalid> {
        let Ok(bytes) = <&[u8; TRADE_BYTES]>::try_from(payload) else {
            let length = payload.len();
            return Err(Invalid::new(format!(
                "a trade has {TRADE_BYTES} bytes, got {length}"
            )));
        };
        Ok(Trade {
            instrument: u64::from_be_bytes(field(bytes, 0)),
            price: i64::from_be_bytes(field(bytes, 8)),
            size: u32::from_be_bytes(field(bytes, 16)),
        })
    }

    /// Returns the decoded trade. (The function is unsafe to call because another codec's view may
    /// rely on checks that its `open` made.)
    unsafe fn view<'a>(trade: &'a Trade, _: &'a [u8]) -> &'a Trade {
        trade
    }
}

/// Returns the `N` bytes from offset `at` on.
fn field<const N: usize>(bytes: &[u8; TRADE_BYTES], at: usize) -> [u8; N] {
    std::array::from_fn(|place| bytes[at + place])
}

const TRADES: u64 = 1000;

/// Returns trade `number` of the series.
fn trade(number: u64) -> Trade {
    Trade {
        instrument: number % 7,
        price: 10_000 - 3 * number as i64,
        size: 100,
    }
}

fn receive(node: Node) -> Result<i64> {
    let peer = node.accept()?;
    let mut trades = peer.channel("trades").codec::<BigEndian>().receiver()?;
    let (mut number, mut turnover) = (0, 0);
    while let Some(message) = trades.next()? {
        number += 1;
        if *message != trade(number) {
            return Err(format!("trade {number} came as {message:?}").into());
        }
        turnover += message.price * i64::from(message.size);
        message.ack();
    }
    Ok(turnover)
}

fn main() -> Result<()> {
    let listener = Node::listen("127.0.0.1:0")?;
    let address = listener.local_addr().ok_or("it listens")?;
    let receiver = thread::spawn(move || receive(listener));

    let node = Node::client()?;
    let peer = node.connect(address)?;
    let mut trades = peer.channel("trades").codec::<BigEndian>().sender()?;
    let mut last = 0;
    for number in 1..=TRADES {
        last = trades.send(&trade(number))?;
    }
    trades.wait_acked(last)?;
    trades.close()?;

    let turnover = receiver.join().map_err(|_| "the receiver panicked")??;
    println!("{TRADES} trades of {TRADE_BYTES} bytes, acknowledged; turnover {turnover}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use super::*;

    #[test]
    fn the_layout_is_the_one_that_was_fixed() {
        let mut memory = [MaybeUninit::uninit(); 64];
        let mut slot = SlotWriter::new(&mut memory);
        let trade = Trade {
            instrument: 1,
            price: -2,
            size: 3,
        };
        BigEndian::encode(&trade, &mut slot).unwrap();
        let fixed = b"\0\0\0\0\0\0\0\x01\xff\xff\xff\xff\xff\xff\xff\xfe\0\0\0\x03";
        assert_eq!(slot.written(), fixed);
        assert_eq!(BigEndian::open(fixed).unwrap(), trade);
    }

    #[test]
    fn bytes_of_another_length_are_no_trade() {
        let error = BigEndian::open(&[0; 19]).unwrap_err().to_string();
        assert_eq!(error, "a trade has 20 bytes, got 19");
    }
}
