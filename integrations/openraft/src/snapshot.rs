//! The bytes of a snapshot, and the way in which a state machine gives and takes them.

use std::{
    future::{Future, ready},
    io::{self, Cursor},
};

use tokio::io::{AsyncRead, AsyncReadExt};

/// A state machine's snapshot, in the form in which it passes through a byte stream.
///
/// `Cursor<Vec<u8>>`, `Vec<u8>` and `()` implement the trait. A state machine whose snapshots are
/// files implements it for a type of its own, and the bytes then never lie in memory as a whole:
///
/// ```
/// use std::{fs::File, io, os::unix::fs::FileExt, path::PathBuf};
/// use ibex_openraft::SnapshotData;
/// use tokio::io::{AsyncRead, AsyncReadExt};
///
/// struct SnapshotFile(PathBuf);
///
/// impl SnapshotData for SnapshotFile {
///     type Reader = io::Cursor<Vec<u8>>; // with tokio's feature `fs`: `tokio::fs::File`
///
///     async fn open(self) -> io::Result<(u64, Self::Reader)> {
///         let bytes = std::fs::read(&self.0)?;
///         Ok((bytes.len() as u64, io::Cursor::new(bytes)))
///     }
///
///     async fn receive<R: AsyncRead + Send + Unpin>(mut from: R, _: u64) -> io::Result<Self> {
///         let path = std::env::temp_dir().join("received.snapshot");
///         let (file, mut at, mut piece) = (File::create(&path)?, 0, vec![0; 1 << 16]);
///         loop {
///             let bytes = from.read(&mut piece).await?;
///             if bytes == 0 {
///                 return Ok(SnapshotFile(path));
///             }
///             file.write_all_at(&piece[..bytes], at)?;
///             at += bytes as u64;
///         }
///     }
/// }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> io::Result<()> {
/// # // Bytes come in pieces that are shorter than the buffer.
/// # let short = (&b"in three "[..]).chain(&b"pieces, "[..]).chain(&b"each short"[..]);
/// # let received = SnapshotFile::receive(short, 27).await?;
/// # assert_eq!(std::fs::read(&received.0)?, b"in three pieces, each short");
/// # std::fs::remove_file(received.0)
/// # }
/// ```
pub trait SnapshotData: Sized + Send + 'static {
    /// The reader that gives the bytes.
    type Reader: AsyncRead + Send + Unpin;

    /// Returns the number of bytes, and the bytes.
    fn open(self) -> impl Future<Output = io::Result<(u64, Self::Reader)>> + Send;

    /// Receives a snapshot of `bytes` bytes, behind which `from` ends. The number is only claimed
    /// by the peer, so memory is taken as the bytes come.
    fn receive<R: AsyncRead + Send + Unpin>(
        from: R,
        bytes: u64,
    ) -> impl Future<Output = io::Result<Self>> + Send;
}

impl SnapshotData for Vec<u8> {
    type Reader = Cursor<Vec<u8>>;

    fn open(self) -> impl Future<Output = io::Result<(u64, Self::Reader)>> + Send {
        Cursor::new(self).open()
    }

    async fn receive<R: AsyncRead + Send + Unpin>(mut from: R, _: u64) -> io::Result<Self> {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).await?;
        Ok(bytes)
    }
}

impl SnapshotData for Cursor<Vec<u8>> {
    type Reader = Self;

    fn open(self) -> impl Future<Output = io::Result<(u64, Self::Reader)>> + Send {
        let bytes = self.get_ref().len() as u64 - self.position().min(self.get_ref().len() as u64);
        ready(Ok((bytes, self)))
    }

    async fn receive<R: AsyncRead + Send + Unpin>(from: R, bytes: u64) -> io::Result<Self> {
        Vec::receive(from, bytes).await.map(Cursor::new)
    }
}

/// A snapshot of a state machine that has none.
impl SnapshotData for () {
    type Reader = tokio::io::Empty;

    fn open(self) -> impl Future<Output = io::Result<(u64, Self::Reader)>> + Send {
        ready(Ok((0, tokio::io::empty())))
    }

    async fn receive<R: AsyncRead + Send + Unpin>(_: R, _: u64) -> io::Result<Self> {
        Ok(())
    }
}
