//! The verbs layer: built with its bindings, tested over the fake device, and on the
//! guest's real one.

use std::env;

use crate::failure::Failure;
use crate::step::Step;
use crate::tool::{CLIPPY, CMAKE, DEBIAN_KEYRING, KMOD, LIBCLANG, QEMU, Tool, XZ};
use crate::twins::executable;
use crate::watchdog::Watchdog;

/// What checking the bindings needs.
pub(crate) const BINDING_TOOLS: &[Tool] = &[CLIPPY, CMAKE, LIBCLANG];

/// What the stage needs.
pub(crate) const TOOLS: &[Tool] = &[CMAKE, LIBCLANG, QEMU, KMOD, XZ, DEBIAN_KEYRING];

/// The stage `verbs` of `cargo xtask test`.
///
/// `IBEX_TEST_DEVICE` names a device of this machine to test on; without it the guest's
/// is used.
pub(crate) fn stage(watchdog: &Watchdog) -> Result<(), Failure> {
    let on_fake = "cargo test -p ibex-transport --features verbs --lib verbs::";
    Step::of_line(on_fake).run(watchdog)?;
    let build = Step::of_line(
        "cargo test -p ibex-transport --features verbs --test verbs_device --no-run \
         --message-format json-render-diagnostics",
    );
    let built = build.capture(watchdog)?;
    let program = executable(&built.stdout).filter(|_| built.status.success());
    let program = program.ok_or_else(|| Failure::new(format!("`{build}`: {}", built.status)))?;
    if env::var_os("IBEX_TEST_DEVICE").is_some() {
        return Step::new(program).run(watchdog);
    }
    let xtask = env::current_exe()
        .map_err(|error| Failure::new(format!("the path of this program: {error}")))?;
    Step::new(&xtask.to_string_lossy())
        .args(["vm", "--no-install", "--", program])
        .env("IBEX_TEST_DEVICE", GUEST_DEVICE)
        .run(watchdog)
}

/// The guest's only device.
const GUEST_DEVICE: &str = "rxe0";
