//! The traits by which tasks read and write: futures-io's and, with the feature `tokio`, tokio's.

use std::{
    io::{self, IoSlice},
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use super::{ReadHalf, Stream, WriteHalf};

impl ReadHalf {
    fn poll_read_slice(
        &mut self,
        context: &mut Context<'_>,
        mut to: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if to.is_empty() {
            return Poll::Ready(Ok(0));
        }
        ready!(self.poll_fill(context.waker()))?;
        Poll::Ready(Ok(self.read_into(to.len(), |bytes| {
            let (now, later) = mem::take(&mut to).split_at_mut(bytes.len());
            now.copy_from_slice(bytes);
            to = later;
        })))
    }
}

impl futures_io::AsyncRead for ReadHalf {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_read_slice(context, to)
    }
}

impl futures_io::AsyncBufRead for ReadHalf {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.get_mut();
        ready!(this.poll_fill(context.waker()))?;
        Poll::Ready(Ok(this.rest()))
    }

    fn consume(self: Pin<&mut Self>, bytes: usize) {
        self.get_mut().go_on(bytes);
    }
}

impl futures_io::AsyncWrite for WriteHalf {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        WriteHalf::poll_write(this, context, &[IoSlice::new(from)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        WriteHalf::poll_write(self.get_mut(), context, from)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.let_out();
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().finish();
        Poll::Ready(Ok(()))
    }
}

impl futures_io::AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().read.poll_read_slice(context, to)
    }
}

impl futures_io::AsyncBufRead for Stream {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        futures_io::AsyncBufRead::poll_fill_buf(Pin::new(&mut self.get_mut().read), context)
    }

    fn consume(self: Pin<&mut Self>, bytes: usize) {
        self.get_mut().read.go_on(bytes);
    }
}

impl futures_io::AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        let from = [IoSlice::new(from)];
        self.get_mut().write.poll_write(context, &from)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().write.poll_write(context, from)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write.let_out();
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().finish();
        Poll::Ready(Ok(()))
    }
}
