//! Peers that do not speak as ibex does: their messages are dropped and counted, and harm only
//! themselves.

use ibex::prelude::*;
use ibex::{
    Codec, Rkyv, Schema,
    codec::{Describer, EncodeError, Invalid, SchemaInfo, SlotWriter},
};
use ibex_harness::draw::Draw;

use super::*;

/// Bytes under the fingerprint of calls.
#[derive(Clone)]
enum Forged {}

struct CallSchema;

impl Schema for CallSchema {
    fn describe(to: &mut Describer) {
        to.compound("Call", &[describe::<Question>, describe::<Answer>]);
    }
}

fn describe<T>(to: &mut Describer)
where
    Rkyv: Codec<T>,
{
    to.atom(&<Rkyv as Codec<T>>::schema().fingerprint.to_string());
}

impl Codec<[u8]> for Forged {
    type View = [u8];
    type Held = ();

    fn alignment() -> usize {
        16
    }

    fn schema() -> SchemaInfo {
        SchemaInfo::of::<CallSchema>("ibex/call 1", &[])
    }

    fn size(value: &[u8]) -> Option<usize> {
        Some(value.len())
    }

    fn encode(value: &[u8], slot: &mut SlotWriter<'_>) -> Result<(), EncodeError> {
        Ok(slot.write(value)?)
    }

    fn open(_: &[u8]) -> Result<(), Invalid> {
        Ok(())
    }

    unsafe fn view<'a>((): &'a (), payload: &'a [u8]) -> &'a [u8] {
        payload
    }
}

fn frame(number: u32, generation: u32, kind: u8, count: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(number.to_le_bytes());
    bytes.extend(generation.to_le_bytes());
    bytes.push(kind);
    bytes.extend(count.to_le_bytes());
    bytes.extend([0xff; 5]);
    bytes
}

/// Returns frames of every kind with ids at the edges, short frames, and bytes that look random.
fn nonsense() -> Vec<Vec<u8>> {
    let mut frames: Vec<_> = (0..16).map(|length| vec![1; length]).collect();
    for kind in 0..=u8::MAX {
        for number in [0, 1, 1023, 1024, u32::MAX] {
            frames.push(frame(number, 7, kind, u16::MAX));
            frames.push(frame(number, u32::MAX, kind, 0));
        }
    }
    let mut draw = Draw::new(1);
    for length in 0..2_000 {
        let mut bytes = vec![0; length % 90];
        draw.fill(&mut bytes);
        if let Some(kind) = bytes.get_mut(8) {
            *kind %= 14;
        }
        frames.push(bytes);
    }
    frames
}

#[test]
fn a_hostile_caller_harms_nobody_else() {
    for cell in CELLS {
        eprintln!("{cell:?}");
        let there = builder(cell).listen("127.0.0.1:0").build().unwrap();
        let address = there.local_addr().unwrap();
        let serving = thread::spawn(move || {
            let mut service = there.service::<Question, Answer>("echo").unwrap();
            // A few of the hostile caller's requests happen to be valid.
            let request = loop {
                let request = service.next().unwrap().unwrap();
                if request.number == 5 {
                    break request;
                }
            };
            let text = String::new();
            request.reply(&Answer { number: 5, text }).unwrap();
            assert_ne!(service.strays(), 0);
            assert_ne!(service.refused(), 0);
            assert_eq!(service.in_progress(), 0);
            let _ = there.close(FOR_EVER);
        });
        let here = builder(cell).build().unwrap();
        let hostile = here.connect(address).unwrap();
        let channel = hostile.channel("echo").codec::<Forged>();
        let back = hostile.channel("echo/replies").codec::<Forged>();
        let mut requests = channel.sender::<[u8]>().unwrap();
        let mut replies = back.receiver::<[u8]>().unwrap();
        for frame in nonsense() {
            requests.send(&frame).unwrap();
            while replies.try_recv().is_ok() {}
        }
        requests.flush().unwrap();
        let honest = here.connect(address).unwrap();
        let echo = honest.caller::<Question, Answer>("echo").unwrap();
        assert_eq!(echo.call(&question(5)).unwrap().number, 5);
        let _ = here.close(FOR_EVER);
        serving.join().unwrap();
    }
}

#[test]
fn a_hostile_service_is_counted_and_its_calls_end() {
    in_each_cell(
        |_, peer| {
            let echo = peer.caller::<Question, Answer>("echo").unwrap();
            // The calls may end in any way, but they end with an error.
            echo.call(&question(1)).unwrap_err();
            let mut stream = echo.stream(&question(2)).unwrap();
            while let Ok(Some(_)) = stream.next() {}
            assert_ne!(echo.strays(), 0);
            drop(stream);
            assert_eq!(echo.in_flight(), 0);
        },
        |_, peer| {
            let channel = peer.channel("echo").codec::<Forged>();
            let back = peer.channel("echo/replies").codec::<Forged>();
            let mut requests = channel.receiver::<[u8]>().unwrap();
            let mut replies = back.sender::<[u8]>().unwrap();
            let call = requests.recv().unwrap().to_vec();
            let id = |bytes: &[u8], at| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            for frame in nonsense() {
                // The last frame ends the call itself.
                if frame.len() < 8 || id(&frame, 4) != id(&call, 4) {
                    replies.send(&frame).unwrap();
                }
            }
            let (number, generation) = (id(&call, 0), id(&call, 4));
            // An item is no reply; a reply without content is not valid.
            replies.send(&frame(number, generation, 6, 0)).unwrap();
            replies.send(&frame(number, generation, 5, 0)).unwrap();
            let stream = loop {
                let message = requests.recv().unwrap();
                if message[8] == 2 {
                    break message.to_vec();
                }
            };
            // Sends far more items than it may.
            let (number, generation) = (id(&stream, 0), id(&stream, 4));
            for _ in 0..1_000 {
                let _ = replies.send(&frame(number, generation, 6, 0));
            }
            let _ = replies.send(&frame(number, generation, 7, 0));
            while requests.next().is_ok_and(|message| message.is_some()) {}
        },
    );
}
