//! Pinning the calling thread to a CPU, best effort.
//!
//! Why best effort: containers, cpusets and other systems refuse or ignore it, and nothing but speed depends on it. What is reported is
//! what the kernel says afterwards, never what was asked for.

use crate::sync::OnceLock;

/// What became of the wish to pin a thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Pinned {
    /// The thread runs on this CPU alone.
    To {
        /// The system's number of the CPU.
        cpu: usize,
    },
    /// It runs where it ran before.
    No {
        /// The cause.
        why: String,
    },
}

/// The CPUs that the process was allowed to use when first asked, before any thread of ours was pinned.
fn allowed_cpus() -> &'static [core_affinity::CoreId] {
    static ALLOWED: OnceLock<Vec<core_affinity::CoreId>> = OnceLock::new();
    // `get_core_ids` asks for the calling thread's mask, which a pinned thread has narrowed: so it is asked once.
    ALLOWED.get_or_init(|| core_affinity::get_core_ids().unwrap_or_default())
}

/// Pins the calling thread to the `index`-th CPU that it is allowed to use, counted round.
///
/// The set is read at the first call in the process and kept: call it first from a thread that is not yet pinned.
pub fn pin_to_allowed_cpu(index: usize) -> Pinned {
    let allowed = allowed_cpus();
    let Some(&core) = (!allowed.is_empty()).then(|| &allowed[index % allowed.len()]) else {
        return Pinned::No { why: "this system does not tell which CPUs may be used".into() };
    };
    if !core_affinity::set_for_current(core) {
        return Pinned::No { why: format!("the system refuses to pin the thread to CPU {}", core.id) };
    }
    #[cfg(any(target_os = "linux", target_os = "android"))]
    match core_affinity::get_core_ids() {
        Some(now) if now == [core] => {}
        now => {
            let now: Vec<usize> = now.unwrap_or_default().iter().map(|c| c.id).collect();
            return Pinned::No { why: format!("asked for CPU {}, the thread may run on {now:?}", core.id) };
        }
    }
    Pinned::To { cpu: core.id }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_claimed_is_what_the_kernel_says() {
        let all = allowed_cpus().len();
        assert!(all > 0);
        for index in 0..all + 1 {
            crate::sync::thread::scope(|s| {
                s.spawn(|| match pin_to_allowed_cpu(index) {
                    Pinned::To { cpu } => {
                        assert_eq!(cpu, allowed_cpus()[index % all].id);
                        assert_eq!(core_affinity::get_core_ids().unwrap().len(), 1);
                    }
                    Pinned::No { why } => println!("SKIP: not pinned: {why}"),
                });
            });
        }
    }
}
