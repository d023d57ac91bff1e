//! Taker: which layer of a range is due, who waits for it, and who still holds rows of it.
//!
//! One word of a request slot: `CLAIMED | BOUND | VOID | ASKED | next layer << 15 | guards`. One await at a time has the claim; taking a layer turns
//! the claim into a guard. A range is asked for once (BOUND), survives awaits that are dropped, and gives way to the next range when
//! all its layers have been taken, or it was cut (VOID), and all guards dropped: until then its bytes may be looked at.
//!
//! A range that has been asked for and not yet bound (ASKED) cannot be cut: a cut that the actor comes to meanwhile was made to the range
//! before, and the new one is bound behind it.
//!
//! # Memory ordering
//! Every step is a read-modify-write with AcqRel of the one word: a guard's last look at the bytes (released by `drop_guard`) happens
//! before the claim that asks for the next range, and so before anybody writes the destination again.

use crate::sync::seeded::{self, Bug};
use crate::sync::{AtomicU32, Ordering};

const CLAIMED: u32 = 1 << 31;
const BOUND: u32 = 1 << 30;
const VOID: u32 = 1 << 29;
const ASKED: u32 = 1 << 28;
const NEXT_SHIFT: u32 = 15;
const NEXT: u32 = (1 << 13) - 1;
const GUARDS: u32 = (1 << 15) - 1;

/// What a claim found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claimed {
    /// The caller waits for this layer (an index) of the range that was asked for before.
    Waits(u32),
    /// The same for layer 0 of a new range, which the caller must ask for.
    AsksFor,
}

/// Why a claim was refused; nothing changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClaimRefused {
    /// Another await has the claim, or guards of the last range are alive.
    Busy,
    /// This layer (an index) is due.
    OutOfOrder(u32),
}

/// See the module text.
#[derive(Debug, Default)]
pub struct Taker {
    word: AtomicU32,
}

impl Taker {
    /// No range, no waiter.
    pub fn new() -> Self {
        Self { word: AtomicU32::new(0) }
    }

    /// Becomes the one waiter, for `expected` if that is given, of `layers` layers.
    ///
    /// # Errors
    /// [`ClaimRefused`].
    pub fn claim(&self, layers: u32, expected: Option<u32>) -> Result<Claimed, ClaimRefused> {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let (next, guards) = (word >> NEXT_SHIFT & NEXT, word & GUARDS);
            let over = next == layers || word & VOID != 0;
            if word & CLAIMED != 0 || (over && guards > 0 && !seeded::is(Bug::TakerIgnoresGuards)) {
                return Err(ClaimRefused::Busy);
            }
            let due = if over { 0 } else { next };
            if expected.is_some_and(|e| e != due) {
                return Err(ClaimRefused::OutOfOrder(due));
            }
            let asks = over || word & BOUND == 0;
            let claimed = if asks { CLAIMED | BOUND | ASKED | guards } else { word | CLAIMED };
            match self.word.compare_exchange_weak(word, claimed, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) if asks => return Ok(Claimed::AsksFor),
                Ok(_) => return Ok(Claimed::Waits(due)),
                Err(now) => word = now,
            }
        }
    }

    /// The waiter gives up; the range stays. For the claimant.
    pub fn unclaim(&self) {
        self.word.fetch_and(!CLAIMED, Ordering::AcqRel);
    }

    /// Turns the claim into a guard; the next layer is due. For the claimant.
    pub fn take(&self) {
        self.word.fetch_add((1 << NEXT_SHIFT) + 1, Ordering::AcqRel);
        self.word.fetch_and(!CLAIMED, Ordering::AcqRel);
    }

    /// The range that was asked for is about to be bound. For the slot's runner.
    pub fn bound(&self) {
        self.word.fetch_and(!ASKED, Ordering::AcqRel);
    }

    /// The bound range was cut: the next claim asks for a new one. For the slot's runner.
    pub fn restart(&self) {
        let is_bound = |w: u32| w & BOUND != 0 && (w & ASKED == 0 || seeded::is(Bug::TakerCutsAsked));
        let void = |w: u32| is_bound(w).then_some(w | VOID);
        let _ = self.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, void);
    }

    /// The range is dropped, bound or not (preemption, or an await that gives up before it has asked): the next claim asks for a new one.
    /// For the slot's runner, or the claimant that has not asked.
    pub fn withdraw(&self) {
        let void = |w: u32| (w & BOUND != 0).then_some(w | VOID);
        let _ = self.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, void);
    }

    /// A guard is dropped.
    pub fn drop_guard(&self) {
        self.word.fetch_sub(1, Ordering::AcqRel);
    }

    /// Back to "no range". For the slot's runner, between two requests.
    pub fn reset(&self) {
        self.word.store(0, Ordering::Release);
    }
}
