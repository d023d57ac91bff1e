//! The scheduler: the public face of the machinery, one handle on the shared core.

use crate::await_layer::AwaitLayer;
use crate::core::Core;
use crate::io::{BackendChoice, BackendFactory, DirectMode};
use crate::request::Feed;
use crate::rows::RowReads;
use crate::start::Threads;
use crate::sync::Arc;
use crate::{Limits, MemoryBounds, ReadRowsError, ShutdownError, StartError, Stats, TokenError};
use engram_keygen::{Keygen, RowId, Token};
use engram_store::{DataFile, Table};
use std::time::Duration;

/// Zero-based decoder index of a PLE/Engram layer (Qwen 1; V4.1 1 and 14).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Layer(pub u16);

impl std::fmt::Display for Layer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Slot and generation: an id that has ended is never mistaken for its successor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RequestId(u64);

impl RequestId {
    pub(crate) fn new(slot: u32, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | u64::from(slot))
    }

    pub(crate) fn slot(self) -> u32 {
        self.0 as u32
    }

    pub(crate) fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

impl std::fmt::Display for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}#{}", self.slot(), self.generation())
    }
}

/// Whom a request serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RequestClass {
    /// Somebody waits for each token.
    #[default]
    Interactive,
    /// Throughput counts, latency does not.
    Bulk,
}

/// How to start. The default fits most machines.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StartOptions {
    /// Upper bounds; 0 stands for the default of each.
    pub limits: Limits,
    /// Which I/O path.
    pub backend: BackendChoice,
    /// Whether to bypass the page cache.
    pub direct: DirectMode,
    /// I/O actors, with the files dealt out in turn; `None`: one for each device that holds files.
    pub io_actors: Option<u16>,
}

/// Admission of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Begin<'a> {
    /// Position of the first token that will be fed.
    pub start_pos: u64,
    /// Ids before `start_pos`, newest last, at least `min(start_pos, n-1)` of them; older ones are ignored.
    pub history: &'a [Token],
    /// Which of `history` are live (the others are masked positions); `None`: all.
    pub live: Option<&'a [bool]>,
    /// Whom the request serves.
    pub class: RequestClass,
}

/// What a scheduler serves: keys and tables of one model.
#[derive(Debug)]
pub struct Parts {
    /// Token ids to row ids.
    pub keygen: Keygen,
    /// One table per table of the keygen, in the same order.
    pub tables: Vec<Table>,
    /// The files that the tables' extents name.
    pub files: Vec<DataFile>,
}

/// Reads rows ahead of the layer that needs them. A clone is another handle on the same scheduler; all methods may be called from any
/// thread. The last handle's drop shuts down.
///
/// Calls of the token plane never wait. An error consumes nothing.
#[derive(Clone)]
pub struct Scheduler {
    inner: Arc<Inner>,
}

struct Inner {
    core: Arc<Core>,
    rows: RowReads,
    threads: Threads,
}

/// How long dropping the last handle waits for reads in the kernel. Their memory stays reserved beyond that.
const DROP_SHUTDOWN: Duration = Duration::from_secs(5);

impl Drop for Inner {
    fn drop(&mut self) {
        let _ = self.threads.shutdown(&self.core, DROP_SHUTDOWN);
    }
}

impl std::fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scheduler").field("layers", &self.layers()).finish_non_exhaustive()
    }
}

impl Scheduler {
    /// Opens the files, reserves all memory and starts the actors.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left running.
    pub fn start(parts: Parts, options: &StartOptions) -> Result<Self, StartError> {
        Ok(Self::with(Threads::start(parts, options)?))
    }

    /// Starts on backends of the caller's, one I/O actor each, with the files dealt out in turn: simulated disks, injected faults, other
    /// storage. `options.backend`, `direct` and `io_actors` are not looked at.
    ///
    /// # Errors
    /// As [`Scheduler::start`].
    pub fn start_with(parts: Parts, options: &StartOptions, backends: Vec<BackendFactory>) -> Result<Self, StartError> {
        Ok(Self::with(Threads::start_with(parts, options, backends)?))
    }

