//! Names of Unix sockets: in the abstract namespace of a network namespace, or in a directory.
#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ibex_base::fork;
use rustix::fs::{FileType, Mode, OFlags, chmod, fstat, open};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

use crate::share_with::ShareWith;
use crate::unix_sockets::{UnixSettings, UnixSocket};

/// The name of a Unix socket.
pub(super) struct SocketName {
    pub(super) address: SocketAddrUnix,
    path: Option<PathBuf>,
    /// The directory, by whose descriptor the address names it.
    _directory: Option<OwnedFd>,
}

/// A socket that listens. Its name in a directory, if it has one, goes with it.
pub(super) struct UnixListener {
    socket: UnixSocket,
    path: Option<PathBuf>,
}

impl SocketName {
    /// Returns the socket's name in the abstract namespace, or in the node's directory.
    pub(super) fn of(name: &[u8], in_directory: bool, unix: &UnixSettings) -> Result<Self, String> {
        let unusable = |error: Errno| format!("the name of the Unix socket is unusable ({error})");
        if !in_directory {
            let address = SocketAddrUnix::new_abstract_name(name).map_err(unusable)?;
            return Ok(Self {
                address,
                path: None,
                _directory: None,
            });
        }
        let Some(directory) = unix.directory.as_deref() else {
            return Err("this node has no shared_memory_directory".to_string());
        };
        let path = directory.join(String::from_utf8_lossy(name).as_ref());
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = open(directory, flags, Mode::empty()).map_err(|error| {
            format!("this node's shared_memory_directory cannot be used ({error})")
        })?;
        // The name of a socket has room for 107 bytes, and paths are longer.
        let by_descriptor = format!("/proc/self/fd/{}/", directory.as_raw_fd());
        let name = [by_descriptor.as_bytes(), name].concat();
        Ok(Self {
            address: SocketAddrUnix::new(&name[..]).map_err(unusable)?,
            path: Some(path),
            _directory: Some(directory),
        })
    }

    /// Returns the words for a name that no socket has.
    pub(super) fn absence(&self) -> String {
        match self.path {
            Some(_) => "the peer's Unix socket is not in this node's shared_memory_directory",
            None => "the peer's Unix socket is not in this network namespace",
        }
        .to_string()
    }

    /// Takes care of the name of `socket`, which was just bound to it: processes of other users may
    /// connect if the node shares memory with some, and the name goes when the listener is dropped.
    pub(super) fn given_to(
        self,
        socket: UnixSocket,
        share_with: &ShareWith,
    ) -> io::Result<UnixListener> {
        let listener = UnixListener {
            socket,
            path: self.path,
        };
        if let Some(path) = &listener.path
            && *share_with != ShareWith::Nobody
        {
            open_to_all(path)?;
        }
        Ok(listener)
    }
}

impl AsFd for UnixListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for UnixListener {
    fn drop(&mut self) {
        if let Some(path) = &self.path
            && !fork::is_child()
        {
            // A name that stays is swept up later.
            let _ = fs::remove_file(path);
        }
    }
}

/// Lets every user connect to the socket at `path`. The node decides by the kernel's word with whom
/// it talks. What another process has put there meanwhile does not change.
fn open_to_all(path: &Path) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::empty())?;
    let stat = fstat(&file)?;
    let is_ours = stat.st_uid == rustix::process::geteuid().as_raw();
    if !is_ours || FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(io::Error::other("another file has taken its place"));
    }
    let by_descriptor = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(chmod(by_descriptor, Mode::from_raw_mode(0o666))?)
}

/// Removes the names of sockets that processes of this user left in a directory when they were
/// killed, at least an hour ago.
///
/// # Errors
///
/// The directory cannot be read.
pub fn sweep(directory: &Path) -> io::Result<()> {
    let us = rustix::process::geteuid().as_raw();
    let is_left = |metadata: &fs::Metadata| {
        let age = metadata.modified().ok().and_then(|at| at.elapsed().ok());
        metadata.file_type().is_socket()
            && metadata.uid() == us
            && age.is_some_and(|age| age > LONGEST_HANDSHAKE)
    };
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let is_socket_of_ibex = entry.file_name().to_string_lossy().starts_with("ibex-");
        if is_socket_of_ibex && entry.metadata().is_ok_and(|metadata| is_left(&metadata)) {
            // Another process may remove it at this moment.
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// A name older than this belongs to no handshake.
const LONGEST_HANDSHAKE: Duration = Duration::from_secs(3600);
