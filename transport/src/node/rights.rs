//! The rights of this process, compared to those of the user who started it.

/// Returns whether the process runs with more rights than the user who started it: it is setuid or
/// setgid, or has file capabilities (`AT_SECURE` in getauxval(3)). What that user sets in the
/// environment is not to be trusted then.
#[must_use]
pub fn has_more_rights_than_its_user() -> bool {
    // SAFETY: `getauxval` reads a vector that the kernel wrote before the process began.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}
