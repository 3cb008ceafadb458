//! Handlers: functions that answer the requests of a service, in several threads.

use std::{
    borrow::Borrow,
    panic::{self, AssertUnwindSafe},
    sync::{Mutex, PoisonError},
    thread,
};

use ibex_core::{RecvError, SendError, codec::Codec, extend::warn_limited};

use crate::service::{Service, request::Request};

/// The reason for which a handler gives no reply. The caller gets it as the
/// [kind](crate::CallErrorKind) of the same name.
///
/// An error type of the program's own becomes one by `From`, so that handlers may use `?`:
///
/// ```
/// use ibex::calls::HandlerError;
///
/// struct NoSuchKey(String);
///
/// impl From<NoSuchKey> for HandlerError {
///     fn from(NoSuchKey(key): NoSuchKey) -> Self {
///         Self::failed(404, format!("there is no key {key}"))
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandlerError {
    /// The call was executed, with an error of the application, as by [`Request::fail`].
    #[error("{text} (code {code})")]
    Failed {
        /// Has the meaning that the application gives it.
        code: u32,
        /// Only the first 4 KiB travel.
        text: String,
    },
    /// The call was not executed and may be made again later, as by [`Request::refuse`].
    #[error("the handler hands the request back")]
    HandedBack,
}

impl HandlerError {
    /// Returns the error that [fails](Self::Failed) a call.
    pub fn failed(code: u32, text: impl Into<String>) -> Self {
        let text = text.into();
        Self::Failed { code, text }
    }

    pub(crate) fn answer<Q: ?Sized, R: ?Sized, C>(self, request: Request<Q, R, C>)
    where
        C: Codec<Q> + Codec<R>,
    {
        match self {
            Self::Failed { code, text } => request.fail(code, &text),
            Self::HandedBack => request.refuse(),
        }
    }
}

/// What a handler returns for a reply of this type: the value itself, or what owns it where it is of
/// an unsized type.
///
/// | reply | returned |
/// |---|---|
/// | a type with a size | the value |
/// | `[T]`, also the bytes of [`Raw`](ibex_core::Raw) | `Vec<T>` |
/// | `str` | `String` |
#[diagnostic::on_unimplemented(
    message = "no type is known that owns a reply of the type `{Self}`",
    label = "a handler cannot return a value of the type `{Self}`, which has no size",
    note = "implement `ibex::calls::OwnedReply` for it, or answer by `request.reply(&value)` in a \
            loop of `service.next()`"
)]
pub trait OwnedReply {
    /// The type that a handler returns.
    type Owned: Borrow<Self>;
}

impl<R> OwnedReply for R {
    type Owned = R;
}

impl<T> OwnedReply for [T] {
    type Owned = Vec<T>;
}

impl OwnedReply for str {
    type Owned = String;
}

impl<Q: ?Sized + 'static, R, C: Codec<Q> + Codec<R>> Service<Q, R, C>
where
    R: ?Sized + OwnedReply + 'static,
{
    /// Answers each request by what `handler` returns for it, in `threads` threads: the calling one
    /// and others that end with this call. With 0 or 1, the calling thread handles one request
    /// after the other. Returns when [`next`](Self::next) would return the end: when the node was
    /// closed or, for a service of one peer, when that peer closed its caller.
    ///
    /// While all threads handle requests, further ones wait, and their callers with them. A request
    /// that a handler has occupies the window of its caller, as one from [`next`](Self::next) does.
    /// A caller that does not take its replies holds no thread for longer than 100 ms: see
    /// [`Request`](crate::Request).
    ///
    /// A panic of the handler leaves its call [`Unanswered`](crate::CallErrorKind::Unanswered)
    /// and ends nothing else. A reply that cannot be sent is a [`tracing`] warning, and the caller is
    /// [told why](crate::Request::reply). For a [stream](crate::Caller::stream), the
    /// reply is the only item; a service of longer streams is a loop of [`next`](Self::next).
    ///
    /// To stop without a failed call, [`drain`](ibex_core::Node::drain) the node and close it: handlers
    /// finish the requests that they have.
    ///
    /// If the process lacks threads, a warning says so, and those that could be made serve.
    ///
    /// ```
    /// # #[cfg(feature = "rkyv")]
    /// # mod example {
    /// use ibex::{Node, calls::HandlerError};
    /// use ibex::prelude::*;
    ///
    /// fn serve(node: &Node) -> Result<(), Box<dyn std::error::Error>> {
    ///     let lengths = node.service::<String, u64>("length")?;
    ///     lengths.serve_blocking(4, |text| match text.len() {
    ///         0 => Err(HandlerError::failed(1, "it is empty")),
    ///         length => Ok(length as u64),
    ///     })?;
    ///     Ok(())
    /// }
    /// # }
    /// ```
    ///
    /// A reply of an unsized type is returned by what [owns](OwnedReply) it:
    ///
    /// ```
    /// use ibex::{Node, Raw};
    /// use ibex::prelude::*;
    ///
    /// fn serve(node: &Node) -> Result<(), Box<dyn std::error::Error>> {
    ///     let reversed = node.channel("reverse").codec::<Raw>().service::<[u8], [u8]>()?;
    ///     reversed.serve_blocking(4, |bytes| Ok(bytes.iter().rev().copied().collect()))?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// The error of [`next`](Self::next), once all handlers have returned.
    pub fn serve_blocking<H>(self, threads: usize, handler: H) -> Result<(), RecvError>
    where
        H: Fn(&Request<Q, R, C>) -> Result<R::Owned, HandlerError> + Sync,
    {
        let service = Mutex::new(self);
        let next = || {
            let mut service = service.lock().unwrap_or_else(PoisonError::into_inner);
            service.next()
        };
        let serve = || {
            while let Some(request) = next()? {
                // The handler cannot leave anything of ibex half done: it has the request alone.
                let answer = AssertUnwindSafe(|| match handler(&request) {
                    Ok(reply) => warn_of(request.reply(reply.borrow())),
                    Err(error) => error.answer(request),
                });
                // The panic was reported by its hook, and the request was dropped.
                let _ = panic::catch_unwind(answer);
            }
            Ok(())
        };
        thread::scope(|scope| {
            let others = (1..threads).map_while(|_| {
                let started = thread::Builder::new().spawn_scoped(scope, serve);
                let warn = |error: std::io::Error| {
                    warn_limited!(error, %error, "a service has fewer threads than asked");
                };
                started.map_err(warn).ok()
            });
            let others = others.collect::<Vec<_>>().into_iter();
            let ended = serve();
            let others = others.map(|other| {
                other
                    .join()
                    .unwrap_or_else(|panic| panic::resume_unwind(panic))
            });
            others.fold(ended, Result::and)
        })
    }
}

/// Warns of a reply that could not be sent.
pub(crate) fn warn_of(replied: Result<(), SendError>) {
    if let Err(error) = replied {
        warn_limited!(error, %error, "a handler's reply was not sent");
    }
}
