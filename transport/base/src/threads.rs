//! Threads that the library makes.
#![forbid(unsafe_code)]

use std::{
    io,
    thread::{self, JoinHandle},
};

/// Makes a thread of that name, which runs `work`.
///
/// # Errors
/// The system's error, with the thread's name and the limits to raise.
pub fn spawn<T: Send + 'static>(
    name: impl Into<String>,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let name = name.into();
    let thread = thread::Builder::new().name(name.clone());
    thread.spawn(work).map_err(|error| refused(&name, &error))
}

fn refused(name: &str, error: &io::Error) -> io::Error {
    let text = format!(
        "the thread {name} could not be made ({error}); raise the limit of threads (ulimit -u, \
         pids.max of the control group), or end some"
    );
    io::Error::new(error.kind(), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_its_name_and_its_refusal_too() {
        let name = || thread::current().name().map(str::to_owned);
        let named = spawn("ibex-test", name).expect("a thread").join();
        assert_eq!(named.expect("it ends").as_deref(), Some("ibex-test"));
        // EAGAIN, as of a process at its limit.
        let error = refused("ibex-io", &io::Error::from_raw_os_error(11));
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        let text = error.to_string();
        assert!(
            text.starts_with("the thread ibex-io could not be made (Resource"),
            "{text}"
        );
        assert!(text.contains("ulimit -u"), "{text}");
    }
}
