//! Trials of a matrix of works, fabrics and drivers.

use libtest_mimic::Trial;

use crate::{Cell, DriverName, fabrics};

/// Returns a trial of each of these works, over each fabric of this machine and by each of these
/// drivers, called `work/fabric/driver`.
#[must_use]
pub fn trials<W: Copy + Send + 'static>(
    works: &[(&str, W)],
    drivers: &[DriverName],
    play: fn(Cell, W),
) -> Vec<Trial> {
    let mut trials = Vec::new();
    for over in fabrics() {
        for &driver in drivers {
            let cell = Cell { over, driver };
            trials.extend(works.iter().map(|&(name, work)| {
                Trial::test(format!("{name}/{cell}"), move || {
                    play(cell, work);
                    Ok(())
                })
            }));
        }
    }
    trials
}
