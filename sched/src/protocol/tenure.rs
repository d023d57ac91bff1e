//! Tenure: whose a request slot is, and when it may go to the next request.
//!
//! One word: `generation << 32 | holds << 2 | PUSHING | LIVE`.
//!
//! | step            | word                                          | by                                  |
//! |-----------------|-----------------------------------------------|-------------------------------------|
//! | `begin`         | LIVE set                                      | who took the slot off the free list |
//! | `start_push`    | PUSHING set, if generation matches and LIVE   | a caller of the token plane         |
//! | `hold`          | holds + 1, under the same condition           | an await; passed on to its guard    |
//! | `end`           | LIVE cleared, under the same condition        | `finish`, `abort`                   |
//! | `recycle`       | generation + 1, if neither holds nor PUSHING  | the slot's runner                   |
//!
//! An id is (slot, generation): an old one fails every comparison, so a late abort never hits the slot's next request (CASES 1.01).
//!
//! # Memory ordering
//! Every step is a read-modify-write of the one word with AcqRel, so the holders' and pushers' last uses (release in `end_push`,
//! `release`) happen before `recycle`, and what `recycle` and `begin` prepared happens before the next user's first step.
//! After `end`, nobody new can push or hold: the counts only fall, and whoever makes them zero is told so and must notify the runner.

use crate::sync::seeded::{self, Bug};
use crate::sync::{AtomicU64, Ordering};

const LIVE: u64 = 1;
const PUSHING: u64 = 2;
const HOLD: u64 = 4;
const COUNTS: u64 = 0xffff_ffff;

/// Why a push may not start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PushRefused {
    /// The generation is not the slot's, or the request has ended.
    Ended,
    /// Another thread is pushing.
    Busy,
}

/// See the module text.
#[derive(Debug)]
pub struct Tenure {
    word: AtomicU64,
}

impl Default for Tenure {
    fn default() -> Self {
        Self::new()
    }
}

impl Tenure {
    /// A vacant slot of generation 1.
    pub fn new() -> Self {
        Self { word: AtomicU64::new(1 << 32) }
    }

    /// Makes a vacant slot live; returns its generation. For the one who took the slot off the free list.
    pub fn begin(&self) -> u32 {
        let old = self.word.fetch_or(LIVE, Ordering::AcqRel);
        debug_assert_eq!(old & COUNTS, 0, "a slot on the free list is vacant");
        (old >> 32) as u32
    }

    fn update(&self, generation: u32, f: impl Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |w| {
            let ours = w >> 32 == u64::from(generation) || seeded::is(Bug::TenureSkipsGeneration);
            if ours && w & LIVE != 0 { f(w) } else { None }
        })
    }

    /// Becomes the request's one producer.
    ///
    /// # Errors
    /// [`PushRefused`]; nothing changed.
    pub fn start_push(&self, generation: u32) -> Result<(), PushRefused> {
        self.update(generation, |w| (w & PUSHING == 0).then_some(w | PUSHING)).map(drop).map_err(|w| {
            if w >> 32 == u64::from(generation) && w & LIVE != 0 { PushRefused::Busy } else { PushRefused::Ended }
        })
    }

    /// The producer is done. It notifies the runner afterwards, whatever the outcome.
    pub fn end_push(&self) {
        self.word.fetch_and(!PUSHING, Ordering::AcqRel);
    }

    /// Keeps the slot from being recycled; false if the request has ended.
    #[must_use]
    pub fn hold(&self, generation: u32) -> bool {
        self.update(generation, |w| Some(w + HOLD)).is_ok()
    }

    /// Gives a hold back. True: the request has ended, the runner must be notified.
    #[must_use]
    pub fn release(&self) -> bool {
        self.word.fetch_sub(HOLD, Ordering::AcqRel) & LIVE == 0
    }

    /// Ends the request. True: it was this call that did, and the runner must be notified.
    #[must_use]
    pub fn end(&self, generation: u32) -> bool {
        self.update(generation, |w| Some(w & !LIVE)).is_ok()
    }

    /// The slot's generation, and whether its request is live.
    pub fn life(&self) -> (u32, bool) {
        let word = self.word.load(Ordering::Acquire);
        ((word >> 32) as u32, word & LIVE != 0)
    }

    /// Whether the request is live.
    pub fn is_live(&self) -> bool {
        self.word.load(Ordering::Acquire) & LIVE != 0
    }

    /// Whether the request `generation` is live.
    pub fn is(&self, generation: u32) -> bool {
        let word = self.word.load(Ordering::Acquire);
        word & LIVE != 0 && word >> 32 == u64::from(generation)
    }

    /// Whether an ended request is still being pushed to (its producer will notify the runner).
    pub fn is_pushing(&self) -> bool {
        self.word.load(Ordering::Acquire) & PUSHING != 0
    }

    /// Moves to the next generation if nobody holds or pushes. True: the slot may go to the free list. For the runner, after `end`.
    #[must_use]
    pub fn recycle(&self) -> bool {
        self.word
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |w| {
                debug_assert_eq!(w & LIVE, 0);
                let counts = if seeded::is(Bug::TenureIgnoresPush) { COUNTS & !PUSHING } else { COUNTS };
                (w & counts == 0).then_some(((w >> 32) + 1) << 32)
            })
            .is_ok()
    }
}
