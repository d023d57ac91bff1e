//! Reading rows by id, in bulk: the path of `verify` and of corpus work, through the same actors as tokens.
//!
//! Rows go in groups of as many as a group has heads; each group is one cell of a slot of its own, bound to the caller's memory. The
//! call returns only when no cell points there any more.

use crate::core::Core;
use crate::plan::{PLAN_GROUPS_MAX, PlanClass, PlanDraft};
use crate::scheduler::Layer;
use crate::sync::{Mutex, lock, thread, thread_waker};
use crate::{Closed, ReadError};
use engram_keygen::RowId;

/// Errors of `read_rows`.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadRowsError {
    /// The model has no such layer, or this process did not open it.
    #[error("layer {0} has no table here")]
    UnknownLayer(Layer),
    /// A row id is not one of the table's. Never clamped.
    #[error("row {row} (index {index}) is out of range: layer {layer} has {rows} rows")]
    BadRow {
        /// The layer.
        layer: Layer,
        /// The id.
        row: RowId,
        /// Its index in the call.
        index: usize,
        /// Rows of the table.
        rows: u64,
    },
    /// The destination has another size than the rows.
    #[error("the rows need {need} bytes, the destination has {got}")]
    WrongSize {
        /// Bytes needed.
        need: usize,
        /// Bytes given.
        got: usize,
    },
    /// A row could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The scheduler no longer serves.
    #[error(transparent)]
    Closed(#[from] Closed),
}

/// Lets one bulk read at a time use the slot of row reads.
#[derive(Debug)]
pub(crate) struct RowReads {
    turn: Mutex<()>,
}

impl RowReads {
    pub(crate) fn new() -> Self {
        Self { turn: Mutex::new(()) }
    }

    pub(crate) fn read(&self, core: &Core, layer: Layer, rows: &[RowId], out: &mut [u8]) -> Result<(), ReadRowsError> {
        core.check_open()?;
        let unknown = ReadRowsError::UnknownLayer(layer);
        let table = core.geometry.layers.iter().position(|&l| l == layer).ok_or(unknown)?;
        let row_bytes = core.geometry.row_bytes[table];
        if out.len() != rows.len() * row_bytes {
            return Err(ReadRowsError::WrongSize { need: rows.len() * row_bytes, got: out.len() });
        }
        let table_rows = core.tables[table].rows();
        if let Some((index, &row)) = rows.iter().enumerate().find(|&(_, &row)| row >= table_rows) {
            return Err(ReadRowsError::BadRow { layer, row, index, rows: table_rows });
        }
        let _turn = lock(&self.turn);
        let heads = core.geometry.heads;
        // As much as fits the credit of the slot: a plan's worth for each of a few plans in flight.
        let window = heads * PLAN_GROUPS_MAX * 8;
        for (rows, out) in rows.chunks(window).zip(out.chunks_mut(window * row_bytes)) {
            read_window(core, table, rows, out)?;
        }
        Ok(())
    }
}

/// The cells of one window, bound to the caller's memory. Dropping it, in whatever way the window ends, takes the destinations back and
/// waits for copies under way: afterwards nobody writes there.
struct Window<'c> {
    core: &'c Core,
    table: usize,
    /// Counts of the layer gate that are neither bound to a cell nor given: cells to come, and the binder's own.
    unbound: u32,
    bound: Vec<(u32, u32)>,
    /// The layer is complete: nothing is left to take back.
    complete: bool,
}

impl Window<'_> {
    fn gate(&self) -> &crate::protocol::layer_gate::LayerGate {
        &self.core.slots[self.core.limits.request_slots as usize].layers[self.table].gate
    }
}

impl Drop for Window<'_> {
    fn drop(&mut self) {
        if self.complete {
            return;
        }
        let orphaned = self.bound.iter().filter(|&&(cell, generation)| self.core.orphan_cell(cell, generation)).count();
        let mut complete = self.gate().is_complete();
        let rest = self.unbound + orphaned as u32;
        if rest > 0 {
            complete = self.gate().complete(rest);
        }
        while !complete {
            thread::yield_now(); // for the length of a copy
            complete = self.gate().is_complete();
        }
        if thread::panicking() {
            self.core.fail("a row read panicked; reopen the scheduler".into());
        }
    }
}

fn read_window(core: &Core, table: usize, rows: &[RowId], out: &mut [u8]) -> Result<(), ReadRowsError> {
    let slot_index = core.limits.request_slots;
    let slot = &core.slots[slot_index as usize];
    let layer = &slot.layers[table];
    let (heads, row_bytes) = (core.geometry.heads, core.geometry.row_bytes[table]);
    let cells = rows.len().div_ceil(heads);
    layer.failure.clear();
    layer.gate.arm(cells as u32);
    let bound = Vec::with_capacity(cells);
    let mut window = Window { core, table, unbound: cells as u32 + 1, bound, complete: false };
    let mut draft = PlanDraft { groups: smallvec::SmallVec::new(), class: PlanClass::Bulk, deadline_ns: 0 };
    for (rows, out) in rows.chunks(heads).zip(out.chunks_mut(heads * row_bytes)) {
        while !slot.credit.take(1) {
            core.check_open()?;
            thread::yield_now(); // cells of the last window give their credit back a moment after their bytes
        }
        let (cell, generation) = core.open_cell(slot_index, table, 1, rows.len() * row_bytes);
        core.want_rows(cell, table, rows, &mut draft);
        core.cells[cell as usize].payload().destination.set(out.as_mut_ptr());
        window.bound.push((cell, generation));
        window.unbound -= 1;
        core.bind_cell(cell, &mut crate::core::Wakes::default());
        if draft.groups.len() == PLAN_GROUPS_MAX {
            core.send(&mut draft);
        }
    }
    core.send(&mut draft);
    window.unbound -= 1;
    window.complete = layer.gate.complete(1);
    let waker = thread_waker();
    while !window.complete {
        window.complete = layer.gate.poll(&waker);
        if !window.complete {
            core.check_open()?;
            thread::park();
        }
    }
    if layer.failure.is_set() { Err(layer.failure.error(core).into()) } else { Ok(()) }
}
