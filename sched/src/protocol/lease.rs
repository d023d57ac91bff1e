//! Lease: who uses a slot of a step or of a registered destination, and when the slot may serve somebody else.
//!
//! One word, `generation << 32 | references`. A step has a reference of its handle, one for each layer that is not complete, one for each
//! wish that its actor has not taken (a step that was cancelled or timed out is over before; its nodes are still in lists), and one of
//! whoever looks at it for a moment (a watchdog, a close); a destination has its registration's, and one for each layer that is written
//! there. At 0 the slot is free; its generation moves on with the last reference.
//!
//! # Memory ordering
//! All steps are read-modify-writes with AcqRel: the last reference has everybody's use behind it, and `claim` acquires it.

use crate::sync::seeded::{self, Bug};
use crate::sync::{AtomicU64, Ordering};

/// See the module text.
#[derive(Debug)]
pub struct Lease {
    word: AtomicU64,
}

impl Default for Lease {
    fn default() -> Self {
        Self::new()
    }
}

impl Lease {
    /// A free slot of generation 1.
    pub fn new() -> Self {
        Self { word: AtomicU64::new(1 << 32) }
    }

    /// Claims a free slot with `references`; returns its generation.
    pub fn claim(&self, references: u32) -> Option<u32> {
        let free = |w: u64| (w as u32 == 0).then_some(w | u64::from(references));
        self.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, free).ok().map(|w| (w >> 32) as u32)
    }

    /// The generation, if the slot is in use.
    pub fn current(&self) -> Option<u32> {
        let word = self.word.load(Ordering::Acquire);
        (word as u32 != 0).then_some((word >> 32) as u32)
    }

    /// Whether `generation` is in use.
    pub fn is(&self, generation: u32) -> bool {
        self.current() == Some(generation)
    }

    /// Takes a reference on `generation`, unless it is over.
    #[must_use]
    pub fn hold(&self, generation: u32) -> bool {
        let more = |w: u64| {
            let ours = (w >> 32) as u32 == generation || seeded::is(Bug::LeaseSkipsGeneration);
            (ours && w as u32 != 0).then_some(w + 1)
        };
        self.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).is_ok()
    }

    /// Gives a reference back. True: it was the last, the slot is free now.
    pub fn release(&self) -> bool {
        let less = |w: u64| Some(if w as u32 == 1 { next(w) } else { w - 1 });
        self.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less).is_ok_and(|w| w as u32 == 1)
    }

    /// Frees `generation` if its one reference is the caller's. `None`: it is not in use; `Some(false)`: others use it.
    pub fn end(&self, generation: u32) -> Option<bool> {
        let last = |w: u64| ((w >> 32) as u32 == generation && w as u32 == 1).then_some(next(w));
        match self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, last) {
            Ok(_) => Some(true),
            Err(w) => ((w >> 32) as u32 == generation && w as u32 != 0).then_some(false),
        }
    }
}

fn next(word: u64) -> u64 {
    ((word >> 32) + 1) << 32
}
