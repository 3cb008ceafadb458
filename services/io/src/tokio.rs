//! Tokio's traits. As with tokio's sockets, reads and writes take their share of the task's budget,
//! so that a task that always finds something lets others run now and then.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf},
    task::coop,
};

use super::{ReadHalf, Stream, WriteHalf};

/// Implements the traits for a half, and for the stream that has it.
macro_rules! for_tokio {
    (reading $end:ty, |$this:ident| $half:expr) => {
        impl AsyncRead for $end {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                to: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                if to.remaining() == 0 {
                    return Poll::Ready(Ok(()));
                }
                let $this = self.get_mut();
                let budget = ready!(coop::poll_proceed(context));
                ready!($half.poll_fill(context.waker()))?;
                budget.made_progress();
                $half.read_into(to.remaining(), |bytes| to.put_slice(bytes));
                Poll::Ready(Ok(()))
            }
        }

        impl AsyncBufRead for $end {
            fn poll_fill_buf(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<io::Result<&[u8]>> {
                let $this = self.get_mut();
                let budget = ready!(coop::poll_proceed(context));
                ready!($half.poll_fill(context.waker()))?;
                budget.made_progress();
                Poll::Ready(Ok($half.rest()))
            }

            fn consume(self: Pin<&mut Self>, bytes: usize) {
                futures_io::AsyncBufRead::consume(self, bytes);
            }
        }
    };
    (writing $end:ty, |$this:ident| $half:expr) => {
        impl AsyncWrite for $end {
            fn poll_write(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                from: &[u8],
            ) -> Poll<io::Result<usize>> {
                self.poll_write_vectored(context, &[IoSlice::new(from)])
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                from: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                let $this = self.get_mut();
                let budget = ready!(coop::poll_proceed(context));
                let written = ready!(WriteHalf::poll_write(&mut $half, context, from));
                budget.made_progress();
                Poll::Ready(written)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                futures_io::AsyncWrite::poll_flush(self, context)
            }

            fn poll_shutdown(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                futures_io::AsyncWrite::poll_close(self, context)
            }
        }
    };
}

for_tokio!(reading ReadHalf, |half| *half);
for_tokio!(reading Stream, |stream| stream.read);
for_tokio!(writing WriteHalf, |half| *half);
for_tokio!(writing Stream, |stream| stream.write);
