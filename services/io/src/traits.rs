//! The traits by which threads read and write, the standard library's, and those of tasks:
//! futures-io's and, with the feature `tokio`, tokio's.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use super::{ReadHalf, Stream, WriteHalf, read_half::filling};

/// Implements the traits for a half, and for the stream that has it.
macro_rules! io_traits {
    (reading $end:ty, |$this:ident| $half:expr) => {
        impl io::Read for $end {
            #[inline]
            fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
                let $this = self;
                if to.is_empty() {
                    return Ok(0);
                }
                $half.fill()?;
                Ok($half.read_into(to.len(), filling(to)))
            }
        }

        impl io::BufRead for $end {
            fn fill_buf(&mut self) -> io::Result<&[u8]> {
                let $this = self;
                $half.fill()?;
                Ok($half.rest())
            }

            fn consume(&mut self, bytes: usize) {
                let $this = self;
                $half.go_on(bytes);
            }
        }

        impl futures_io::AsyncRead for $end {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                to: &mut [u8],
            ) -> Poll<io::Result<usize>> {
                let $this = self.get_mut();
                if to.is_empty() {
                    return Poll::Ready(Ok(0));
                }
                ready!($half.poll_fill(context.waker()))?;
                Poll::Ready(Ok($half.read_into(to.len(), filling(to))))
            }
        }

        impl futures_io::AsyncBufRead for $end {
            fn poll_fill_buf(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<io::Result<&[u8]>> {
                let $this = self.get_mut();
                ready!($half.poll_fill(context.waker()))?;
                Poll::Ready(Ok($half.rest()))
            }

            fn consume(self: Pin<&mut Self>, bytes: usize) {
                let $this = self.get_mut();
                $half.go_on(bytes);
            }
        }
    };
    (writing $end:ty, |$this:ident| $half:expr) => {
        impl io::Write for $end {
            #[inline]
            fn write(&mut self, from: &[u8]) -> io::Result<usize> {
                self.write_vectored(&[IoSlice::new(from)])
            }

            fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
                let $this = self;
                $half.write_piece(from)
            }

            fn flush(&mut self) -> io::Result<()> {
                let $this = self;
                $half.let_out();
                Ok(())
            }
        }

        impl futures_io::AsyncWrite for $end {
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
                WriteHalf::poll_write(&mut $half, context, from)
            }

            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                let $this = self.get_mut();
                $half.let_out();
                Poll::Ready(Ok(()))
            }

            fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                let $this = self.get_mut();
                $half.finish();
                Poll::Ready(Ok(()))
            }
        }
    };
}

io_traits!(reading ReadHalf, |half| *half);
io_traits!(reading Stream, |stream| stream.read);
io_traits!(writing WriteHalf, |half| *half);
io_traits!(writing Stream, |stream| stream.write);