    fn with((core, threads): (Arc<Core>, Threads)) -> Self {
        Self { inner: Arc::new(Inner { core, rows: RowReads::new(), threads }) }
    }

    pub(crate) fn core(&self) -> &Core {
        &self.inner.core
    }

    /// Ends service: every waiter gets an error, reads in flight are waited for, threads end. May be called again, from any handle.
    ///
    /// # Errors
    /// [`ShutdownError`] if the kernel still holds buffers after `timeout`: they stay reserved.
    pub fn shutdown(&self, timeout: Duration) -> Result<Stats, ShutdownError> {
        self.inner.threads.shutdown(self.core(), timeout)?;
        Ok(self.stats())
    }

    /// Counters since start.
    pub fn stats(&self) -> Stats {
        self.core().counters.snapshot(self.inner.threads.reports(self.core()))
    }

    /// What the limits in force cost at most.
    pub fn memory(&self) -> MemoryBounds {
        let core = self.core();
        core.limits.memory(&core.geometry, core.placement.actors())
    }

    /// The layers served, in the order in which they are awaited.
    pub fn layers(&self) -> &[Layer] {
        &self.core().geometry.layers
    }

    /// Admits a request.
    ///
    /// # Errors
    /// [`TokenError::HistoryTooShort`] or [`TokenError::BadToken`] for its history, [`TokenError::LimitReached`] if `requests_max`
    /// requests are live.
    pub fn begin(&self, begin: Begin<'_>) -> Result<RequestId, TokenError> {
        self.core().begin(begin)
    }

    /// Takes one sampled token at the end of the request; its reads start.
    ///
    /// # Errors
    /// [`TokenError`]: a token outside the vocabulary is refused before it is hashed.
    pub fn on_token(&self, req: RequestId, tok: Token) -> Result<(), TokenError> {
        self.core().feed(req, Feed { pos: None, toks: &[tok], live: None, prefill: false })
    }

    /// Takes tokens of a prompt from `pos`, which must be the request's end. Any way to cut a prompt gives the same rows.
    ///
    /// `live` marks masked positions (images) with `false`; their ids are not validated. The reads of the first tokens start; the
    /// others wait in the mailbox and follow as rows are delivered.
    ///
    /// # Errors
    /// [`TokenError`]; all tokens are taken, or none.
    pub fn on_tokens(&self, req: RequestId, pos: u64, toks: &[Token], live: Option<&[bool]>) -> Result<(), TokenError> {
        self.core().feed(req, Feed { pos: Some(pos), toks, live, prefill: true })
    }

    /// Ends a request that is complete. Idempotent.
    pub fn finish(&self, req: RequestId) {
        self.core().end(req);
    }

    /// Ends a request at once: its waiter gets an error, what was read for it is dropped. Idempotent.
    pub fn abort(&self, req: RequestId) {
        self.core().end(req);
    }

    /// The next layer of the tokens fed and not yet taken.
    ///
    /// The first await of a range fixes it: from the cursor to the request's end, at most `await_tokens_max` tokens (none fed: an empty
    /// range, complete at once). The later layers give the same range; after the last one the cursor moves on.
    pub fn await_layer(&self, req: RequestId) -> AwaitLayer<'_> {
        AwaitLayer::new(self.core(), req, None)
    }

    /// The same, naming the layer; it must be the one that is due.
    pub fn await_layer_at(&self, req: RequestId, layer: Layer) -> AwaitLayer<'_> {
        AwaitLayer::new(self.core(), req, Some(layer))
    }

    /// Reads rows by id through the I/O actors, in bulk; blocks until all are there.
    ///
    /// `out` gets `rows.len() * row_bytes` bytes, in the order of `rows`. Calls take turns.
    ///
    /// # Errors
    /// [`ReadRowsError`]; `out` then holds no particular bytes.
    pub fn read_rows(&self, layer: Layer, rows: &[RowId], out: &mut [u8]) -> Result<(), ReadRowsError> {
        self.inner.rows.read(self.core(), layer, rows, out)
    }
}
