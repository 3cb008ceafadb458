//! Authentication of the nodes that are measured.

use std::{env, path::PathBuf};

use ibex::{Security, SharedSecret};
use ibex_harness::Error;
use serde::{Deserialize, Serialize};

/// Files of a measurement's nodes, which both processes find by a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Protection {
    /// The process that made the files.
    pub(crate) number: u32,
    /// The kind of the files.
    pub(crate) way: Way,
}

/// A way to authenticate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Way {
    /// `node.pem`, `node.key` and `ca.pem`.
    Certificates,
    /// `cluster.key`.
    Secret,
}

impl Protection {
    /// Returns where the files are.
    pub(crate) fn folder(self) -> PathBuf {
        env::temp_dir().join(format!("ibex-pingpong-{}", self.number))
    }

    /// Returns the settings of a node.
    pub(crate) fn security(self) -> Result<Security, Error> {
        let folder = self.folder();
        match self.way {
            Way::Certificates => Security::certificates(
                folder.join("node.pem"),
                folder.join("node.key"),
                folder.join("ca.pem"),
            ),
            Way::Secret => {
                SharedSecret::from_file(folder.join("cluster.key")).map(Security::shared_secret)
            }
        }
        .map_err(Error::subject)
    }
}
