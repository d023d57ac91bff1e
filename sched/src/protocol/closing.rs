//! Closing: the flag after which nobody waits, and the order in which it is raised.
//!
//! `close` raises the flag, then wakes everybody who may be asleep. Whoever is about to sleep makes itself known first (registers its
//! waker, announces sleep) and looks at the flag afterwards.
//!
//! # Memory ordering
//! C1 the flag is stored (AcqRel) before C2 the wakes; W1 a sleeper registers before W2 it loads the flag (Acquire). The wake and the
//! registration meet in one word (of the waker, of the doorbell): if the wake comes second it finds the sleeper, if the registration
//! comes second it acquires what the waker did before, the flag included.

use crate::sync::seeded::{self, Bug};
use crate::sync::{AtomicU32, Ordering};

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

    /// Closes for `reason` unless closed already, then calls `wake_all`.
    pub fn close(&self, reason: u32, wake_all: impl FnOnce()) {
        let raise = || {
            let _ = self.reason.compare_exchange(0, reason, Ordering::AcqRel, Ordering::Acquire); // C1
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
