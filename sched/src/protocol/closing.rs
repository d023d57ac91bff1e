//! Closing: the flag after which nobody waits, and the order in which it is raised.
//!
//! `close` raises the flag, then wakes everybody who may be asleep. Whoever is about to sleep makes itself known first (registers its
//! waker, announces sleep) and looks at the flag afterwards.
//!
//! # Memory ordering
//! C1 the flag is stored (AcqRel) before C2 the wakes; W1 a sleeper registers before W2 it loads the flag (Acquire). The wake and the
//! registration meet in one word (of the waker, of the doorbell): if the wake comes second it finds the sleeper, if the registration
//! comes second it acquires what the waker did before, the flag included.
//!
//! A step that is submitted while the scheduler closes has nobody asleep yet, but its fences must be raised all the same, by the closer,
//! who looks at all steps, or by the submitter. C1 and a fence (SeqCst) come before the closer's look; the submitter claims the step's
//! slot, then a fence, then it asks [`Closing::reason_after_claim`]. One of the two fences is first: either the closer sees the claim or
//! the submitter sees the flag.

use crate::sync::seeded::{self, Bug};
use crate::sync::{AtomicU32, Ordering, fence};

/// See the module text. The reason is a small number above 0.
#[derive(Debug, Default)]
pub struct Closing {
    reason: AtomicU32,
}

impl Closing {
    /// Open.
    pub fn new() -> Self {
        Self { reason: AtomicU32::new(0) }
    }

    /// The first reason given, 0 while open.
    pub fn reason(&self) -> u32 {
        self.reason.load(Ordering::Acquire) // W2
    }

    /// The same, for who has just claimed something that a close must end.
    pub fn reason_after_claim(&self) -> u32 {
        if !seeded::is(Bug::ClaimSkipsFence) {
            fence(Ordering::SeqCst);
        }
        self.reason()
    }

    /// Closes for `reason` unless closed already, then calls `wake_all`.
    pub fn close(&self, reason: u32, wake_all: impl FnOnce()) {
        let raise = || {
            let _ = self.reason.compare_exchange(0, reason, Ordering::AcqRel, Ordering::Acquire); // C1
            fence(Ordering::SeqCst);
        };
        if seeded::is(Bug::ShutdownWakesFirst) {
            wake_all();
            raise();
        } else {
            raise();
            wake_all(); // C2
        }
    }
}
