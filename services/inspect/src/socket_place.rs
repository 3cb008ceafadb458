//! The places of sockets at which nodes are inspected.
//!
//! The default place is the first of [`folders`] that can be had: a folder of the user, which nobody
//! else may enter. A socket there is named by its process and node. It gets that name when it
//! listens, so a socket of such a name that refuses a connection is that of a dead node.

use std::{
    env,
    fs::{self, DirBuilder, Permissions},
    io,
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    process,
};

use ibex_core::extend::{has_more_rights_than_its_user, random, warn_limited};
use rustix::{
    io::Errno,
    net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
    },
    process::geteuid,
};

/// The place of a node's socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SocketPlace {
    /// The folder of the user.
    Default,
    /// A path that the program chose.
    At(PathBuf),
}

/// A place that cannot have a socket.
#[derive(Debug)]
pub(crate) struct UnusablePath {
    pub(crate) path: PathBuf,
    pub(crate) source: io::Error,
}

impl SocketPlace {
    /// Listens there. Returns the socket, which does not block, and its path.
    pub(crate) fn listen(&self, node: Option<&str>) -> Result<(OwnedFd, PathBuf), UnusablePath> {
        let refused = |path: &Path| {
            let path = path.to_owned();
            |source: io::Error| UnusablePath { path, source }
        };
        match self {
            SocketPlace::At(path) => {
                remove_if_dead(path).map_err(refused(path))?;
                let listener = listen_at(path).map_err(refused(path))?;
                Ok((listener, path.clone()))
            }
            SocketPlace::Default => listen_in(&folders(), node),
        }
    }
}

/// Listens in the first of these folders in which that is possible.
fn listen_in(folders: &[PathBuf], node: Option<&str>) -> Result<(OwnedFd, PathBuf), UnusablePath> {
    // The refusal to tell: a folder that is missing here is no surprise.
    let mut notified: Option<UnusablePath> = None;
    for folder in folders {
        let source = match listen_below(folder, node) {
            Ok((listener, path)) => {
                if let Some(UnusablePath {
                    path: other,
                    source,
                }) = notified.filter(is_surprise)
                {
                    warn_limited!(
                        source,
                        path = %path.display(),
                        refused = %other.display(),
                        error = %source,
                        "the node is inspected at another place than usual"
                    );
                }
                return Ok((listener, path));
            }
            Err(source) => source,
        };
        if !notified.as_ref().is_some_and(is_surprise) {
            let path = folder.clone();
            notified = Some(UnusablePath { path, source });
        }
    }
    Err(notified.expect("there are folders"))
}

fn is_surprise(refused: &UnusablePath) -> bool {
    refused.source.kind() != io::ErrorKind::NotFound
}

/// Listens in this folder, at a name that no living node has.
fn listen_below(folder: &Path, node: Option<&str>) -> io::Result<(OwnedFd, PathBuf)> {
    make_private(folder)?;
    remove_of_dead(folder);
    let mut bytes = [0; 4];
    random::fill(&mut bytes)?;
    let number = u32::from_ne_bytes(bytes);
    let unnamed = folder.join(format!("{}-{number:08x}", process::id()));
    let listener = listen_at(&unnamed)?;
    let path = give_name(&unnamed, folder, node);
    let _ = fs::remove_file(&unnamed);
    Ok((listener, path?))
}

/// Gives a socket a second path, which no living node has. Nodes of one process may have one name,
/// and a dead process may have had this one's number.
fn give_name(socket: &Path, folder: &Path, node: Option<&str>) -> io::Result<PathBuf> {
    let mut number = 1;
    while number <= MOST_NODES {
        let path = folder.join(file_name(node, number));
        SocketAddrUnix::new(&path)?;
        match fs::hard_link(socket, &path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Err(_) if remove_if_dead(&path)? => {}
            Err(_) => number += 1,
        }
    }
    let text = format!("{MOST_NODES} nodes of this process have this name");
    Err(io::Error::new(io::ErrorKind::AddrInUse, text))
}

/// Returns the sockets of this user's nodes in [`folders`], in the order of their paths. One whose
/// process was killed may be among them; connecting to it is refused.
///
/// ```
/// use ibex::prelude::*;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let node = ibex::Node::builder().name("primary").inspect().build()?;
/// let path = ibex::inspect::path_of(&node).ok_or("no socket")?;
/// assert!(ibex::inspect::sockets()?.iter().any(|socket| socket == path));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// No socket is found, and one of the folders is another user's, can be entered by others or cannot
/// be read.
pub fn sockets() -> io::Result<Vec<PathBuf>> {
    sockets_in(&folders())
}

