//! Step row: which cell serves one row (position and layer) of a step, and who gives the row up.
//!
//! One word, `step generation << 32 | state or cell`, and the cell's generation beside it.
//!
//! ```text
//! EMPTY --start--> BINDING --settle--> BOUND(cell)
//!   |                 |                    |
//!   \------- take ----+--------------------/--> TAKEN
//! ```
//!
//! A keygen actor binds a cell to the row; a rollback, an abort, a deadline or the end of the step takes the row back. The layer's gate
//! counts each row once. Who counts it:
//!
//! - a copier, when the row's cell was delivered;
//! - the taker of an EMPTY row: nobody will bind it any more;
//! - the taker of a BOUND row, if the cell lets itself be orphaned (it was not being delivered);
//! - the binder, when it finds at `settle` that its row was taken meanwhile, under the same condition.
//!
//! # Memory ordering
//! Every step is a read-modify-write of the one word. R1 `settle` (Release) publishes the cell's generation, R2 `take` (Acquire) pairs
//! with it. A word of another step generation refuses every step: a wish may outlive its step, and must not touch the next one.
//!
//! From `start` until the cell is bound nobody counts the row, so the step cannot end under the binder: that is when the generation is
//! written. Once the cell is bound it may be delivered and counted, and the row may serve the next step before the binder settles; a
//! generation written there could be the next binder's.

use crate::sync::seeded::{self, Bug};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

const EMPTY: u32 = 0;
const BINDING: u32 = 1;
const TAKEN: u32 = 2;
/// Cell `c` is stored as `c + CELL`.
const CELL: u32 = 3;

/// What a taker has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Took {
    /// Nothing: another generation, or taken already.
    Nothing,
    /// Count the row: it had no cell.
    Empty,
    /// Nothing: the binder will count it.
    Binding,
    /// Orphan the cell (index, generation), and count the row if it was not delivered.
    Bound(u32, u32),
}

/// See the module text.
#[derive(Debug, Default)]
pub struct StepRow {
    word: AtomicU64,
    cell_generation: AtomicU32,
}

fn word(generation: u32, state: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(state)
}

impl StepRow {
    /// A row of no step.
    pub fn new() -> Self {
        Self { word: AtomicU64::new(word(0, TAKEN)), cell_generation: AtomicU32::new(0) }
    }

    /// Makes the row wait for a cell. For who sets the step up.
    pub fn arm(&self, generation: u32) {
        let empty = word(generation, EMPTY);
        if cfg!(loom) {
            // The binder of the step before may still try to settle. Loom lets a store fall before a swap that did not see it, which no
            // memory model does.
            self.word.swap(empty, Ordering::Release);
        } else {
            self.word.store(empty, Ordering::Release);
        }
    }

    /// Starts to bind a cell of `cell_generation`. False: the row was taken, or belongs to another step; the cell is not needed.
    #[must_use]
    pub fn start(&self, generation: u32, cell_generation: u32) -> bool {
        let (empty, binding) = (word(generation, EMPTY), word(generation, BINDING));
        let ours = self.word.compare_exchange(empty, binding, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if ours {
            self.cell_generation.store(cell_generation, Ordering::Relaxed);
        }
        ours
    }

    /// The cell is bound. False: the row was taken meanwhile, and the binder takes the cell back, and counts.
    #[must_use]
    pub fn settle(&self, generation: u32, cell: u32) -> bool {
        let (binding, bound) = (word(generation, BINDING), word(generation, cell + CELL));
        self.word.compare_exchange(binding, bound, Ordering::AcqRel, Ordering::Relaxed).is_ok() // R1
            || seeded::is(Bug::StepRowForgetsTaken)
    }

    /// Takes the row from the step `generation`.
    pub fn take(&self, generation: u32) -> Took {
        let taken = word(generation, TAKEN);
        let mut now = self.word.load(Ordering::Acquire);
        loop {
            if (now >> 32) as u32 != generation && !seeded::is(Bug::StepRowSkipsGeneration) || now as u32 == TAKEN {
                return Took::Nothing;
            }
            match self.word.compare_exchange_weak(now, taken, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break, // R2
                Err(other) => now = other,
            }
        }
        match now as u32 {
            EMPTY => Took::Empty,
            BINDING => Took::Binding,
            cell => Took::Bound(cell - CELL, self.cell_generation.load(Ordering::Relaxed)),
        }
    }

    /// The cell that serves the row, if one is bound. A hint: the cell may have been delivered long ago.
    pub fn cell(&self) -> Option<u32> {
        (self.word.load(Ordering::Relaxed) as u32).checked_sub(CELL)
    }
}
