//! Names of Unix sockets: in the abstract namespace of a network namespace, or in a directory.
//!
//! Other users may write in a directory too. So:
//!
//! - Nobody but its owner and root may be able to put another socket in the place of one there.
//! - A name there is opened first, and has to be that of a socket. Whatever is done with it, is done
//!   by the descriptor. So a name that leads elsewhere has no effect.
//! - The directory is on `tmpfs`, because an engine's turn must not wait for a disk.
#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use ibex_base::{fork, is_on_tmpfs};
use rustix::fs::{FileType, Mode, OFlags, chmod, fstat, open};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, bind};

use crate::share_with::ShareWith;
use crate::unix_sockets::{UnixSettings, UnixSocket};

/// The name of a Unix socket.
pub(super) enum SocketName {
    Abstract(SocketAddrUnix),
    InDirectory {
        /// The directory, by whose descriptor the socket's name is made. The name of a socket has
        /// room for 107 bytes, and paths are longer.
        directory: OwnedFd,
        path: PathBuf,
    },
}

/// A socket to connect to.
pub(super) struct FoundSocket {
    pub(super) address: SocketAddrUnix,
    /// The socket's file, by whose descriptor the address names it.
    _file: Option<OwnedFd>,
}

/// A socket that listens. Its name in a directory, if it has one, goes with it.
pub(super) struct UnixListener {
    socket: UnixSocket,
    path: Option<PathBuf>,
}

impl SocketName {
    /// Returns the socket's name in the abstract namespace, or in the node's directory.
    pub(super) fn of(name: &[u8], in_directory: bool, unix: &UnixSettings) -> Result<Self, String> {
        if !in_directory {
            let address = SocketAddrUnix::new_abstract_name(name).map_err(unusable)?;
            return Ok(Self::Abstract(address));
        }
        let Some(directory) = unix.directory.as_deref() else {
            return Err("this node has no shared_memory_directory".to_string());
        };
        let path = directory.join(String::from_utf8_lossy(name).as_ref());
        let directory = open_directory(directory)
            .map_err(|why| format!("this node's shared_memory_directory cannot be used: {why}"))?;
        Ok(Self::InDirectory { directory, path })
    }

    /// Finds the socket with this name, which another process has made.
    pub(super) fn find(&self) -> Result<FoundSocket, String> {
        let path = match self {
            Self::Abstract(address) => {
                return Ok(FoundSocket {
                    address: address.clone(),
                    _file: None,
                });
            }
            Self::InDirectory { path, .. } => path,
        };
        let file = open_socket(path).map_err(|error| match error.raw_os_error() {
            Some(errno) if errno == Errno::NOENT.raw_os_error() => ABSENT.to_string(),
            _ => format!("the peer's Unix socket cannot be reached ({error})"),
        })?;
        Ok(FoundSocket {
            address: SocketAddrUnix::new(by_descriptor(&file)).map_err(unusable)?,
            _file: Some(file),
        })
    }

    /// Returns the words for a name at which nobody listens.
    pub(super) fn silence(&self) -> String {
        match self {
            Self::InDirectory { .. } => {
                "nobody listens at the peer's Unix socket in this node's shared_memory_directory"
            }
            // The peer listens, and the name does not exist here.
            Self::Abstract(_) => "the peer's Unix socket is not in this network namespace",
        }
        .to_string()
    }

    /// Gives the name to `socket`. Processes of other users may connect if the node shares memory
    /// with some; the node decides by the kernel's word with whom it talks.
    pub(super) fn give_to(
        self,
        socket: UnixSocket,
        share_with: &ShareWith,
    ) -> io::Result<UnixListener> {
        let (directory, path) = match self {
            Self::Abstract(address) => {
                bind(&socket, &address)?;
                return Ok(UnixListener { socket, path: None });
            }
            Self::InDirectory { directory, path } => (directory, path),
        };
        let name = path.file_name().unwrap_or_default();
        bind(
            &socket,
            &SocketAddrUnix::new(by_descriptor(&directory).join(name))?,
        )?;
        let listener = UnixListener {
            socket,
            path: Some(path),
        };
        if let Some(path) = &listener.path
            && *share_with != ShareWith::Nobody
        {
            chmod(
                by_descriptor(&open_socket(path)?),
                Mode::from_raw_mode(0o666),
            )?;
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
            // If that fails, the directory has gone, or the name has.
            let _ = fs::remove_file(path);
        }
    }
}