/// Returns the folders in which nodes of this user listen by default, each in the first that it can
/// have: `ibex` below this process's `$XDG_RUNTIME_DIR` and below `/run/user/UID`, which is its usual
/// value, `/tmp/ibex-UID`, and `/dev/shm/ibex-UID` where another user has made that or `/tmp` is
/// read-only. A folder may be missing.
///
/// ```
/// use ibex::prelude::*;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let node = ibex::Node::builder().inspect().build()?;
/// let folder = ibex::inspect::path_of(&node).and_then(|path| path.parent()).ok_or("no socket")?;
/// assert!(ibex::inspect::folders().iter().any(|searched| searched == folder));
/// # Ok(())
/// # }
/// ```
pub fn folders() -> Vec<PathBuf> {
    let usual = PathBuf::from(format!("/run/user/{}", geteuid().as_raw()));
    let mut folders: Vec<_> = runtime_folder().into_iter().chain([usual]).collect();
    folders.dedup();
    folders.iter_mut().for_each(|folder| folder.push("ibex"));
    let user = geteuid().as_raw();
    folders
        .extend(["/tmp", "/dev/shm"].map(|of_all| Path::new(of_all).join(format!("ibex-{user}"))));
    folders
}

/// Returns the sockets in these folders.
fn sockets_in(folders: &[PathBuf]) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    let mut refused = Ok(());
    for folder in folders {
        // Another user may have made a folder of this name, with sockets that are no nodes.
        let entries = is_private(folder).and_then(|()| fs::read_dir(folder)?.collect());
        match entries {
            Ok::<Vec<_>, _>(entries) => paths.extend(entries.iter().map(fs::DirEntry::path)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let text = format!("{}: {error}", folder.display());
                refused = Err(io::Error::new(error.kind(), text));
            }
        }
    }
    paths.retain(|path| path.extension().is_some_and(|suffix| suffix == SUFFIX));
    paths.sort();
    // Who finds a node does not care that another folder is closed.
    if paths.is_empty() {
        refused?;
    }
    Ok(paths)
}

/// Returns `$XDG_RUNTIME_DIR`, if it can be used.
fn runtime_folder() -> Option<PathBuf> {
    let of_session = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    // Where the user has fewer rights than the process, the variable is not to be trusted.
    let of_session =
        of_session.filter(|path| path.is_absolute() && !has_more_rights_than_its_user());
    of_session.filter(|path| is_private(path).is_ok())
}

/// Makes a folder that only this user may enter, if there is none.
fn make_private(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => is_private(folder),
    }
}

/// Checks that a folder belongs to this user, and that nobody else may enter it.
fn is_private(folder: &Path) -> io::Result<()> {
    // A link may be another user's.
    let found = fs::symlink_metadata(folder)?;
    let why = match () {
        () if !found.is_dir() => "it is not a folder",
        () if found.uid() != geteuid().as_raw() => "it belongs to another user",
        () if found.mode() & 0o077 != 0 => "other users may enter it; `chmod 700` mends that",
        () => return Ok(()),
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// Returns the name of a socket: the process, the node, and a number if the name is taken.
fn file_name(node: Option<&str>, number: u32) -> String {
    let plain = |character: char| match character {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' | '.' => character,
        _ => '_',
    };
    let node: String = node.unwrap_or("node").chars().map(plain).collect();
    match number {
        1 => format!("{}-{node}.{SUFFIX}", process::id()),
        _ => format!("{}-{node}-{number}.{SUFFIX}", process::id()),
    }
}

fn listen_at(path: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let listener = stream()?;
    bind(&listener, &address)?;
    let listening = fs::set_permissions(path, Permissions::from_mode(0o600))
        .and_then(|()| Ok(listen(&listener, BACKLOG)?));
    if let Err(error) = listening {
        let _ = fs::remove_file(path);
        return Err(error);
    }
    Ok(listener)
}

/// Removes a socket that nobody listens at. Returns whether there was one.
fn remove_if_dead(path: &Path) -> io::Result<bool> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if !is_socket {
        // Whatever it is, it is not a node's.
        return Ok(false);
    }
    match connect(stream()?, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) => match fs::remove_file(path) {
            // Another node has removed it meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            removed => removed.map(|()| true),
        },
        _ => Ok(false),
    }
}

/// Removes the sockets of processes that were killed.
fn remove_of_dead(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let name = path.file_name().and_then(|name| name.to_str());
        let pid = name.and_then(|name| name.split_once('-')?.0.parse::<u32>().ok());
        // A process of another PID namespace is not seen here, so the socket has the last word.
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
            && let Err(error) = remove_if_dead(&path)
        {
            tracing::debug!(path = %path.display(), %error, "a dead node's socket stays");
        }
    }
}

fn stream() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// The next step after the system refused a place.
pub(crate) fn next_step(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "a node that runs, or a file that is no socket, has this path; name another one by \
             inspect_at(..)"
        }
        io::ErrorKind::PermissionDenied => {
            "name a path by inspect_at(..), in a folder of this user that nobody else may enter"
        }
        io::ErrorKind::NotFound => "make the folder, or name another path by inspect_at(..)",
        _ => "name another path by inspect_at(..), of at most 107 bytes, or leave inspect() out",
    }
}

