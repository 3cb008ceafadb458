//! Huge pages: whether the system gives them to memory that asks, and how much got some.
//!
//! ibex asks for huge pages by advice (transparent huge pages), for memory that is used whole. It
//! does not use pages of hugetlbfs: the administrator sets them aside for other programs; a pool
//! cannot give part of one back; and libibverbs has to be told of them (`RDMAV_HUGEPAGES_SAFE`) or
//! refuses the memory.
#![forbid(unsafe_code)]

use std::{fmt, fs, ops::Range};

/// The system's policy on huge pages for memory that asks for them ([transparent
/// hugepages](https://docs.kernel.org/admin-guide/mm/transhuge.html)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HugePages {
    /// Memory that asks gets huge pages, or all memory does: as many as there are when memory is
    /// touched, and ordinary pages for the rest.
    Asked,
    /// Memory gets no huge pages.
    Never,
    /// The policy is unknown: the kernel has no huge pages, or hides the setting.
    Unknown,
}

impl HugePages {
    /// Returns the system's setting.
    #[must_use]
    pub fn of_system() -> Self {
        Self::from_setting(&fs::read_to_string(SETTING).unwrap_or_default())
    }

    fn from_setting(setting: &str) -> Self {
        match setting
            .split_whitespace()
            .find(|word| word.starts_with('['))
        {
            Some("[always]" | "[madvise]") => Self::Asked,
            Some("[never]") => Self::Never,
            _ => Self::Unknown,
        }
    }
}

impl fmt::Display for HugePages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Asked => "huge ones for large memory, as far as there are",
            Self::Never => {
                "ordinary ones; for huge ones `echo madvise > \
                 /sys/kernel/mm/transparent_hugepage/enabled`"
            }
            Self::Unknown => "ordinary ones; the kernel does not say that it has others",
        })
    }
}

/// The length of a huge page, and the alignment of its beginning.
pub(super) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Returns how much of a range of addresses is in huge pages, if the kernel reports it. Reads a
/// file of some 100 KB, so it is for set-up only.
#[must_use]
pub fn huge_bytes(range: &Range<usize>) -> Option<usize> {
    Some(huge_bytes_in(
        &fs::read_to_string("/proc/self/smaps").ok()?,
        range,
    ))
}

/// The kernel may have joined the range with its neighbours, and counts them together then.
fn huge_bytes_in(smaps: &str, range: &Range<usize>) -> usize {
    let mut overlap = 0;
    let mut huge = 0;
    for line in smaps.lines() {
        if let Some(mapped) = mapped_range(line) {
            let (start, end) = (mapped.start.max(range.start), mapped.end.min(range.end));
            overlap = end.saturating_sub(start);
        } else if let Some(kib) = line.strip_prefix("AnonHugePages:") {
            let kib: usize = kib.trim().trim_end_matches(" kB").parse().unwrap_or(0);
            huge += overlap.min(kib << 10);
        }
    }
    huge
}

/// The addresses that a mapping's first line begins with.
pub(super) fn mapped_range(line: &str) -> Option<Range<usize>> {
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    let bound = |hex| usize::from_str_radix(hex, 16).ok();
    Some(bound(start)?..bound(end)?)
}

/// The kernel's setting ([transparent
/// hugepages](https://docs.kernel.org/admin-guide/mm/transhuge.html)).
const SETTING: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_in_brackets_is_the_setting() {
        let of = HugePages::from_setting;
        assert_eq!(of("always [madvise] never\n"), HugePages::Asked);
        assert_eq!(of("[always] madvise never\n"), HugePages::Asked);
        assert_eq!(of("always madvise [never]\n"), HugePages::Never);
        assert_eq!(of(""), HugePages::Unknown);
    }

    #[test]
    fn huge_pages_of_a_range_are_summed_and_no_more_than_it_is_long() {
        let smaps = "7f0000000000-7f0000400000 rw-p 00000000 00:00 0\n\
                     Size: 4096 kB\nAnonHugePages:      2048 kB\n\
                     7f0000400000-7f0000800000 rw-p 00000000 00:00 0 [anon: x]\n\
                     AnonHugePages:      4096 kB\n";
        let base = 0x7f00_0000_0000_usize;
        let huge = |from, to| huge_bytes_in(smaps, &(base + from..base + to));
        assert_eq!(huge(0, 4 << 20), 2 << 20);
        assert_eq!(huge(0, 8 << 20), 6 << 20);
        assert_eq!(huge(0, 1 << 20), 1 << 20);
        assert_eq!(huge(8 << 20, 9 << 20), 0);
    }
}
