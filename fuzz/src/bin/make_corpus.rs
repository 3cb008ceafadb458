//! Writes all files of `fuzz/corpus`.

use std::{fs, io};

use ibex_fuzz::{TARGETS, corpus_directory};

fn main() -> io::Result<()> {
    let corpus = corpus_directory();
    match fs::remove_dir_all(&corpus) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    for target in TARGETS {
        let directory = corpus.join(target.name);
        fs::create_dir_all(&directory)?;
        for seed in (target.seeds)() {
            fs::write(directory.join(seed.name), target.input(&seed.bytes))?;
        }
    }
    Ok(())
}
