//! Processors, clock and descriptors.

use super::Diagnosis;
use crate::root::Root;

pub(super) fn check(root: &Root, diagnosis: &mut Diagnosis) {
    governor(root, diagnosis);
    clock(root, diagnosis);
    descriptors(root, diagnosis);
}

fn governor(root: &Root, diagnosis: &mut Diagnosis) {
    let folder = "/sys/devices/system/cpu/cpu0/cpufreq";
    let Some(governor) = root.read(&format!("{folder}/scaling_governor")) else {
        return diagnosis.fine(
            "cpu-governor",
            "the kernel does not change the processors' clock here",
        );
    };
    let driver = root
        .read(&format!("{folder}/scaling_driver"))
        .unwrap_or_default();
    // These two drivers leave the clock to the processor, under either of their governors.
    let is_by_processor =
        driver.starts_with("intel_pstate") || driver.starts_with("amd-pstate-epp");
    if governor == "performance" || (is_by_processor && governor != "powersave") {
        return diagnosis.fine("cpu-governor", governor);
    }
    diagnosis.warning(
        "cpu-governor",
        format!("The processors' governor is {governor}."),
        "A processor that waits for messages is clocked down, and takes longer for the next one.",
        "cpupower frequency-set -g performance",
    );
}

fn clock(root: &Root, diagnosis: &mut Diagnosis) {
    let file = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let Some(source) = root.read(file) else {
        return diagnosis.fine("clock-source", "the kernel does not name it");
    };
    let is_fast = [
        "tsc",
        "kvm-clock",
        "arch_sys_counter",
        "hyperv_clocksource_tsc_page",
    ];
    if is_fast.contains(&source.as_str()) {
        return diagnosis.fine("clock-source", source);
    }
    diagnosis.warning(
        "clock-source",
        format!("The kernel's clock source is {source}."),
        "Each look at the clock is then a system call, and a spinning wait looks often.",
        format!("echo tsc > {file} (if available_clocksource beside it has tsc; else the boot parameter tsc=reliable)"),
    );
}

fn descriptors(root: &Root, diagnosis: &mut Diagnosis) {
    const FEW: u64 = 1024;
    match root.soft_limit("Max open files") {
        Some(limit) if limit < FEW => diagnosis.warning(
            "descriptors",
            format!("This process may have {limit} descriptors open."),
            "Each session takes several; beyond the limit new ones wait or are refused.",
            "ulimit -n 65536; in a systemd unit LimitNOFILE=65536",
        ),
        Some(limit) => diagnosis.fine("descriptors", format!("{limit} may be open")),
        None => diagnosis.fine("descriptors", "no limit"),
    }
}
