//! Doorbell: wakes an actor that has announced sleep, and only then.
//!
//! One word, `sleeping`, and a queue that belongs to the caller.
//!
//! ```text
//! producer                          actor
//! P1 push to the queue              S1 announce: sleeping = 1
//! P2 fence(SeqCst)                  S2 fence(SeqCst)
//! P3 sleeping == 1 ?                S3 queue empty ?
//! P4 swap to 0; had 1: wake         S4 empty: sleep until woken; else retract
//! ```
//!
//! # Memory ordering
//! The danger is Dekker's: the producer's push (P1) and the actor's announcement (S1) each sit in a store buffer while both read
//! the old value of the other (P3, S3): the actor sleeps on a full queue. P2 pairs with S2: one of the fences comes first in the
//! single order of SeqCst fences. If P2 does, S3 sees the push; if S2 does, P3 sees the announcement and wakes. Release/acquire
//! cannot order a store before a later load, so weaker orderings do not do (CASES 4.01). P4's swap lets one producer of several
//! do the wake. The wake itself must be sticky (an eventfd, a park token): it may come between S3 and S4.

use crate::sync::seeded::{self, Bug};
use crate::sync::{AtomicU32, Ordering, fence};

/// See the module text.
#[derive(Debug)]
pub struct Doorbell {
    sleeping: AtomicU32,
}

impl Default for Doorbell {
    fn default() -> Self {
        Self::new()
    }
}

impl Doorbell {
    /// A doorbell whose actor is awake.
    pub fn new() -> Self {
        Self { sleeping: AtomicU32::new(0) }
    }

    /// Called after a push. True: the caller must wake the actor.
    #[must_use]
    pub fn ring(&self) -> bool {
        if !seeded::is(Bug::DoorbellRingFence) {
            fence(Ordering::SeqCst); // P2, pairs with S2
        }
        // Relaxed: ordered by the fence; the swap decides among producers.
        self.sleeping.load(Ordering::Relaxed) == 1 && self.sleeping.swap(0, Ordering::Relaxed) == 1
    }

    /// The actor says that it is about to sleep. It must look at its queues once more before it does.
    pub fn announce(&self) {
        // S1. A swap like P4, so that both have a place in one order: a store may not fall between a swap and the value it read, but
        // loom lets it (seen with two producers at three preemptions), and a model that raises false alarms finds nothing.
        self.sleeping.swap(1, Ordering::Relaxed);
        if !seeded::is(Bug::DoorbellSleepFence) {
            fence(Ordering::SeqCst); // S2, pairs with P2
        }
    }

    /// The actor is awake again.
    pub fn retract(&self) {
        self.sleeping.swap(0, Ordering::Relaxed); // a swap: see `announce`
    }
}
