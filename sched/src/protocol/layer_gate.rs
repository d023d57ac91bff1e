//! Layer gate: counts the rows that a layer of a step still needs, and wakes its one waiter.
//!
//! `remaining` is UNBOUND before the step is set up, then the number of rows plus two: one of who sets the step up, so that the layer
//! cannot complete meanwhile, and the last one, of whoever counts the last row: it finishes the layer (zeroes failed entries, raises the
//! fence) while nobody else touches it, and opens the gate (0).
//!
//! # Memory ordering
//! L1 each `complete` releases its row and the last one acquires them all (AcqRel); `open` (Release) publishes the finished layer, and L2
//! the waiter's load (Acquire) pairs with it. The waiter registers its waker before it looks (L3) and the opener looks for a waker
//! after it has opened (L4): `AtomicWaker` orders the two, so either the waiter sees 0 or the opener sees the waker (no lost wake-up).

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

    /// Begins: `rows` rows and the caller's own [`LayerGate::complete`] are to come. For who sets the step up.
    pub fn arm(&self, rows: u32) {
        debug_assert!(rows < UNBOUND - 2);
        self.remaining.store(rows + 2, Ordering::Release);
    }

    /// Back to unbound. For the waiter of a complete layer, or the runner of an ended request.
    pub fn reset(&self) {
        if !seeded::is(Bug::LayerResetSkipped) {
            self.remaining.store(UNBOUND, Ordering::Release);
        }
    }

    /// `n` rows are in place, or will never be. True: they were the last, the caller finishes the layer and calls [`LayerGate::open`].
    #[must_use]
    pub fn complete(&self, n: u32) -> bool {
        let ordering = if seeded::is(Bug::LayerCompleteRelaxed) { Ordering::Relaxed } else { Ordering::AcqRel };
        self.remaining.fetch_sub(n, ordering) == n + 1 // L1
    }

    /// Keeps an incomplete layer from completing, until a [`LayerGate::complete`] of one. False: the last row has been counted.
    #[must_use]
    pub fn hold(&self) -> bool {
        let more = |n: u32| (n > 1 && n != UNBOUND).then(|| n + 1);
        self.remaining.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).is_ok()
    }

    /// The layer is finished: its waiter may have it. For the one who counted the last row; it wakes the waiter afterwards, once it holds no
    /// claim (a waker may run anything).
    pub fn open(&self) {
        self.remaining.store(0, Ordering::Release);
    }

    /// Lets the waiter look around: the layer is complete, or the request or the scheduler has ended.
    pub fn wake(&self) {
        self.waker.wake(); // L4
    }

    /// Whether the layer is complete.
    pub fn is_complete(&self) -> bool {
        self.remaining.load(Ordering::Acquire) == 0 // L2
    }

    /// Whether nobody writes there or will: the layer is unbound or complete.
    pub fn is_quiet(&self) -> bool {
        seeded::is(Bug::LayerAlwaysQuiet) || matches!(self.remaining.load(Ordering::Acquire), 0 | UNBOUND)
    }

    /// Rows still to come of a layer that has begun; `None` while unbound.
    pub fn remaining(&self) -> Option<u32> {
        let n = self.remaining.load(Ordering::Acquire); // pairs with `arm`, and with L1
        (n != UNBOUND).then_some(n.saturating_sub(1))
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
