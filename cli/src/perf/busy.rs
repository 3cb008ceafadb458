//! How busy other programs keep the processors before anything is measured.

use std::{fs, thread, time::Duration};

/// Returns the share of the time of these cores, in percent, in which they ran something, over a
/// fifth of a second; `None` if the kernel does not tell.
pub(super) fn percent(cores: &[usize]) -> Option<u64> {
    let times = || times(&fs::read_to_string("/proc/stat").ok()?, cores);
    let (idle, all) = times()?;
    thread::sleep(Duration::from_millis(200));
    let (idle_then, all_then) = times()?;
    let (idle, all) = (idle_then.saturating_sub(idle), all_then.saturating_sub(all));
    (all > 0).then(|| 100 - (100 * idle / all).min(100))
}

/// Returns the idle time and all time of these cores from `/proc/stat`, in ticks; see
/// [proc_stat(5)](https://man7.org/linux/man-pages/man5/proc_stat.5.html).
fn times(text: &str, cores: &[usize]) -> Option<(u64, u64)> {
    let (mut idle, mut all) = (0, 0);
    let mut found = 0;
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let core = words.next().and_then(|name| name.strip_prefix("cpu"));
        let core = core.and_then(|core| core.parse().ok());
        if core.is_none_or(|core: usize| !cores.contains(&core)) {
            continue;
        }
        // The guests' times, which follow, are in the user times already.
        let ticks: Option<Vec<u64>> = words.take(8).map(|word| word.parse().ok()).collect();
        let ticks = ticks.filter(|ticks| ticks.len() == 8)?;
        idle += ticks[3] + ticks[4];
        all += ticks.iter().sum::<u64>();
        found += 1;
    }
    (found > 0).then_some((idle, all))
}

/// The least share at which it is reported. A machine at rest has a percent or two.
pub(super) const TOLD: u64 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_of_the_chosen_cores_are_added() {
        let text = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 40 5 6 7 8 100 0\n\
                    cpu1 0 0 0 10 0 0 0 0 0 0\ncpu10 1 0 0 2 0 0 0 0 0 0\nintr 5\n";
        assert_eq!(times(text, &[0]), Some((45, 72)));
        assert_eq!(times(text, &[1, 10]), Some((12, 13)));
        assert_eq!(times(text, &[2]), None);
        assert_eq!(times("cpu0 1 2", &[0]), None);
    }
}
