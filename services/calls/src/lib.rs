//! Calls: requests to a service of a peer, and their replies.
//!
//! A [`Caller`] asks one peer, a [`PeersCaller`] whichever of several is there, and a [`Service`]
//! answers. The page
//! [`request_and_reply`](https://docs.rs/ibex/latest/ibex/guide/request_and_reply/index.html) of the guide leads to a first program.
//!
//! A service is a pair of channels: requests go over a channel of the service's name, and replies
//! come back over one whose name has `/replies` behind it. So two nodes can each have a service of
//! one name and call the other's. A
//! message has a small header in front of its payload. The codec that the caller chose writes the
//! payload, and reads it in place. No thread or task stands in between: the thread that finds a
//! message passes it to its call.

use std::marker::PhantomData;

mod call;
#[doc(hidden)]
pub mod call_extension;
mod caller;
mod caller_ref;
mod caller_state;
mod client;
mod deadline_alarm;
mod error;
#[cfg(test)]
mod extension_tests;
mod frame;
mod handler;
mod header;
mod io_error;
mod late_notice;
mod metadata;
mod no_reply;
mod opening;
mod options;
mod outbox;
mod peers_caller;
mod pending_call;
#[cfg(test)]
mod region_tests;
mod replies;
mod reply;
mod request;
mod request_frame;
mod service;
#[cfg(feature = "tokio")]
mod serving;
mod slots;
mod source;
#[cfg(feature = "tower")]
mod tower;
mod waiting;

#[cfg(feature = "tokio")]
pub use self::serving::Serving;
pub use self::{
    caller::Caller,
    error::{CallError, CallErrorKind, Execution},
    handler::{HandlerError, OwnedReply},
    opening::{CallerSettings, OpenCaller, OpenService, ServiceSettings},
    options::CallOptions,
    peers_caller::PeersCaller,
    replies::Replies,
    reply::Reply,
    request::Request,
    service::Service,
};
pub use metadata::{Metadata, MetadataRefused, MetadataValue};

/// Marks the request, the reply and the codec of a type that holds none of them.
type Types<Q, R, C> = PhantomData<(fn(&Q), fn(&R), fn() -> C)>;

/// Marks the reply and the codec.
type ReplyTypes<R, C> = PhantomData<(fn(&R), fn() -> C)>;
