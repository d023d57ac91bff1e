//! Reading rows by id, in bulk: the path of `verify` and of corpus work, through the same actors as tokens.
//!
//! Rows go in groups of as many as a group has heads; each group is one cell of a slot of its own, bound to the caller's memory. The
//! call returns only when no cell points there any more.

use crate::core::{CellWanted, Core};
use crate::plan::{PLAN_GROUPS_MAX, PlanClass, PlanDraft};
use crate::planner::OWN;
use crate::scheduler::Layer;
use crate::step::{RowAt, Wakes};
use crate::sync::{Mutex, lock, thread, thread_waker};
use crate::{Closed, EntryFailure, ReadError};
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
        let table = core.geometry.table(layer).ok_or(unknown)?;
        let row_bytes = core.geometry.row_bytes[table];
        if out.len() != rows.len() * row_bytes {
            return Err(ReadRowsError::WrongSize { need: rows.len() * row_bytes, got: out.len() });
        }
        let table_rows = core.tables[table].rows();
        if let Some((index, &row)) = rows.iter().enumerate().find(|&(_, &row)| row >= table_rows) {
            return Err(ReadRowsError::BadRow { layer, row, index, rows: table_rows });
        }
        let _turn = lock(&self.turn);
        let heads = group_rows(core);
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
    step: u32,
    table: usize,
    rows: u32,
    /// The layer's own count is still to be given.
    armed: bool,
    /// The layer is complete: nothing is left to take back.
    complete: bool,
}

impl Drop for Window<'_> {
    fn drop(&mut self) {
        if self.complete {
            return;
        }
        let gate = &self.core.steps.layer(self.step, self.table).gate;
        let mut wakes = Wakes::default();
        if gate.hold() {
            let taken =
                (0..self.rows).map(|row| self.core.take_row(self.step, OWN, self.table, row).count).sum::<u32>();
            self.core.count_rows(self.step, self.table, taken + 1 + u32::from(self.armed), &mut wakes);
        }
        while !gate.is_complete() {
            thread::yield_now(); // for the length of a copy
        }
        if thread::panicking() {
            self.core.fail("a row read panicked; reopen the scheduler".into());
        }
    }
}

fn read_window(core: &Core, table: usize, rows: &[RowId], out: &mut [u8]) -> Result<(), ReadRowsError> {
    let step = core.limits.request_slots; // the step, and the slot, of row reads
    let slot = &core.slots[step as usize];
    let layer = core.steps.layer(step, table);
    let (heads, row_bytes) = (group_rows(core), core.geometry.row_bytes[table]);
    let cells = rows.len().div_ceil(heads) as u32;
    let now_ns = core.now_ns();
    layer.place(out.as_mut_ptr(), None);
    layer.begin(OWN, heads * row_bytes, cells, 1, now_ns);
    let mut window = Window { core, step, table, rows: cells, armed: true, complete: false };
    let mut draft = PlanDraft::new(PlanClass::Bulk, now_ns);
    let mut wakes = Wakes::default();
    for (row, rows) in (0..).zip(rows.chunks(heads)) {
        while !slot.credit.take(1) {
            core.check_open()?;
            thread::yield_now(); // cells of the last window give their credit back a moment after their bytes
        }
        let bytes = rows.len() * row_bytes;
        let wanted = CellWanted { groups: 1, deposits: 1, bytes, class: PlanClass::Bulk };
        let cell = core.open_cell(step, table, &wanted);
        core.want_rows(cell.cell, table, 0, rows, &mut draft);
        core.bind_row(RowAt { step, generation: OWN, table, row, entry: 0 }, cell, &mut wakes);
        if draft.groups.len() == PLAN_GROUPS_MAX {
            core.send(&mut draft);
        }
    }
    core.send(&mut draft);
    window.armed = false;
    core.count_rows(step, table, 1, &mut wakes);
    let waker = thread_waker();
    loop {
        window.complete = layer.gate.poll(&waker);
        if window.complete {
            break;
        }
        core.check_open()?;
        thread::park();
    }
    match layer.first_failure().map(|failure| failure.error(core)) {
        None => Ok(()),
        Some(EntryFailure::Read(error)) => Err(error.into()),
        Some(_) => Err(core.check_open().err().unwrap_or(Closed::Shutdown).into()),
    }
}

/// Rows that are read together.
fn group_rows(core: &Core) -> usize {
    core.geometry.orders[0].heads.len()
}
