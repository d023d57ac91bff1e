//! What the kernel says about this process and this machine, read from `/proc`; figures that cannot be had are `None`.

use std::fs;

/// CPU time of all threads that live now, nanoseconds.
pub(crate) fn cpu_ns() -> Option<u64> {
    let mut sum = 0;
    for task in fs::read_dir("/proc/self/task").ok()?.flatten() {
        // A thread may end between the listing and the read.
        if let Ok(text) = fs::read_to_string(task.path().join("schedstat")) {
            sum += text.split_whitespace().next()?.parse::<u64>().ok()?;
        }
    }
    Some(sum)
}

/// Lets sleeps of this thread end on time: the kernel may otherwise add 50 us to each.
pub(crate) fn exact_timers() {
    // Without permission the sleeps are merely later, which the absolute times of the engine absorb.
    let _ = fs::write("/proc/self/timerslack_ns", "1");
}

/// Kernel release.
pub(crate) fn kernel() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").map_or_else(|_| "unknown".into(), |text| text.trim().to_owned())
}

/// CPUs this process may use.
pub(crate) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Memory that can be had without swapping.
pub(crate) fn memory_available_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok())?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_this_machine() {
        assert!(cpu_ns().is_some_and(|ns| ns > 0));
        assert!(memory_available_bytes().is_some_and(|bytes| bytes > 1 << 20));
        assert!(cpus() > 0 && kernel() != "unknown");
    }
}
