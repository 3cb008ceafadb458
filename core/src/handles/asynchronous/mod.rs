//! Calls for tasks: futures, streams and sinks, for any executor, and the polls that they are
//! made of.
//!
//! This module has no thread and no timer of its own. A pending future has left its waker where a
//! blocking call would have slept. Its task is woken once for the event that it waits for, and
//! costs nothing until then.
//!
//! # Cancellation
//!
//! Dropping a future at any time loses no message, sends none twice, and takes its waker back. A
//! message is taken off its channel in the poll that returns it. A message that is being sent is
//! published in the poll that reports it as sent, or not at all. So every future here may stand in
//! a `select!`, be dropped by a time-out, and be made again for the next attempt.
//!
//! | future | dropped before it is ready |
//! |---|---|
//! | [`recv_async`](Receiver::recv_async), [`next_async`](Receiver::next_async), [`recv_many_async`](Receiver::recv_many_async), [`next_async`](crate::FanIn::next_async) of a fan-in, [`stream`](Receiver::stream) | what had come is there for the next call |
//! | [`opened_async`](Sender::opened_async) of either end, [`closed_async`](Sender::closed_async) | nothing changes |
//! | [`send_async`](Sender::send_async) | nothing was sent |
//! | [`reserve_async`](Sender::reserve_async), [`loan_async`](Sender::loan_async) | no room is kept |
//! | [`flush_async`](Sender::flush_async), [`wait_acked_async`](Sender::wait_acked_async) | nothing changes |
//! | [`sink`](Sender::sink) | a value that it keeps is not sent; flush it first |
//! | [`accept_async`](crate::Node::accept_async) | a peer that had come is there for the next call |
//! | [`connect_async`](crate::Node::connect_async) | the attempt ends |
//! | [`close_async`](crate::Node::close_async) | the node goes on closing |
//! | [`close_async`](Sender::close_async) of a sender | the sender is dropped, which ends the channel in order |
//! | [`next_async`](crate::Events::next_async) of events | an event that had come is there for the next call |
//! | `call_async`, `stream_async` | nothing was sent, or the handler is told that nobody waits |
//! | `next_async` of a service | a request that had come is there for the next call |
//! | `reply_async` | the caller learns that there is no answer, unless it was sent |
//! | `accept_async` of streams | a stream that had come is there for the next call |
//! | `connect_async` to a listener | the request is taken back; a listener that has accepted it reads the end |
//!
//! # Polls
//!
//! A program that writes its own futures calls [`Receiver::poll_recv`], [`Sender::poll_send`],
//! [`poll_reserve`](Sender::poll_reserve), [`poll_loan`](Sender::poll_loan),
//! [`poll_flush`](Sender::poll_flush) and [`poll_acked`](Sender::poll_acked). These polls need
//! nothing besides the handle, which keeps the waker of the last poll:
//!
//! - A receiver keeps one waker. A sender keeps one for room (`poll_send`, `poll_reserve`,
//!   `poll_loan`), and one each for `poll_flush` and `poll_acked`.
//! - Polling again with another waker replaces it. Polling with the same one costs neither a system
//!   call nor an entry.
//! - The answer takes the waker back, and so do the drop of the handle, [`Sender::drop_wakers`],
//!   [`Receiver::close`] and a blocking call of a receiver. A `try_` call leaves the waker
//!   where it is.
//!
//! ```
//! use std::{future::Future, pin::Pin, task::{Context, Poll, ready}};
//! use ibex::{Raw, Receiver, RecvErrorKind, Sender};
//!
//! /// Sends back what comes, until the end.
//! struct Echo {
//!     requests: Receiver<[u8], Raw>,
//!     answers: Sender<[u8], Raw>,
//! }
//!
//! impl Future for Echo {
//!     type Output = Result<(), Box<dyn std::error::Error>>;
//!
//!     fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
//!         let this = self.get_mut();
//!         loop {
//!             // No request is taken that could not be answered at once.
//!             drop(ready!(this.answers.poll_loan(context, 4096))?);
//!             match ready!(this.requests.poll_recv(context)) {
//!                 Ok(request) => this.answers.try_send(&request[..request.len().min(4096)])?,
//!                 Err(error) if error.kind() == RecvErrorKind::Ended => return Poll::Ready(Ok(())),
//!                 Err(error) => return Poll::Ready(Err(error.into())),
//!             };
//!         }
//!     }
//! }
//! ```
//!
//! An executor's waker is called on the thread that has the events. If it panics there, the log has
//! an error with the panic's text, and all other waiters are woken.
//!
//! # Who turns the engine
//!
//! [`Driver`](crate::Driver) decides which thread turns the node:
//!
//! - [`Tasks`](crate::Driver::Tasks), in a tokio program: the runtime drives the node, and a
//!   message crosses no thread but the runtime's.
//! - [`Threads`](crate::Driver::Threads), in any executor: the node's I/O thread.
//! - [`Caller`](crate::Driver::Caller): polls and calls alone. A poll that finds no message runs
//!   one turn. A poll that finds no room runs two: one to learn of room, and one to send its
//!   question. Between polls nothing moves, so let the program turn the engine, by
//!   [`Node::poll`](crate::Node::poll) when [`Node::as_fd`](crate::Node::as_fd) is readable, in a
//!   task of its own, as [the guide](https://docs.rs/ibex/latest/ibex/guide/which_driver/index.html) shows for async-io.
//!
//! `open_timeout` ends blocking calls only. A future waits until the peer opens its end or the
//! session is over. To wait no longer, drop the future, as an executor's time-out does. After the
//! `open_timeout` [an event](crate::Event::NotOpened) and the log tell of the missing end.
//!
//! ```
//! use ibex::{Raw, Receiver, RecvErrorKind, Sender};
//!
//! /// Answers each message with its length.
//! async fn serve(
//!     mut requests: Receiver<[u8], Raw>,
//!     mut answers: Sender<[u8], Raw>,
//! ) -> Result<(), Box<dyn std::error::Error>> {
//!     loop {
//!         match requests.recv_async().await {
//!             Ok(request) => answers.send_async(&request.len().to_le_bytes()).await?,
//!             Err(error) if error.kind() == RecvErrorKind::Ended => return Ok(()),
//!             Err(error) => return Err(error.into()),
//!         };
//!     }
//! }
//! ```

mod receiving;
mod sending;
mod sink;

pub(crate) use self::receiving::{ReceivingEnd, item_of, opened_async, recv_async};
pub use self::{receiving::Messages, sink::SendSink};

#[allow(unused_imports, reason = "the documentation names them")]
use crate::{Receiver, Sender};
