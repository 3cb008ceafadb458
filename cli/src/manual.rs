//! Completions and manual pages, from the command line's own description.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use clap::CommandFactory;

use crate::Failure;
use crate::options::Options;

/// Prints the completions of a shell.
pub(crate) fn completions(shell: clap_complete::Shell) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Options::command(), "ibex", &mut script);
    print(&script)
}

/// Prints the manual page, or writes one for each subcommand too.
pub(crate) fn man(folder: Option<&Path>) -> Result<u8, Failure> {
    let Some(folder) = folder else {
        let mut page = Vec::new();
        clap_mangen::Man::new(Options::command()).render(&mut page)?;
        return print(&page);
    };
    let written = fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(Options::command(), folder));
    written.map_err(|error| Failure::said(format!("{}: {error}", folder.display())))?;
    Ok(0)
}

fn print(bytes: &[u8]) -> Result<u8, Failure> {
    let mut output = io::stdout().lock();
    output.write_all(bytes)?;
    output.flush()?;
    Ok(0)
}