/// Opens a directory that is fit for names of sockets.
fn open_directory(path: &Path) -> Result<OwnedFd, String> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let in_words = |errno: Errno| errno.to_string();
    let directory = open(path, flags, Mode::empty()).map_err(in_words)?;
    let mode = Mode::from_raw_mode(fstat(&directory).map_err(in_words)?.st_mode);
    if mode.intersects(Mode::WGRP | Mode::WOTH) && !mode.contains(Mode::SVTX) {
        return Err(
            "others may write there, and replace what this node puts there; chmod +t it"
                .to_string(),
        );
    }
    if !is_on_tmpfs(&directory).map_err(in_words)? {
        return Err("it is not on tmpfs; use one below /run or /dev/shm".to_string());
    }
    Ok(directory)
}

/// Opens the name of a socket, without connecting to it.
fn open_socket(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::empty())?;
    match FileType::from_raw_mode(fstat(&file)?.st_mode) {
        FileType::Socket => Ok(file),
        _ => Err(io::Error::other("it is no socket")),
    }
}

/// Returns a path that leads to what a descriptor refers to.
fn by_descriptor(fd: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into()
}

fn unusable(errno: Errno) -> String {
    format!("the name of the Unix socket is unusable ({errno})")
}

/// The words for a name that is not in the directory: the peer's is another one, or runs on a clone of
/// this machine.
const ABSENT: &str = "the peer's Unix socket is not in this node's shared_memory_directory";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener as StdListener;
    use std::sync::Arc;

    use super::*;

    /// A directory on tmpfs, with this mode.
    struct Directory(PathBuf);

    impl Directory {
        fn new(test: &str, mode: u32) -> Self {
            let name = format!("ibex-test-{}-{test}-{mode:o}", std::process::id());
            let path = Path::new("/dev/shm").join(name);
            fs::create_dir(&path).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Self(path)
        }

        fn settings(&self) -> UnixSettings {
            UnixSettings {
                directory: Some(Arc::from(self.0.as_path())),
                ..UnixSettings::default()
            }
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_directory_in_which_others_replace_names_is_refused() {
        for (mode, is_fit) in [
            (0o700, true),
            (0o755, true),
            (0o1777, true),
            (0o1770, true),
            (0o777, false),
            (0o770, false),
        ] {
            let directory = Directory::new("modes", mode);
            let name = SocketName::of(b"ibex-0", true, &directory.settings());
            assert_eq!(name.is_ok(), is_fit, "{mode:o}");
        }
    }

    #[test]
    fn a_directory_on_a_disk_or_without_a_place_is_refused() {
        for (path, why) in [
            ("/proc", "not on tmpfs"),
            ("/dev/shm/ibex-nothing", "No such"),
        ] {
            let settings = UnixSettings {
                directory: Some(Arc::from(Path::new(path))),
                ..UnixSettings::default()
            };
            let refused = SocketName::of(b"ibex-0", true, &settings).err().unwrap();
            assert!(refused.contains(why), "{refused}");
        }
    }

    #[test]
    fn a_name_that_leads_elsewhere_is_no_socket() {
        let directory = Directory::new("link", 0o700);
        let elsewhere = directory.0.join("elsewhere");
        let _listener = StdListener::bind(&elsewhere).unwrap();
        symlink(&elsewhere, directory.0.join("ibex-0")).unwrap();
        let name = SocketName::of(b"ibex-0", true, &directory.settings()).unwrap();
        let refused = name.find().err().unwrap();
        assert!(refused.contains("it is no socket"), "{refused}");
        let direct = SocketName::of(b"elsewhere", true, &directory.settings()).unwrap();
        assert!(direct.find().is_ok());
        let nothing = SocketName::of(b"ibex-1", true, &directory.settings()).unwrap();
        assert_eq!(nothing.find().err().unwrap(), ABSENT);
    }
}
