//! The CPUs that this process may use, and pinning a thread to some of them.
//!
//! Threads and processes inherit the mask of the thread that starts them. A program whose library
//! starts threads of its own therefore confines itself to both CPUs of the pair first, and pins its
//! threads only afterwards.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::Error;

/// The two CPUs of a pair: this process's, then its peer's.
pub type Cores = [usize; 2];

/// Returns the CPUs on which the calling thread may run, in ascending order.
pub fn allowed() -> Result<Vec<usize>, Error> {
    let set = sched_getaffinity(None).map_err(Error::io("reading the CPU affinity mask"))?;
    Ok((0..CpuSet::MAX_CPU)
        .filter(|&core| set.is_set(core))
        .collect())
}

/// Returns two CPUs for a pair: the wanted ones if they are allowed, or the first two allowed.
///
/// Call it before [`keep_to`], which narrows the allowed CPUs.
pub fn choose(wanted: Option<Cores>) -> Result<Cores, Error> {
    let allowed = allowed()?;
    let Some(cores) = wanted else {
        return match allowed[..] {
            [first, second, ..] => Ok([first, second]),
            _ => Err(Error::OneCore { allowed }),
        };
    };
    match cores.into_iter().find(|core| !allowed.contains(core)) {
        Some(core) => Err(Error::Core { core, allowed }),
        None if cores[0] == cores[1] => Err(Error::OneCore {
            allowed: vec![cores[0]],
        }),
        None => Ok(cores),
    }
}

/// Confines the calling thread, and threads and processes that it starts later, to these CPUs.
pub fn keep_to(cores: &[usize]) -> Result<(), Error> {
    let mut set = CpuSet::new();
    for &core in cores.iter().filter(|&&core| core < CpuSet::MAX_CPU) {
        set.set(core);
    }
    sched_setaffinity(None, &set).map_err(Error::io("setting the CPU affinity mask"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_that_is_not_ours_is_named() {
        let error = choose(Some([CpuSet::MAX_CPU, 0])).unwrap_err();
        assert!(
            error.to_string().contains(&CpuSet::MAX_CPU.to_string()),
            "{error}"
        );
    }

    #[test]
    fn one_core_cannot_be_both() {
        let core = allowed().unwrap()[0];
        assert!(matches!(
            choose(Some([core, core])),
            Err(Error::OneCore { .. })
        ));
    }

    #[test]
    fn a_thread_stays_where_it_was_put() {
        std::thread::spawn(|| {
            let core = allowed().unwrap()[0];
            keep_to(&[core]).unwrap();
            assert_eq!(allowed().unwrap(), [core]);
        })
        .join()
        .unwrap();
    }
}
