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

#[doc(hidden)]
pub mod call_extension;
mod caller;
mod deadline_alarm;
mod error;
#[cfg(test)]
mod extension_tests;
mod frame;
mod header;
mod io_error;
mod late_notice;
mod metadata;
mod no_reply;
mod opening;
mod options;
mod outbox;
mod peers_caller;
#[cfg(test)]
mod region_tests;
mod service;
mod versions;
mod waiter;

#[cfg(feature = "tokio")]
pub use self::service::serving::Serving;
pub use self::{
    caller::{Caller, replies::Replies, reply::Reply},
    error::{CallError, CallErrorKind, Execution},
    opening::{CallerSettings, OpenCaller, OpenService, ServiceSettings},
    options::CallOptions,
    peers_caller::PeersCaller,
    service::{
        Service,
        handler::{HandlerError, OwnedReply},
        request::Request,
    },
};
pub use metadata::{Metadata, MetadataRefused, MetadataValue};

/// Marks the request, the reply and the codec of a type that holds none of them.
type Types<Q, R, C> = PhantomData<(fn(&Q), fn(&R), fn() -> C)>;

/// Marks the reply and the codec.
type ReplyTypes<R, C> = PhantomData<(fn(&R), fn() -> C)>;
