//! The guest, whose settings some tests change for all of its processes.

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{env, fs};

/// Returns the guest, reserved for as long as this is kept, since some tests change it for all
/// processes. Returns `None` elsewhere, unless `IBEX_TEST_GUEST` claims that this is the guest:
/// tests must not take anything from a real machine.
pub(crate) fn guest() -> Option<MutexGuard<'static, ()>> {
    static GUEST: Mutex<()> = Mutex::new(());
    if !Path::new("/run/vm/settings").exists() {
        assert_eq!(env::var_os("IBEX_TEST_GUEST"), None);
        println!("this is not the guest: nothing is taken away");
        return None;
    }
    Some(GUEST.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A change of the whole guest, undone when this is dropped.
pub(crate) struct Changed {
    undo: &'static str,
}

impl Changed {
    pub(crate) fn by(commands: &str, undo: &'static str) -> Self {
        let changed = Self { undo };
        shell(commands);
        changed
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        shell(self.undo);
    }
}

pub(crate) fn shell(commands: &str) {
    let status = Command::new("sh").args(["-e", "-c", commands]).status();
    assert!(status.expect("a shell").success(), "{commands}");
}

/// Returns the index of the guest's address in the table of its device's port.
pub(crate) fn place_of_the_address() -> Option<usize> {
    let table = "/sys/class/infiniband/rxe0/ports/1/gids";
    let gid = |place: &usize| fs::read_to_string(format!("{table}/{place}")).ok();
    // This is 192.0.2.1 in the notation of IPv6.
    let is_its =
        |place: &usize| gid(place).is_some_and(|gid| gid.trim().ends_with(":ffff:c000:0201"));
    (0..16).find(is_its)
}
