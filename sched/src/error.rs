//! What can go wrong, by plane. Every message says cause and remedy; an error consumes nothing.

use crate::{DestId, Layer, RequestId};
use engram_keygen::{RowId, Token};
use std::path::PathBuf;

/// Why the scheduler no longer serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Closed {
    /// `shutdown` was called, or the last handle dropped.
    #[error("the scheduler was shut down")]
    Shutdown,
    /// An actor panicked or its I/O path broke: `stats().backends` has the cause among its notes. Reopen the scheduler.
    #[error("the scheduler failed for good: an I/O actor stopped (the notes of stats().backends say why); reopen it")]
    Fatal,
    /// This process is a child of `fork(2)`: threads, ring and buffers are the parent's, and the handle does nothing here.
    #[error(
        "the scheduler belongs to the parent of this forked process; start another one here, or fork before starting it"
    )]
    ForkedChild,
}

/// Errors of [`Scheduler::start`](crate::Scheduler::start).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A file could not be opened.
    #[error("cannot open {path}: {source}")]
    Open {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The chosen backend is not to be had; `auto` falls back instead.
    #[error("backend {backend} is not available: {why}; use --backend auto to fall back")]
    Backend {
        /// The backend asked for.
        backend: &'static str,
        /// Cause and remedy.
        why: String,
    },
    /// `O_DIRECT` was required and refused.
    #[error(
        "{path} cannot be read with O_DIRECT ({why}); allow buffered reads, or move the table to a file system that has it"
    )]
    DirectRefused {
        /// The file.
        path: PathBuf,
        /// Cause.
        why: String,
    },
    /// Tables and spec do not describe the same model.
    #[error("the tables do not fit the spec: {0}")]
    Mismatch(String),
    /// A limit is out of its range.
    #[error("limit {limit}: {why}")]
    Limit {
        /// The field of [`Limits`](crate::Limits).
        limit: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// A thread ended before it had begun.
    #[error("{why}; this is a bug, please report it")]
    Thread {
        /// Which, and its panic.
        why: String,
    },
    /// A thread could not be started.
    #[error("cannot start thread {name}: {source}; raise the process limit (ulimit -u, pids cgroup)")]
    Spawn {
        /// The thread's name.
        name: String,
        /// The cause.
        source: std::io::Error,
    },
    /// Memory could not be reserved.
    #[error("cannot reserve {bytes} bytes of memory: {source}; lower the limits")]
    Memory {
        /// Bytes asked for.
        bytes: u64,
        /// The cause.
        source: std::io::Error,
    },
}

