//! Failures: why a group, or an entry of a step, has no rows.

use crate::core::Core;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::{EntryFailure, ReadError};
use engram_keygen::RowId;
use engram_store::FileId;

/// The first failure of a group, a layer or an entry: claimed by one, read after the word that orders it.
#[derive(Debug, Default)]
pub(crate) struct Failure {
    claimed: AtomicBool,
    row: AtomicU64,
    /// A file, or a [`Cause`] without one.
    file: AtomicU32,
    errno: AtomicU32,
    table: AtomicU32,
}

/// Why an entry has no rows, beside a failed read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Cause {
    /// The request ended, was preempted or rolled back.
    Cancelled = u32::MAX,
    /// The positions are older than the ids that are kept.
    HistoryUnavailable = u32::MAX - 1,
    /// A deadline or the watchdog came first.
    Timeout = u32::MAX - 2,
    /// The scheduler closed.
    Closed = u32::MAX - 3,
}

impl Failure {
    pub(crate) fn clear(&self) {
        self.claimed.store(false, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, table: u32, row: RowId, file: FileId, errno: i32) {
        // AcqRel is not needed: the deposit or completion that follows publishes; the claim only picks one of several.
        if !self.claimed.swap(true, Ordering::Relaxed) {
            self.table.store(table, Ordering::Relaxed);
            self.row.store(row, Ordering::Relaxed);
            self.file.store(file.0, Ordering::Relaxed);
            self.errno.store(errno as u32, Ordering::Relaxed);
        }
    }

    /// A failure that is no read's; `pos` is a position of the request.
    pub(crate) fn set_cause(&self, cause: Cause, pos: u64) {
        self.set(0, pos, FileId(cause as u32), 0);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.claimed.load(Ordering::Relaxed)
    }

    pub(crate) fn copy_to(&self, other: &Self) {
        let load = |a: &AtomicU32| a.load(Ordering::Relaxed);
        let (file, errno) = (FileId(load(&self.file)), load(&self.errno) as i32);
        other.set(load(&self.table), self.row.load(Ordering::Relaxed), file, errno);
    }

    pub(crate) fn error(&self, core: &Core) -> EntryFailure {
        let load = |a: &AtomicU32| a.load(Ordering::Relaxed);
        let (row, file) = (self.row.load(Ordering::Relaxed), load(&self.file));
        match core.files.get(file as usize) {
            Some(file) => EntryFailure::Read(ReadError {
                layer: core.geometry.layers[load(&self.table) as usize],
                row,
                file: file.path.clone(),
                errno: load(&self.errno) as i32,
            }),
            None if file == Cause::HistoryUnavailable as u32 => EntryFailure::HistoryUnavailable { pos: row },
            None if file == Cause::Timeout as u32 => EntryFailure::Timeout,
            None if file == Cause::Closed as u32 => EntryFailure::Closed,
            None => EntryFailure::Cancelled,
        }
    }
}
