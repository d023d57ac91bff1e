//! I/O backends: how bytes get from a file into the arena.
//!
//! A backend knows files, offsets and buffer slots. It knows no rows and no requests; what a read is for is its caller's business.
//! Each backend belongs to one I/O actor and is driven from that actor's thread alone: [`Backend::queue`] then [`Backend::reap`]
//! (which also starts what is queued; [`Backend::submit`] starts it without reaping). The one operation for other threads is waking
//! a sleeping `reap` through [`Backend::waker`].
//!
//! | backend | for |
//! |---|---|
//! | [`UringBackend`] (Linux) | the fast path: one thread, no copies, 4 us of CPU a read |
//! | [`PreadBackend`] | where io_uring is refused, and other systems |
//! | [`MmapBackend`] | comparison only |
//! | [`SimulatedDisk`] | tests and simulation: no threads, virtual time, faults on request |
//!
//! A backend is made in two steps, as threads matter: [`BackendFactory::prepare`] does at start, on any thread, everything that can
//! fail for a reason the user should hear; [`BackendFactory::build`] finishes on the actor's thread, whose node then gives the memory.
//!
//! Invariants:
//! - A slot belongs to the backend from `queue` until its completion has been reaped; the actor neither reads nor reuses it before.
//! - Every queued read yields exactly one completion, also when the kernel refuses it.
//! - A backend never retries a read and never resumes one: short reads, `EINTR` and `EAGAIN` are reported, and the actor decides.
//!   (Entering the kernel is another matter: io_uring's `EINTR`, `EAGAIN` and `EBUSY` there concern no read, and are retried inside.)
//! - Memory that the kernel or a thread may still write is never freed, whatever is dropped when.

mod arena;
mod factory;
mod file;
mod mmap;
mod page_cache;
mod place;
mod pread;
mod simulated;
mod slots;
#[cfg(target_os = "linux")]
mod uring;
mod wake;

pub use factory::{BackendChoice, BackendFactory, BackendOptions, DirectMode, OsThreads, SpawnThread};
pub use file::{FileSet, ReadAt};
pub use mmap::MmapBackend;
pub use page_cache::{Residency, evict, process_read_bytes, residency};
pub use place::{Pinned, pin_to_allowed_cpu};
pub use pread::PreadBackend;
pub use simulated::{LoggedRead, SimulatedBackend, SimulatedDisk, SimulatedFault};
#[cfg(target_os = "linux")]
pub use uring::{SetupFlag, UringBackend, UringCall, UringFault, UringFaults, UringPrepared};

use crate::sync::Arc;
use arena::Arena;
use engram_store::FileId;
use std::time::Duration;

/// How long dropping a backend waits for reads that are still out; after that their memory is given up, never freed.
const DROP_DRAIN_MAX: Duration = Duration::from_secs(5);

/// One read: `len` bytes at `offset` of `file`, to byte `slot_offset` of buffer slot `slot`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadOp {
    /// Given back with the completion: slot in the low half, the slot's generation in the high half.
    pub tag: u64,
    /// The file.
    pub file: FileId,
    /// First byte in the file; a multiple of [`Backend::alignment`] of that file.
    pub offset: u64,
    /// Bytes to read; a multiple of the alignment, though the file may end earlier.
    pub len: u32,
    /// Buffer slot, below the number of slots the backend was made with.
    pub slot: u32,
    /// Where in the slot the bytes go; a multiple of the alignment.
    pub slot_offset: u32,
}

/// The end of one read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The tag of the [`ReadOp`].
    pub tag: u64,
    /// Bytes read (0 at the end of the file), or the OS error number.
    pub result: Result<u32, i32>,
}

/// How long [`Backend::reap`] may wait. A wake is consumed by the wait that it ends: look for work after every `reap`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Not at all.
    Poll,
    /// Until at least one read has completed (there is one in flight), or a wake came through [`Backend::waker`].
    Completion,
    /// Until [`WakeBackend::wake`] is called; nothing is in flight. A wake that came before the call is not lost.
    Wake,
}

/// Ends a [`Wait::Wake`] from any thread. A wake while nobody waits ends the next wait at once (it is sticky).
pub trait WakeBackend: Send + Sync {
    /// Wakes the actor.
    fn wake(&self);
}

/// What a backend really uses, for reports.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BackendReport {
    /// `io-uring`, `pread`, `mmap` or `simulated`.
    pub backend: &'static str,
    /// Whether every file is read with `O_DIRECT`.
    pub direct: bool,
    /// Set-up flags and registrations granted, such as `single-issuer`, `defer-taskrun`, `fixed-files`, `fixed-buffers`.
    pub flags: Vec<String>,
    /// Anything asked for and not had, with cause and remedy; one sentence each.
    pub notes: Vec<String>,
    /// Calls that entered the kernel to submit or wait.
    pub enters: u64,
}

/// One I/O path, owned by one I/O actor.
pub trait Backend: Send {
    /// Reads of `file` must have offset, length and slot offset at multiples of this (a power of two, 1 if any offset will do).
    fn alignment(&self, file: FileId) -> u32;

    /// Bytes of one buffer slot, a multiple of 4096.
    fn slot_bytes(&self) -> u32;

    /// Number of buffer slots, which is also the most reads that can be in flight.
    fn slots(&self) -> u32;

    /// Accepts a read. Never waits and never fails for want of room: at most one read per slot is outstanding.
    ///
    /// # Panics
    /// If the slot is out, or slot, file or length do not exist.
    fn queue(&mut self, op: ReadOp);

    /// Starts what is queued, without waiting. A loop that goes on to [`reap`](Self::reap) need not call it.
    fn submit(&mut self);

    /// Starts what is queued, then appends completions to `out` as `wait` says; may return early with none.
    ///
    /// # Errors
    /// The OS error number if the path itself is broken; reads in flight then complete by [`Backend::drain`] or never.
    fn reap(&mut self, wait: Wait, out: &mut Vec<Completion>) -> Result<(), i32>;

    /// The bytes of a slot whose read has completed. Debug builds poison the destination of a read before it starts.
    ///
    /// # Panics
    /// If a read into the slot is still out.
    fn slot(&self, slot: u32) -> &[u8];

    /// Wakes `reap` from other threads.
    fn waker(&self) -> Arc<dyn WakeBackend>;

    /// Starts nothing more and waits, at most `timeout`, until the kernel holds no buffer; returns how many reads are still out.
    /// Reads that had not been started are given up, and the completions of the others are dropped. For the end: no read may be
    /// queued after it.
    fn drain(&mut self, timeout: Duration) -> usize;

    /// What is really used.
    fn report(&self) -> BackendReport;
}