const SUFFIX: &str = "sock";
/// Number of sockets of one name that are tried.
const MOST_NODES: u32 = 1000;
/// Clients that wait until one of those that are served leaves.
const BACKLOG: i32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_no_character_that_a_path_gives_a_meaning_to() {
        let pid = process::id();
        assert_eq!(file_name(None, 1), format!("{pid}-node.sock"));
        assert_eq!(
            file_name(Some("../a b/\u{df}"), 2),
            format!("{pid}-.._a_b__-2.sock")
        );
    }

    #[test]
    fn a_folder_of_others_is_refused() {
        let folder = env::temp_dir().join(format!("ibex-place-{}", process::id()));
        make_private(&folder).expect("a new folder");
        make_private(&folder).expect("it is there already");
        fs::set_permissions(&folder, Permissions::from_mode(0o711)).expect("its owner changes it");
        let error = make_private(&folder).expect_err("others may enter it");
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(error.to_string().contains("chmod 700"), "{error}");
        fs::remove_dir(&folder).expect("it is empty");
        std::os::unix::fs::symlink("/", &folder).expect("a link");
        let error = make_private(&folder).expect_err("a link may be another user's");
        assert!(error.to_string().contains("not a folder"), "{error}");
        fs::remove_file(&folder).expect("the link");
    }

    /// As `/tmp/ibex-UID` that another user has made, and a folder that lies nowhere.
    #[test]
    fn another_place_is_tried_where_one_cannot_be_had() {
        let of_test = |name| env::temp_dir().join(format!("ibex-other-{}-{name}", process::id()));
        let [link, free] = ["link", "free"].map(of_test);
        let missing = of_test("missing").join("ibex");
        std::os::unix::fs::symlink("/", &link).expect("a link");
        let folders = [missing.clone(), link.clone(), free.clone()];
        let (_listener, path) = listen_in(&folders, None).expect("the last one can be had");
        assert_eq!(path, free.join(file_name(None, 1)));
        let refused = listen_in(&folders[..2], None).expect_err("neither");
        assert_eq!(refused.path, link, "a missing folder is not the news");
        let refused = listen_in(&folders[..1], None).expect_err("it lies nowhere");
        assert_eq!(refused.path, missing);
        fs::remove_file(&link).expect("the link");
        fs::remove_dir_all(&free).expect("it is this test's");
    }

    /// As of a container whose processes had this one's number, one after the other.
    #[test]
    fn sockets_of_dead_processes_of_this_number_are_replaced() {
        let folder = env::temp_dir().join(format!("ibex-restarts-{}", process::id()));
        let folders = [folder.clone()];
        make_private(&folder).expect("a new folder");
        for number in 1..=MOST_NODES {
            drop(listen_at(&folder.join(file_name(None, number))).expect("a free path"));
        }
        let living = [1, 2].map(|number| {
            let (listener, path) = listen_in(&folders, None).expect("the dead ones make room");
            assert_eq!(path, folder.join(file_name(None, number)));
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
            connect(stream().unwrap(), &SocketAddrUnix::new(&path).unwrap()).expect("it listens");
            listener
        });
        let left = fs::read_dir(&folder).expect("the folder").count();
        assert_eq!(left, MOST_NODES as usize, "no other name stays");
        drop(living);
        fs::remove_dir_all(&folder).expect("it is this test's");
    }

    #[test]
    fn sockets_of_all_private_folders_are_found() {
        let [one, other, missing] = ["one", "other", "missing"]
            .map(|name| env::temp_dir().join(format!("ibex-folders-{}-{name}", process::id())));
        let folders = [one.clone(), missing, other.clone()];
        assert_eq!(
            sockets_in(&folders).expect("none is there"),
            [""; 0].map(PathBuf::from)
        );
        let mut made = Vec::new();
        for folder in [&one, &other] {
            make_private(folder).expect("a new folder");
            let path = folder.join("1-node.sock");
            fs::write(&path, "").expect("a file");
            fs::write(folder.join("other"), "").expect("a file");
            made.push(path);
        }
        assert_eq!(sockets_in(&folders).expect("two"), made);
        let open = Permissions::from_mode(0o755);
        fs::set_permissions(&one, open).expect("its owner changes it");
        assert_eq!(sockets_in(&folders).expect("one is private"), made[1..]);
        fs::remove_dir_all(&other).expect("it is this test's");
        let error = sockets_in(&folders).expect_err("none, and a folder is open to others");
        assert!(error.to_string().contains("-one: other users"), "{error}");
        fs::remove_dir_all(&one).expect("it is this test's");
    }

    #[test]
    fn a_dead_socket_is_replaced_and_a_living_one_is_not() {
        let path = env::temp_dir().join(format!("ibex-dead-{}.sock", process::id()));
        let place = SocketPlace::At(path.clone());
        let (first, at) = place.listen(None).expect("a free path");
        assert_eq!(at, path);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let refused = place.listen(None).expect_err("the first listens");
        assert_eq!(refused.source.kind(), io::ErrorKind::AddrInUse);
        drop(first);
        drop(place.listen(None).expect("the first is gone"));
        fs::write(&path, "").expect_err("a socket is not written to");
        fs::remove_file(&path).unwrap();
        fs::write(&path, "mine").unwrap();
        let refused = place.listen(None).expect_err("a file");
        assert_eq!(refused.source.kind(), io::ErrorKind::AddrInUse);
        assert_eq!(fs::read(&path).unwrap(), b"mine");
        fs::remove_file(&path).unwrap();
    }
}
