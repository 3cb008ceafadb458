//! The files by which the processes of one run authenticate each other.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process,
};

use serde::{Deserialize, Serialize};

use crate::{
    Error,
    authority::{Authority, NodeFiles, Request},
};

/// Keys of a run. Its processes find them by the process id of the one that made them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunKeys {
    /// The process that made the files.
    number: u32,
    way: Way,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Way {
    Certificates,
    Secret,
}

/// The files with a node's keys.
#[derive(Clone, Debug)]
pub enum KeyFiles {
    /// A certificate that all nodes of the run share.
    Certificates(NodeFiles),
    /// The secret that all nodes of the run share.
    Secret(PathBuf),
}

impl RunKeys {
    /// Makes an authority, and a certificate for all nodes of the run.
    ///
    /// # Errors
    ///
    /// The system's temporary folder cannot be written to.
    pub fn certificates() -> Result<Self, Error> {
        let keys = Self::of_this_process(Way::Certificates);
        let make = || -> io::Result<()> {
            let authority = Authority::new("ibex-run", &keys.folder())?;
            authority.issue(&Request::new(NODE, &["spiffe://ibex-run/node"]))?;
            Ok(())
        };
        make().map_err(Error::subject)?;
        Ok(keys)
    }

    /// Copies the shared secret in `file`.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or the system's temporary folder cannot be written to.
    pub fn secret(file: &Path) -> Result<Self, Error> {
        let keys = Self::of_this_process(Way::Secret);
        let folder = keys.folder();
        let copied = fs::create_dir_all(&folder).and_then(|()| fs::copy(file, folder.join(SECRET)));
        let failed = |error| Error::subject(format!("the secret in {}: {error}", file.display()));
        copied.map_err(failed)?;
        Ok(keys)
    }

    /// Returns where the files are.
    #[must_use]
    pub fn files(self) -> KeyFiles {
        let folder = self.folder();
        match self.way {
            Way::Certificates => KeyFiles::Certificates(NodeFiles {
                chain: folder.join(format!("{NODE}.pem")),
                key: folder.join(format!("{NODE}.key")),
                authorities: folder.join("ca.pem"),
            }),
            Way::Secret => KeyFiles::Secret(folder.join(SECRET)),
        }
    }

    /// Removes the files.
    pub fn remove(self) {
        let _ = fs::remove_dir_all(self.folder());
    }

    fn folder(self) -> PathBuf {
        env::temp_dir().join(format!("ibex-keys-{}", self.number))
    }

    fn of_this_process(way: Way) -> Self {
        let number = process::id();
        Self { number, way }
    }
}

const NODE: &str = "node";
const SECRET: &str = "cluster.key";
