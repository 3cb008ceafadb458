//! The messages over ibex, between two polling nodes.

use std::{
    thread,
    time::{Duration, Instant},
};

use ibex::{
    Driver, Fabric, Node, NodeBuilder, Policy, Raw, Receiver, Security, Sender, SharedSecret, Wait,
};

use ibex_harness::cores::{self, Cores};

use crate::{Outcome, Shape, check, payload};

pub(crate) fn measure(shape: Shape, is_sealed: bool, cores: Cores) -> Outcome<Duration> {
    let builder = move || -> Outcome<NodeBuilder> {
        let builder = Node::builder()
            .fabric(Fabric::Tcp, Policy::Require)
            .driver(Driver::Caller)
            .wait(Wait::BusyPoll);
        let bytes = std::array::from_fn(|at| (at as u8).wrapping_mul(37).wrapping_add(1));
        let secret = SharedSecret::from_bytes(bytes)?;
        Ok(match is_sealed {
            true => builder.security(Security::shared_secret(secret)),
            false => builder,
        })
    };
    let acceptor = builder()?.listen("127.0.0.1:0").build()?;
    let address = acceptor.local_addr().ok_or("it listens")?;
    let answering = thread::spawn(move || -> Outcome {
        cores::keep_to(&cores[1..])?;
        let peer = acceptor.accept()?;
        let mut receiver: Receiver<[u8], Raw> = peer.channel("there").codec::<Raw>().receiver()?;
        let mut sender: Sender<[u8], Raw> = peer.channel("back").codec::<Raw>().sender()?;
        for number in 0..shape.messages {
            let message = receiver.recv()?;
            check(&message, number, shape)?;
            drop(message);
            if !shape.is_stream {
                sender.send(&payload(number, shape)[..])?;
            }
        }
        sender.send(&[1][..])?;
        let _ = acceptor.close(LONG);
        Ok(())
    });
    let node = builder()?.build()?;
    let peer = node.connect(address)?;
    let mut sender: Sender<[u8], Raw> = peer.channel("there").codec::<Raw>().sender()?;
    let mut receiver: Receiver<[u8], Raw> = peer.channel("back").codec::<Raw>().receiver()?;
    let mut bytes = payload(0, shape);
    let begun = Instant::now();
    for number in 0..shape.messages {
        bytes[0] = number as u8;
        sender.send(&bytes[..])?;
        if !shape.is_stream {
            check(&receiver.recv()?, number, shape)?;
        }
    }
    drop(receiver.recv()?);
    let took = begun.elapsed();
    let _ = node.close(LONG);
    answering.join().map_err(|_| "the other end panicked")??;
    Ok(took)
}

const LONG: Duration = Duration::from_secs(60);
