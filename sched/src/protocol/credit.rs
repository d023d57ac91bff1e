//! Credit: how many cells a request slot may still take, and whether its actor waits for more.
//!
//! One word: `count | WANT`. Cells of an aborted request keep their credit until they come back, so the pools never run dry.
//!
//! # Memory ordering
//! `take` that finds too little sets WANT in the same compare-exchange that saw the count; `give` adds in a read-modify-write and
//! sees WANT in the value it replaced. Both act on one word, so a `give` either comes before the failing `take` (which then sees the
//! count) or after it (and sees WANT): no wish is lost. One giver clears WANT and is told to notify the actor.

use crate::sync::seeded::{self, Bug};
use crate::sync::{AtomicU32, Ordering};

const WANT: u32 = 1 << 31;

/// See the module text.
#[derive(Debug)]
pub struct Credit {
    word: AtomicU32,
}

impl Credit {
    /// `count` (below 2^31) to give out.
    pub fn new(count: u32) -> Self {
        assert!(count < WANT);
        Self { word: AtomicU32::new(count) }
    }

    /// Takes `n`, or leaves a wish and returns false. For the slot's runner.
    #[must_use]
    pub fn take(&self, n: u32) -> bool {
        self.word
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |w| {
                let count = w & !WANT;
                Some(if count >= n { count - n } else { count | WANT })
            })
            .is_ok_and(|w| w & !WANT >= n)
    }

    /// Gives `n` back. True: the actor waits for it and must be notified.
    #[must_use]
    pub fn give(&self, n: u32) -> bool {
        let wanted = self.word.fetch_add(n, Ordering::AcqRel) & WANT != 0;
        !seeded::is(Bug::CreditForgetsWant) && wanted && self.word.fetch_and(!WANT, Ordering::AcqRel) & WANT != 0
    }
}
