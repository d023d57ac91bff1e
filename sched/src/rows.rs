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

fn read_window(core: &Core, table: usize, rows: &[RowId], out: &mut [u8]) -> Result<(), ReadRowsError> {
    let slot_index = core.limits.requests;
    let slot = &core.slots[slot_index as usize];
    let layer = &slot.layers[table];
    let (heads, row_bytes) = (core.geometry.heads, core.geometry.row_bytes[table]);
    let cells = rows.len().div_ceil(heads);
    let waker = thread_waker();
    layer.failure.clear();
    layer.gate.arm(cells as u32);
    let mut draft = PlanDraft { groups: smallvec::SmallVec::new(), class: PlanClass::Bulk };
    let mut bound = Vec::with_capacity(cells);
    for (rows, out) in rows.chunks(heads).zip(out.chunks_mut(heads * row_bytes)) {
        while !slot.credit.take(1) {
            layer.gate.register(&waker); // cells of the last window give their credit back a moment after their bytes
            thread::yield_now();
        }
        let (cell, generation) = core.open_cell(slot_index, table, 1, rows.len() * row_bytes);
        core.want_rows(cell, table, rows, &mut draft);
        core.cells[cell as usize].payload().destination.set(out.as_mut_ptr());
        core.bind_cell(cell, &mut crate::core::Wakes::default());
        bound.push((cell, generation));
        if draft.groups.len() == PLAN_GROUPS_MAX {
            core.send(&mut draft);
        }
    }
    core.send(&mut draft);
    let mut complete = layer.gate.complete(1);
    let mut closed = None;
    while !complete {
        complete = layer.gate.poll(&waker);
        if !complete && closed.is_none() {
            closed = core.check_open().err();
            if closed.is_some() {
                // The actors stop: take the destinations back. Copies under way are waited for by the loop.
                let freed = bound.iter().filter(|&&(cell, generation)| core.orphan_cell(cell, generation)).count();
                complete = freed > 0 && layer.gate.complete(freed as u32);
                continue;
            }
        }
        if !complete {
            thread::park();
        }
    }
    match closed {
        Some(closed) => Err(closed.into()),
        None if layer.failure.is_set() => Err(layer.failure.error(core).into()),
        None => Ok(()),
    }
}
