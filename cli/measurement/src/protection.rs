//! Authentication of the nodes that are measured.

use ibex::{Security, SharedSecret};
use ibex_harness::{
    Error,
    run_keys::{KeyFiles, RunKeys},
};

/// Returns the settings of a node with these keys.
pub fn security(keys: RunKeys) -> Result<Security, Error> {
    match keys.files() {
        KeyFiles::Certificates(files) => {
            Security::certificates(files.chain, files.key, files.authorities)
        }
        KeyFiles::Secret(file) => SharedSecret::from_file(file).map(Security::shared_secret),
    }
    .map_err(Error::subject)
}
