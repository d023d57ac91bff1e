//! Watchdog: ends layers whose time is over, so that no fence stays down because a device hangs.
//!
//! One thread, which sleeps for good while no step runs, else until the next layer expires. It looks at steps, not at requests, and takes
//! part in nothing else: an I/O actor may be stuck in the kernel, and an engine may wait on a fence with no thread of its own. It holds no
//! batch and no read back.
//!
//! A submitter wakes it only if its step expires before the watchdog looks next: with the usual, constant time limit that happens once
//! in a while, not at every step.

use crate::core::Core;
use crate::protocol::fence::FenceStatus;
use crate::step::Wakes;
use crate::sync::{AtomicU64, Condvar, Mutex, Ordering, lock};
use std::time::Duration;

/// See the module text.
#[derive(Debug)]
pub(crate) struct Watchdog {
    /// When it looks next, nanoseconds of the scheduler's clock; `u64::MAX`: not before it is told.
    next_ns: AtomicU64,
    state: Mutex<State>,
    told: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The earliest expiry that it was told of since it looked.
    told_ns: Option<u64>,
    closed: bool,
}

impl Watchdog {
    pub(crate) fn new() -> Self {
        Self { next_ns: AtomicU64::new(u64::MAX), state: Mutex::new(State::default()), told: Condvar::new() }
    }

    /// A layer expires at `expires_ns`. For its submitter, after the layer can be found.
    pub(crate) fn tell(&self, expires_ns: u64) {
        if expires_ns < self.next_ns.fetch_min(expires_ns, Ordering::AcqRel) {
            let mut state = lock(&self.state);
            state.told_ns = Some(state.told_ns.map_or(expires_ns, |told| told.min(expires_ns)));
            self.told.notify_one();
        }
    }

    pub(crate) fn close(&self) {
        lock(&self.state).closed = true;
        self.told.notify_one();
    }

    /// Sleeps until `next_ns`, or less if told so. False: closed.
    fn sleep(&self, core: &Core, next_ns: u64) -> bool {
        let mut state = lock(&self.state);
        let mut until_ns = next_ns;
        loop {
            if state.closed {
                return false;
            }
            until_ns = state.told_ns.take().map_or(until_ns, |told| told.min(until_ns));
            let left_ns = until_ns.saturating_sub(core.now_ns());
            if left_ns == 0 {
                return true;
            }
            state = match until_ns {
                u64::MAX => self.told.wait(state).unwrap_or_else(|e| e.into_inner()),
                _ => {
                    let timed = self.told.wait_timeout(state, Duration::from_nanos(left_ns));
                    timed.unwrap_or_else(|e| e.into_inner()).0
                }
            };
        }
    }
}

/// The watchdog's thread.
pub(crate) fn watch(core: &Core) {
    let mut next_ns = u64::MAX;
    while core.steps.watchdog.sleep(core, next_ns) {
        // First the mark, then the look. A submitter stores its expiry, then looks at the mark: if it came before this swap, the swap
        // acquires it and the look finds the expiry; if it comes after, it finds the mark and tells.
        core.steps.watchdog.next_ns.swap(u64::MAX, Ordering::AcqRel);
        next_ns = core.end_expired();
        core.steps.watchdog.next_ns.fetch_min(next_ns, Ordering::AcqRel);
    }
}

impl Core {
    /// Ends the layers whose time is over; returns when the next one's will be.
    fn end_expired(&self) -> u64 {
        let now_ns = self.now_ns();
        let mut next_ns = u64::MAX;
        for index in self.steps.slots() {
            let step = self.steps.get(index);
            let Some(generation) = step.lease.current() else { continue };
            if !step.lease.hold(generation) {
                continue;
            }
            let mut wakes = Wakes::default();
            for (table, layer) in step.layers.iter().enumerate() {
                let expires_ns = layer.expires_ns.load(Ordering::Acquire);
                if expires_ns > now_ns {
                    if !layer.gate.is_quiet() {
                        next_ns = next_ns.min(expires_ns);
                    }
                } else {
                    self.end_layer(index, generation, table, FenceStatus::Timeout, &mut wakes);
                }
            }
            self.wake(wakes);
            step.lease.release();
        }
        next_ns
    }
}
