//! The handles of a channel's ends: senders, receivers, and what they hand out.

pub mod asynchronous;
mod batch;
pub(crate) mod message;
pub(crate) mod receiver;
mod region;
mod reservation;
pub(crate) mod selectable;
pub(crate) mod sender;

pub use self::{
    message::Message,
    receiver::Receiver,
    region::RegionMessage,
    reservation::{Loan, Permit},
    selectable::Selectable,
    sender::Sender,
};
