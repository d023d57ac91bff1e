//! What the kernel says about this process and this machine, read from `/proc`; figures that cannot be had are `None`.

use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::time::Duration;

/// CPU time of the process, ended threads included.
pub(crate) fn process_cpu() -> Duration {
    cpu_time(ClockId::ProcessCPUTime)
}

/// CPU time of this thread. Not a wall clock: a thread that spins and is not scheduled spends none.
pub(crate) fn thread_cpu() -> Duration {
    cpu_time(ClockId::ThreadCPUTime)
}

fn cpu_time(clock: ClockId) -> Duration {
    // Neither part is negative on these clocks.
    let time = clock_gettime(clock);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
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
        let before = thread_cpu();
        assert!(process_cpu() >= before && thread_cpu() >= before);
        assert!(memory_available_bytes().is_some_and(|bytes| bytes > 1 << 20));
        assert!(cpus() > 0 && kernel() != "unknown");
    }
}