/// Errors of the token plane.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// No such request, or it has ended: its id is not mistaken for its successor's.
    #[error("request {0} is unknown or has ended; begin it again")]
    UnknownRequest(RequestId),
    /// The token is negative or beyond the vocabulary (or the token map).
    #[error("token {tok} at position {pos} is outside the vocabulary (0..{vocab}); it was not hashed")]
    BadToken {
        /// The token.
        tok: Token,
        /// Its position.
        pos: u64,
        /// Valid ids are below this.
        vocab: u32,
    },
    /// Tokens must follow each other: the position is not the request's end.
    #[error("position {pos} does not follow the request's end {end}; feed the tokens in order")]
    Gap {
        /// Position after the last token.
        end: u64,
        /// Position given.
        pos: u64,
    },
    /// `begin` beyond position 0 needs the last ids before it.
    #[error("starting at a later position needs {need} ids of history, got {got}")]
    HistoryTooShort {
        /// Ids needed: min(start_pos, n-1).
        need: u32,
        /// Ids given.
        got: u32,
    },
    /// A liveness mask has another length than the tokens it is for.
    #[error("the live mask has {live} entries for {toks} tokens; give one for each")]
    MaskLength {
        /// Entries of the mask.
        live: usize,
        /// Tokens.
        toks: usize,
    },
    /// The position is older than the ids that are kept (`history_tail_max`).
    #[error(
        "position {pos} is older than what is kept of this request ({oldest}..); begin or resume it with its history"
    )]
    HistoryUnavailable {
        /// Position asked for.
        pos: u64,
        /// The oldest position that can be rewritten.
        oldest: u64,
    },
    /// The call does not fit the request's state.
    #[error("{0}")]
    BadState(&'static str),
    /// An exported state cannot be imported.
    #[error("the state cannot be imported: {0}")]
    BadImport(&'static str),
    /// A limit is reached; nothing was consumed.
    #[error("limit {0} is reached; drain or finish requests, or raise it at open")]
    LimitReached(&'static str),
    /// Another thread is at work on this request right now, and its mailbox is full; call again.
    #[error("another thread is at work on this request; call again")]
    Busy,
    /// The scheduler no longer serves.
    #[error(transparent)]
    Closed(#[from] Closed),
}

/// Errors of the step plane. Nothing was consumed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// No such request, or it has ended or is preempted.
    #[error("request {0} is unknown, has ended or is preempted; leave it out of the step")]
    UnknownRequest(RequestId),
    /// The model has no such layer, or this process did not open it.
    #[error("layer {0} has no table here")]
    UnknownLayer(Layer),
    /// No such destination is registered.
    #[error("destination {0} is not registered")]
    UnknownDest(DestId),
    /// A row id is not one of the table's. Never clamped.
    #[error("row {row} (token {token}, head {head}) is out of range for layer {layer}")]
    BadRow {
        /// The layer.
        layer: Layer,
        /// The id.
        row: i128,
        /// Index of the token.
        token: u32,
        /// Index of the head.
        head: u16,
    },
    /// Something has another size than the step needs: a destination in bytes, a list in elements.
    #[error("{need} are needed, {got} were given (bytes of a destination, or elements of a list)")]
    WrongSize {
        /// Needed.
        need: usize,
        /// Given.
        got: usize,
    },
    /// Memory that is given for fences is not aligned to a page.
    #[error("the memory for fences must be aligned to {0} bytes")]
    Misaligned(usize),
    /// A limit is reached.
    #[error("limit {0} is reached; release steps, make smaller ones, or raise it at open")]
    LimitReached(&'static str),
    /// In use: the step slot that was named, a destination that a step is written to, fences after the first step.
    #[error("it is in use by a step; release that first")]
    Busy,
    /// The scheduler no longer serves.
    #[error(transparent)]
    Closed(#[from] Closed),
}

/// Why an entry of a step has no rows (they are zeros).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EntryFailure {
    /// A row could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The request ended, was preempted, or was rolled back below positions of the entry, before its rows were delivered.
    #[error("the request ended, was preempted or rolled back while the step was waiting for its rows")]
    Cancelled,
    /// The position was passed long ago, and the ids before it are no longer kept.
    #[error("position {pos} is older than what is kept of this request; resume it with its history")]
    HistoryUnavailable {
        /// The position.
        pos: u64,
    },
    /// The rows were not there when the step's time was over.
    #[error("the rows were not there in time")]
    Timeout,
    /// The scheduler closed.
    #[error("the scheduler closed")]
    Closed,
}

/// Errors of `await_layer`.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AwaitError {
    /// The rows were not complete in time; nothing advanced, await again.
    #[error("deadline missed: {ready} of {total} tokens ready; nothing advanced, await again")]
    DeadlineMissed {
        /// Tokens of the range whose rows are in place.
        ready: u32,
        /// Tokens of the range.
        total: u32,
    },
    /// No such request, or it has ended.
    #[error("request {0} is unknown or has ended")]
    UnknownRequest(RequestId),
    /// The model has no such layer, or this process did not open it.
    #[error("layer {0} has no table here")]
    UnknownLayer(Layer),
    /// Layers of a range are taken in order.
    #[error("layer {asked} is out of order: layer {next} is next")]
    OutOfOrder {
        /// The layer that is due.
        next: Layer,
        /// The layer asked for.
        asked: Layer,
    },
    /// A row could not be read. The range stays; abort the request.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The request was preempted.
    #[error("the request was preempted; resume it, then await again")]
    Cancelled,
    /// Another await of this request is pending, or rows of its last range are still held.
    #[error("another await of this request is pending, or rows of its last range are still held; drop them first")]
    Busy,
    /// The scheduler no longer serves.
    #[error(transparent)]
    Closed(#[from] Closed),
}

/// A row that could not be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("layer {layer}, row {row}: reading {file} failed: {}", describe_errno(*.errno))]
pub struct ReadError {
    /// The layer.
    pub layer: Layer,
    /// The row id.
    pub row: RowId,
    /// The file.
    pub file: PathBuf,
    /// OS error number; 0 means that the file ended before the row did.
    pub errno: i32,
}

fn describe_errno(errno: i32) -> String {
    if errno == 0 {
        "the file ends before the row, or gives no more of it: it was truncated, or its disk fails; restore it and reopen".into()
    } else {
        format!("{}; check the disk and the kernel's log", std::io::Error::from_raw_os_error(errno))
    }
}

/// Errors of `shutdown`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShutdownError {
    /// Threads still wait for their reads; nothing was freed, call again.
    #[error("{threads} threads still wait for reads in the kernel; their buffers stay reserved, call shutdown again")]
    Busy {
        /// Threads that have not ended.
        threads: usize,
    },
    /// Everything has ended but for reads that the kernel never gave back: their buffers are given up, never freed.
    #[error(
        "all threads have ended, but {reads} reads never came back from the kernel; their buffers are given up for good"
    )]
    Abandoned {
        /// Reads still out.
        reads: u64,
    },
    /// This process is a child of `fork(2)`; nothing was done.
    #[error(
        "the scheduler belongs to the parent of this forked process, which shuts it down; there is nothing to end here"
    )]
    ForkedChild,
}
