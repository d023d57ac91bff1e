//! Layer gate: counts the copies that a layer of a bound range still needs, and wakes its one waiter.
//!
//! `remaining` is UNBOUND before the range is bound, then the number of tokens plus one (the binder's own, so that the layer cannot
//! complete while it is being bound), and 0 when the last copy is in place.
//!
//! # Memory ordering
//! L1 each `complete` releases its copy and the last one acquires them all (AcqRel); L2 the waiter's load (Acquire) pairs with L1. The
//! waiter registers its waker before it looks (L3) and the completer looks for a waker after it has counted (L4): `AtomicWaker` orders
//! the two, so either the waiter sees 0 or the completer sees the waker (no lost wake-up).

use crate::sync::seeded::{self, Bug};
use crate::sync::{AtomicU32, AtomicWaker, Ordering};
use std::task::Waker;

const UNBOUND: u32 = u32::MAX;

/// See the module text.
pub struct LayerGate {
    remaining: AtomicU32,
    waker: AtomicWaker,
}

impl std::fmt::Debug for LayerGate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LayerGate").field("remaining", &self.remaining).finish_non_exhaustive()
    }
}

impl Default for LayerGate {
    fn default() -> Self {
        Self::new()
    }
}

impl LayerGate {
    /// An unbound gate.
    pub fn new() -> Self {
        Self { remaining: AtomicU32::new(UNBOUND), waker: AtomicWaker::new() }
    }

    /// Binds: `tokens` copies and the caller's own [`LayerGate::complete`] are to come. For the runner.
    pub fn arm(&self, tokens: u32) {
        debug_assert!(tokens < UNBOUND - 1);
        self.remaining.store(tokens + 1, Ordering::Release);
    }

    /// Back to unbound. For the waiter of a complete layer, or the runner of an ended request.
    pub fn reset(&self) {
        if !seeded::is(Bug::LayerResetSkipped) {
            self.remaining.store(UNBOUND, Ordering::Release);
        }
    }

    /// `n` copies are in place, or will never be made. True: the layer is complete, and the caller must [`LayerGate::wake`] the waiter
    /// (once it holds no claim: a waker may run anything).
    #[must_use]
    pub fn complete(&self, n: u32) -> bool {
        let ordering = if seeded::is(Bug::LayerCompleteRelaxed) { Ordering::Relaxed } else { Ordering::AcqRel };
        self.remaining.fetch_sub(n, ordering) == n // L1
    }

    /// Lets the waiter look around: the layer is complete, or the request or the scheduler has ended.
    pub fn wake(&self) {
        self.waker.wake(); // L4
    }

    /// Whether the layer is complete.
    pub fn is_complete(&self) -> bool {
        self.remaining.load(Ordering::Acquire) == 0 // L2
    }

    /// Whether nobody copies or will copy: the layer is unbound or complete.
    pub fn is_quiet(&self) -> bool {
        seeded::is(Bug::LayerAlwaysQuiet) || matches!(self.remaining.load(Ordering::Acquire), 0 | UNBOUND)
    }

    /// Copies still to come of a bound layer; `None` while unbound.
    pub fn remaining(&self) -> Option<u32> {
        let n = self.remaining.load(Ordering::Acquire); // pairs with `arm`, and with L1
        (n != UNBOUND).then_some(n)
    }

    /// Registers the waiter's waker; it must look at everything it waits for afterwards (L3).
    pub fn register(&self, waker: &Waker) {
        #[cfg(not(loom))]
        self.waker.register(waker);
        #[cfg(loom)]
        self.waker.register_by_ref(waker);
    }

    /// Drops the waker of a waiter that gives up, which would otherwise keep its task alive. For the one waiter.
    pub fn unregister(&self) {
        #[cfg(not(loom))]
        drop(self.waker.take());
        #[cfg(loom)]
        drop(self.waker.take_waker());
    }

    /// Whether the layer is complete; if not, `waker` is woken when it is.
    pub fn poll(&self, waker: &Waker) -> bool {
        if seeded::is(Bug::LayerRegisterLate) {
            let complete = self.is_complete();
            self.register(waker);
            return complete;
        }
        if self.is_complete() {
            return true;
        }
        self.register(waker); // L3
        self.is_complete()
    }
}
