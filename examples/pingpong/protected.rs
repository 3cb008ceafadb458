//! The files by which the nodes of one run authenticate each other.

use std::{fs, io, path::Path, process};

use ibex_harness::{
    Error,
    authority::{Authority, Request},
};

use crate::measurement::protection::{Protection, Way};

/// Makes an authority, and a certificate for both nodes.
pub(crate) fn by_certificates() -> Result<Protection, Error> {
    let protection = of(Way::Certificates);
    let make = || -> io::Result<()> {
        let authority = Authority::new("pingpong", &protection.folder())?;
        authority.issue(&Request::new("node", &["spiffe://pingpong/node"]))?;
        Ok(())
    };
    make().map_err(Error::subject)?;
    Ok(protection)
}

/// Takes the shared secret in `file`.
pub(crate) fn by_secret(file: &Path) -> Result<Protection, Error> {
    let protection = of(Way::Secret);
    let folder = protection.folder();
    let copied =
        fs::create_dir_all(&folder).and_then(|()| fs::copy(file, folder.join("cluster.key")));
    let failed = |error| Error::subject(format!("--secret {}: {error}", file.display()));
    copied.map_err(failed)?;
    Ok(protection)
}

/// Removes the files.
pub(crate) fn remove(protection: Protection) {
    let _ = fs::remove_dir_all(protection.folder());
}

fn of(way: Way) -> Protection {
    let number = process::id();
    Protection { number, way }
}
