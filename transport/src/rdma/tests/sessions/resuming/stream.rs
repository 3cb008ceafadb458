//! Sending and receiving the numbered messages of a stream, some of them from and into regions.

use super::*;

impl Stream {
    /// Sends up to `most` messages, until there is no room.
    pub(in super::super) fn send(&mut self, most: u64) {
        for _ in 0..most {
            let number = self.sent + 1;
            let message = payload(number, length(number));
            let sent = match number % 32 {
                4 | 7 => {
                    let slice = Region::from(message).slice(..);
                    self.sender.send_region((&slice).into(), Patience::None)
                }
                9 | 23 => self
                    .sender
                    .send_region((&mapped(&message)).into(), Patience::None),
                _ => try_send(&mut self.sender, &message),
            };
            match sent {
                Ok(sequence) => assert_eq!(sequence, self.sent + 1),
                Err(ChannelError::WouldBlock) => return,
                Err(other) => panic!("{other:?}"),
            }
            self.sent += 1;
        }
    }

    /// Receives up to `most` messages. Before some of the large ones, there is a region for them.
    pub(super) fn receive(&mut self, most: u64) {
        for _ in 0..most {
            if self.received % 64 < 32 && self.provided == self.in_regions {
                let region = Region::zeroed(300_000).unwrap();
                self.receiver.provide(region).unwrap();
                self.provided += 1;
            }
            let Some(message) = self.receiver.poll().unwrap() else {
                return;
            };
            self.received += 1;
            let number = self.received;
            assert_eq!(message.sequence(), number);
            assert!(*message.bytes() == payload(number, length(number))[..]);
            let message = match message.into_region() {
                Ok((region, taken)) => {
                    assert!(region[..taken] == payload(number, length(number))[..]);
                    self.in_regions += 1;
                    continue;
                }
                Err(message) => message,
            };
            if number.is_multiple_of(5) && self.held.len() < 20 {
                self.held.push((number, message));
            }
        }
    }

    /// Takes every message that has arrived. Returns the error after them, if there is one.
    pub(in super::super) fn take_all(&mut self) -> Result<(), ChannelError> {
        while let Some(message) = self.receiver.poll()? {
            self.received += 1;
            assert_eq!(message.sequence(), self.received);
            let sent = payload(self.received, length(self.received));
            assert!(*message.bytes() == sent[..]);
        }
        Ok(())
    }

    pub(super) fn release(&mut self) {
        for (number, message) in self.held.drain(..) {
            assert!(*message.bytes() == payload(number, length(number))[..]);
        }
    }
}
