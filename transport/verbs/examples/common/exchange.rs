//! How the two ends tell each other their addresses: over TCP, in the text format of rdma-core's
//! `ibv_*_pingpong`.
//!
//! An address is `LID:QPN:PSN:GID` in hexadecimal digits, 4, 6, 6 and 32 of them, and a zero byte. The
//! client sends its addresses, the server answers with its own when it is connected, and the client
//! ends with `done` and a zero byte.

use std::io::{Read, Write};
use std::net::TcpStream;

use ibex_verbs::{FirstSequence, Gid, LocalPort, Mtu, RemoteEndpoint};

use super::Outcome;

/// The bytes of an address.
pub(crate) const BYTES: usize = "0000:000000:000000:00000000000000000000000000000000\0".len();
const DONE: &[u8; 5] = b"done\0";

/// Writes addresses to the peer.
pub(crate) fn send(stream: &mut TcpStream, ours: &[RemoteEndpoint]) -> Outcome {
    for address in ours {
        stream.write_all(encode(address).as_bytes())?;
    }
    Ok(())
}

/// Reads so many addresses of the peer, which are taken to be reached by packets of this kind.
pub(crate) fn receive(
    stream: &mut TcpStream,
    count: usize,
    local: &LocalPort,
    mtu: Mtu,
) -> Outcome<Vec<RemoteEndpoint>> {
    let mut text = [0; BYTES];
    let mut read = || {
        stream.read_exact(&mut text)?;
        let text = std::str::from_utf8(&text)?.trim_end_matches('\0');
        decode(text, local, mtu).ok_or_else(|| format!("{text:?} is no address").into())
    };
    (0..count).map(|_| read()).collect()
}

/// Tells the server that the client has its addresses.
pub(crate) fn send_done(stream: &mut TcpStream) -> Outcome {
    Ok(stream.write_all(DONE)?)
}

/// Waits for the client to have the server's addresses.
pub(crate) fn receive_done(stream: &mut TcpStream) -> Outcome {
    let mut done = [0; DONE.len()];
    stream.read_exact(&mut done)?;
    match &done == DONE {
        true => Ok(()),
        false => Err("the client did not end with \"done\"".into()),
    }
}

fn encode(address: &RemoteEndpoint) -> String {
    let mut text = format!(
        "{:04x}:{:06x}:{:06x}:",
        address.lid,
        address.queue_pair,
        address.first_sequence.get()
    );
    for byte in address.gid.0 {
        text += &format!("{byte:02x}");
    }
    text.push('\0');
    text
}

fn decode(text: &str, local: &LocalPort, mtu: Mtu) -> Option<RemoteEndpoint> {
    let mut fields = text.split(':');
    let mut number = || u32::from_str_radix(fields.next()?, 16).ok();
    let (lid, queue_pair, sequence) = (number()?, number()?, number()?);
    let gid = u128::from_str_radix(fields.next()?, 16).ok()?;
    Some(RemoteEndpoint {
        queue_pair,
        first_sequence: FirstSequence::from_random(sequence),
        lid: u16::try_from(lid).ok()?,
        gid: Gid(gid.to_be_bytes()),
        gid_type: local.gid.gid_type,
        partition_key: None,
        mtu,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ibex_verbs::{
        Device,
        provider::fake::{FakeDevice, FakeProvider},
    };

    #[test]
    fn an_address_is_written_and_read_as_rdma_core_does() {
        let fake = FakeProvider::new(vec![FakeDevice::soft_roce("fake0", 1, [192, 0, 2, 1])]);
        let device = Device::open(&fake.provider(), "fake0").unwrap();
        let local = LocalPort::with_gid(&device, 1, |_| true).unwrap();
        let ours = RemoteEndpoint::of(0x1a2b, FirstSequence::from_random(0xabcdef), &local);
        let text = encode(&ours);
        assert_eq!(
            text,
            "0000:001a2b:abcdef:00000000000000000000ffffc0000201\0"
        );
        assert_eq!(text.len(), BYTES);
        let theirs = decode(text.trim_end_matches('\0'), &local, Mtu::Bytes1024).unwrap();
        let ours = RemoteEndpoint {
            partition_key: None,
            ..ours
        };
        assert_eq!(theirs, ours);
        assert_eq!(decode("0000:00", &local, Mtu::Bytes1024), None);
        assert_eq!(decode("10000:1:1:0", &local, Mtu::Bytes1024), None);
    }
}
