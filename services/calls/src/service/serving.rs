//! A service whose requests tasks of tokio handle.

use std::{
    borrow::Borrow,
    future::{Future, poll_fn},
    panic,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use ibex_core::{RecvError, codec::Codec, extend::warn_limited};
use tokio::{
    sync::oneshot,
    task::{JoinHandle, JoinSet},
};

use crate::service::{
    Service,
    handler::{HandlerError, OwnedReply, warn_of},
    request::Request,
};

impl<Q: ?Sized + 'static, R, C> Service<Q, R, C>
where
    R: ?Sized + OwnedReply<Owned: Send + Sync> + Sync + 'static,
    C: Codec<Q> + Codec<R> + 'static,
    Request<Q, R, C>: Sync,
{
    /// Answers each request by what `handler` returns for it, in tasks of the tokio runtime of the
    /// calling thread. One task takes the requests, and each request has a task of its own, up to
    /// 1024 at a time. Further requests wait, and their callers with them. So do further requests of
    /// a caller whose window is full of requests that handlers have. No task waits for a caller that
    /// does not take its replies: see [`Request`](crate::Request). The node may have any
    /// driver; under [`Driver::Caller`](ibex_core::Driver::Caller) somebody has to run its turns.
    ///
    /// A panic of the handler leaves its call [`Unanswered`](crate::CallErrorKind::Unanswered)
    /// and ends nothing else. A reply that cannot be sent is a [`tracing`] warning, and the caller is
    /// [told why](crate::Request::reply). A reply of an unsized type, such as `[u8]`, is
    /// returned by what [owns](crate::OwnedReply) it. For a
    /// [stream](crate::Caller::stream), the reply is the only item; a service of longer streams
    /// is a loop of [`next_async`](Self::next_async).
    ///
    /// The request stays where it arrived until its handler returns. A clone that the program keeps
    /// for longer holds the call: then there is no reply, and a warning says so. A caller that leaves
    /// stops no handler by itself; see [`Request::cancelled`].
    ///
    /// ```
    /// # #[cfg(feature = "rkyv")]
    /// # mod example {
    /// use ibex::{Node, calls::HandlerError};
    /// use ibex::prelude::*;
    ///
    /// async fn serve(node: &Node) -> Result<(), Box<dyn std::error::Error>> {
    ///     let lengths = node.service::<String, u64>("length")?;
    ///     let serving = lengths.serve(|text| async move {
    ///         match text.len() {
    ///             0 => Err(HandlerError::failed(1, "it is empty")),
    ///             length => Ok(length as u64),
    ///         }
    ///     });
    ///     tokio::signal::ctrl_c().await?;
    ///     serving.shutdown().await?; // handlers answer what they have
    ///     Ok(())
    /// }
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// If the calling thread is in no tokio runtime.
    pub fn serve<H, F>(self, handler: H) -> Serving
    where
        H: Fn(Arc<Request<Q, R, C>>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<R::Owned, HandlerError>> + Send + 'static,
    {
        let (stop, mut stopped) = oneshot::channel::<()>();
        let (mut service, handler) = (self, Arc::new(handler));
        // Hands requests to handlers until the service ends or is stopped, and waits for the handlers.
        let task = tokio::spawn(async move {
            let mut handlers = JoinSet::new();
            let mut is_stopped = false;
            let ended = poll_fn(|context| {
                is_stopped = is_stopped || Pin::new(&mut stopped).poll(context).is_ready();
                loop {
                    while is_stopped || handlers.len() < AT_ONCE {
                        match Pin::new(&mut service).poll_next(context) {
                            Poll::Ready(Some(Ok(request))) if is_stopped => {
                                request.refuse();
                                // Other tasks come between.
                                context.waker().wake_by_ref();
                                break;
                            }
                            Poll::Ready(Some(Ok(request))) => {
                                JoinSet::spawn(&mut handlers, answer(request, handler.clone()));
                            }
                            Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error)),
                            Poll::Ready(None) => return Poll::Ready(Ok(())),
                            Poll::Pending => break,
                        }
                    }
                    // A set leaves the waker only where it has a handler, so it is asked last.
                    match handlers.poll_join_next(context) {
                        Poll::Ready(Some(_)) => {}
                        Poll::Ready(None) if is_stopped => return Poll::Ready(Ok(())),
                        Poll::Ready(None) | Poll::Pending => return Poll::Pending,
                    }
                }
            });
            let ended = ended.await;
            drop(service);
            while handlers.join_next().await.is_some() {}
            ended
        });
        Serving {
            stop: Some(stop),
            task: Some(task),
        }
    }
}

/// A service that tasks serve. [`Service::serve`] starts it.
///
/// It is a future of the service's end: of the time when the node was closed or, for a service of
/// one peer, when that peer closed its caller; and all handlers have returned. Its error is that of
/// [`Service::next`].
///
/// Dropping it stops the service: handlers go on and answer the requests that they have, and no other
/// request is executed. It is [handed back](crate::CallErrorKind::HandedBack), or ends as
/// [`ServiceEnded`](crate::CallErrorKind::ServiceEnded) when the last handler has answered and
/// the [`Service`] is dropped. [`shutdown`](Self::shutdown) waits for that. To
/// stop all services of a node without a failed call, [`drain_async`](ibex_core::Node::drain_async) the
/// node and close it.
///
/// If the runtime is shut down, the handlers end where they are, and their calls are unanswered.
#[derive(Debug)]
#[must_use = "dropping it stops the service"]
pub struct Serving {
    /// Tells the task to begin no more requests, by being dropped.
    stop: Option<oneshot::Sender<()>>,
    /// `None` once its end was returned.
    task: Option<JoinHandle<Result<(), RecvError>>>,
}

impl Serving {
    /// Gives handlers no more requests, hands those back that come, and returns when all handlers have
    /// answered and the service is dropped. Dropping the future leaves the service stopped, and its
    /// handlers go on.
    ///
    /// # Errors
    ///
    /// [`RecvError`], of a service for one peer whose session or channel had failed before the call.
    pub async fn shutdown(mut self) -> Result<(), RecvError> {
        self.stop = None;
        self.await
    }
}

impl Future for Serving {
    type Output = Result<(), RecvError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(task) = &mut self.task else {
            return Poll::Ready(Ok(()));
        };
        let ended = ready!(Pin::new(task).poll(context));
        self.task = None;
        Poll::Ready(match ended {
            Ok(ended) => ended,
            Err(error) if error.is_panic() => panic::resume_unwind(error.into_panic()),
            // The runtime was shut down.
            Err(_) => Ok(()),
        })
    }
}

async fn answer<Q, R, C, H, F>(request: Request<Q, R, C>, handler: Arc<H>)
where
    Q: ?Sized,
    R: ?Sized + OwnedReply,
    C: Codec<Q> + Codec<R>,
    H: Fn(Arc<Request<Q, R, C>>) -> F,
    F: Future<Output = Result<R::Owned, HandlerError>>,
{
    let request = Arc::new(request);
    let answer = handler(request.clone()).await;
    let peer = request.peer();
    let Some(request) = Arc::into_inner(request) else {
        return warn_limited!(
            peer,
            %peer,
            "a handler has kept its request, so there is no reply"
        );
    };
    match answer {
        Ok(reply) => warn_of(request.reply_async(reply.borrow()).await),
        Err(error) => error.answer(request),
    }
}

/// The most requests that tasks handle at a time.
const AT_ONCE: usize = 1024;
