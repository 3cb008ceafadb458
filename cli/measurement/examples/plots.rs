//! Draws the pictures of README.md and BENCHMARKS.md again, as `cargo xtask bench --plots` does.

use std::{fs, path::Path};

use ibex_harness::Error;
use ibex_measurement::figures;

fn main() -> Result<(), Error> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (path, picture) in figures::pictures(&root)? {
        fs::write(root.join(path), picture).map_err(Error::subject)?;
        println!("{path}");
    }
    Ok(())
}
