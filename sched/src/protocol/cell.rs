//! Cell: the rows of one (request, position, layer) on their way from group buffers to a destination.
//!
//! A cell waits for its groups (one per order) and, independently, for a destination. Whoever supplies the last missing piece copies.
//! One word: `generation << 32 | phase << 8 | outstanding deposits`.
//!
//! ```text
//! FREE --init--> WAITING --bind, deposits outstanding--> BOUND --last deposit--> CLAIMED --finish--> FREE
//!                   |  \--bind, none outstanding--------------------------------/
//!                   |                                      |
//!                   \--orphan--> ORPHAN (or FREE) <--orphan/      ORPHAN --last deposit--> FREE
//! ```
//!
//! Who may touch the payload (the groups, the destination): the holder (the request's runner) while WAITING; nobody while BOUND or
//! ORPHAN; the one who made the step to CLAIMED or to FREE afterwards. A cell has no destination before it is bound, its bytes then
//! wait in the groups that it pins; hence no depositor ever reads a destination that a binder may still change, and a bound cell needs
//! no second hand-shake. Cancelling takes the destination away from a BOUND cell, never from a CLAIMED one: the copier finishes.
//!
//! # Memory ordering
//! Every step is a read-modify-write of the one word with AcqRel. The step to CLAIMED or FREE acquires all deposits (their groups'
//! bytes) and the bind (the destination); `finish` and the steps to FREE release the payload to the next `init` (through the free list).

use crate::sync::seeded::{self, Bug};
use crate::sync::{AtomicU64, Ordering};

const FREE: u64 = 0;
const WAITING: u64 = 1;
const BOUND: u64 = 2;
const CLAIMED: u64 = 3;
const ORPHAN: u64 = 4;

const COUNT: u64 = 0xff;
const PHASE_SHIFT: u32 = 8;
const PHASE: u64 = 0xff << PHASE_SHIFT;
const GENERATION: u64 = !0 << 32;

/// What a deposit made due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deposited {
    /// Nothing: more deposits, or the binder, will follow.
    Pending,
    /// The caller claimed the cell: it copies, then calls [`Cell::finish`].
    Copy,
    /// The caller owns the orphan: it returns what the payload holds, and the cell to the pool.
    Free,
}

/// What a bind made due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bound {
    /// The last depositor will copy.
    Later,
    /// The caller claimed the cell: it copies, then calls [`Cell::finish`].
    Copy,
}

/// What became of a cell that its request lets go of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Orphaned {
    /// Deposits are outstanding, the last one frees it. `was_bound`: its destination will not be written.
    Later {
        /// Whether a destination was taken away.
        was_bound: bool,
    },
    /// The caller owns it: it returns what the payload holds, and the cell to the pool.
    Free,
    /// Somebody is copying to its destination and will finish, or has finished long ago.
    Delivered,
}

/// See the module text.
#[derive(Debug)]
pub struct Cell<P> {
    word: AtomicU64,
    payload: P,
}

impl<P> Cell<P> {
    /// A free cell.
    pub fn new(payload: P) -> Self {
        Self { word: AtomicU64::new(0), payload }
    }

    /// The payload: relaxed atomics in production, which the word orders. The module text says who may read and write it when.
    pub fn payload(&self) -> &P {
        &self.payload
    }

    /// Makes a free cell wait for `deposits`; returns its generation. For the one who took it off the free list.
    pub fn init(&self, deposits: u8) -> u32 {
        let word = self.word.load(Ordering::Relaxed); // owned: nobody else moves it
        debug_assert_eq!((word & PHASE) >> PHASE_SHIFT, FREE);
        self.word.store(word & GENERATION | WAITING << PHASE_SHIFT | u64::from(deposits), Ordering::Release);
        (word >> 32) as u32
    }

    fn step<T>(&self, ordering: Ordering, f: impl Fn(u64, u64) -> Option<(u64, T)>) -> Option<T> {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let (phase_count, result) = f((word & PHASE) >> PHASE_SHIFT, word)?;
            match self.word.compare_exchange_weak(word, phase_count, ordering, Ordering::Relaxed) {
                Ok(_) => return Some(result),
                Err(now) => word = now,
            }
        }
    }

    /// One group is complete (or has failed). Its bytes stay pinned by the payload.
    pub fn deposit(&self) -> Deposited {
        let ordering = if seeded::is(Bug::CellDepositRelaxed) { Ordering::Relaxed } else { Ordering::AcqRel };
        self.step(ordering, |phase, word| {
            debug_assert!(word & COUNT > 0 && phase != FREE && phase != CLAIMED);
            let word = word - 1;
            if word & COUNT > 0 {
                return Some((word, Deposited::Pending));
            }
            Some(match phase {
                BOUND => (with_phase(word, CLAIMED), Deposited::Copy),
                ORPHAN => (next_generation(word), Deposited::Free),
                _ => (word, Deposited::Pending),
            })
        })
        .unwrap_or(Deposited::Pending)
    }

    /// Gives the cell its destination, which the holder has just written into the payload. From here on the cell is not the holder's.
    pub fn bind(&self) -> Bound {
        self.step(Ordering::AcqRel, |phase, word| {
            debug_assert_eq!(phase, WAITING);
            if word & COUNT == 0 && !seeded::is(Bug::CellBindIgnoresReady) {
                Some((with_phase(word, CLAIMED), Bound::Copy))
            } else {
                Some((with_phase(word, BOUND), Bound::Later))
            }
        })
        .unwrap_or(Bound::Later)
    }

    /// The request lets go of the cell `generation`.
    pub fn orphan(&self, generation: u32) -> Orphaned {
        self.step(Ordering::AcqRel, |phase, word| {
            if word >> 32 != u64::from(generation) {
                return None;
            }
            let early = seeded::is(Bug::CellOrphanFreesEarly);
            match phase {
                WAITING if word & COUNT == 0 || early => Some((next_generation(word), Orphaned::Free)),
                WAITING => Some((with_phase(word, ORPHAN), Orphaned::Later { was_bound: false })),
                BOUND => {
                    let was_bound = !seeded::is(Bug::CellOrphanForgetsBound);
                    Some((with_phase(word, ORPHAN), Orphaned::Later { was_bound }))
                }
                _ => None,
            }
        })
        .unwrap_or(Orphaned::Delivered)
    }

    /// Whether the request has let go of the cell, which waits for its deposits. For one who has a deposit to make.
    pub fn is_orphan(&self) -> bool {
        (self.word.load(Ordering::Acquire) & PHASE) >> PHASE_SHIFT == ORPHAN
    }

    /// The copier is done with payload and destination; it then returns the cell to the pool.
    pub fn finish(&self) {
        self.step(Ordering::AcqRel, |phase, word| {
            debug_assert_eq!(phase, CLAIMED);
            Some((next_generation(word), ()))
        });
    }
}

fn with_phase(word: u64, phase: u64) -> u64 {
    word & !PHASE | phase << PHASE_SHIFT
}

fn next_generation(word: u64) -> u64 {
    ((word >> 32) + 1) << 32 | FREE << PHASE_SHIFT
}
