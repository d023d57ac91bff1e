//! The scheduler: the public face of the machinery, one handle on the shared core.

use crate::await_layer::AwaitLayer;
use crate::core::Core;
use crate::io::{BackendChoice, BackendFactory, DirectMode};
use crate::request::Feed;
use crate::rows::RowReads;
use crate::start::Threads;
use crate::submit::{Dest, RowIds, RowInt, Step, StepSpec};
use crate::sync::Arc;
use crate::{Limits, MemoryBounds, ReadRowsError, ShutdownError, StartError, Stats, TokenError};
use crate::{Profile, StepError};
use engram_keygen::{Keygen, RowId, Token};
use engram_store::{DataFile, Table};
use std::ops::Range;
use std::time::{Duration, Instant};

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
#[repr(u8)]
pub enum RequestClass {
    /// Somebody waits for each token.
    #[default]
    Interactive = 0,
    /// Throughput counts, latency does not.
    Bulk = 1,
}

/// How to start. The default fits most machines.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct StartOptions {
    /// Upper bounds; 0 stands for the default of each.
    pub limits: Limits,
    /// Which I/O path.
    pub backend: BackendChoice,
    /// Whether to bypass the page cache.
    pub direct: DirectMode,
    /// I/O actors, with the files dealt out in turn; `None`: one for each device that holds files.
    pub io_actors: Option<u16>,
    /// Layers that this process serves (a pipeline-parallel rank); `None`: all.
    pub layers: Option<Vec<Layer>>,
    /// Heads (columns of a token's rows, order-major) that this process serves (a tensor-parallel rank); `None`: all. What it reads, holds
    /// and delivers is theirs alone: `[tokens, heads, row_bytes]` of these heads.
    pub heads: Option<Range<u16>>,
    /// This process's part of the reads in flight of its disks, in (0, 1]; `None`: 1.
    pub device_share: Option<f32>,
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
    /// Which ids the engine puts at masked positions.
    pub profile: Profile,
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
///
/// A child of `fork(2)` cannot use it: there every call gives [`Closed::ForkedChild`](crate::Closed::ForkedChild), and dropping handles,
/// awaits, guards and steps does nothing. The parent is not affected. Memory of rows is not mapped in a child.
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
        if self.core.is_forked_child() {
            // All of it is the parent's. The handles name threads that do not exist here, and what the core has mapped is not mapped here,
            // or is something else by now.
            self.threads.forget();
            std::mem::forget(Arc::clone(&self.core));
            return;
        }
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

    /// Counters since start. In a child of `fork(2)` those of the parent at the fork, without reports of its backends.
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

    /// Takes one sampled token for each of many requests. Each entry has its own result: ids of requests that have ended are skipped and
    /// counted (`Stats::stale_ids`). Returns how many tokens were taken.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn on_token_batch(&self, reqs: &[RequestId], toks: &[Token], results: &mut [Result<(), TokenError>]) -> usize {
        assert!(reqs.len() == toks.len() && reqs.len() == results.len(), "a token and a result for each request");
        for ((&req, &tok), result) in reqs.iter().zip(toks).zip(results.iter_mut()) {
            *result = self.on_token(req, tok);
        }
        results.iter().filter(|result| result.is_ok()).count()
    }

    /// Takes tokens of a prompt from `pos` on. Any way to cut a prompt gives the same rows.
    ///
    /// Below the request's end this rewrites the tail: ids that stand there already are no news, the first difference cuts what follows.
    /// `live` marks masked positions (images) with `false`; their ids are not validated. The reads of the first tokens start; the
    /// others are recorded and follow as rows are delivered.
    ///
    /// # Errors
    /// [`TokenError`]; all tokens are taken, or none. [`TokenError::Gap`] beyond the end, [`TokenError::HistoryUnavailable`] before the
    /// kept tail.
    pub fn on_tokens(&self, req: RequestId, pos: u64, toks: &[Token], live: Option<&[bool]>) -> Result<(), TokenError> {
        self.core().feed(req, Feed { pos: Some(pos), toks, live, prefill: true })
    }

    /// Takes drafts of a speculative decoder: a chain from `pos`, which lies between the request's end and that of its drafts. Their rows
    /// are read ahead, after everything else. They are no part of the request until [`Scheduler::accept`], or until tokens are fed that
    /// turn out to be the same; a step may cover them.
    ///
    /// # Errors
    /// [`TokenError`]: `draft_tokens_max`, tokens outside the vocabulary, a gap.
    pub fn on_draft(&self, req: RequestId, pos: u64, toks: &[Token]) -> Result<(), TokenError> {
        self.core().on_draft(req, pos, toks)
    }

    /// The first `n` drafts join the request, the others are dropped; `bonus`, the token sampled after them, is taken.
    ///
    /// # Errors
    /// [`TokenError::BadState`] if there are fewer drafts.
    pub fn accept(&self, req: RequestId, n: u32, bonus: Option<Token>) -> Result<(), TokenError> {
        self.core().accept(req, n, bonus)
    }

    /// Cuts the request to end at `to_pos`, drafts included. Rows of what was cut are never handed out; a running step that covers some
    /// fails for this request (unless its layer is complete).
    ///
    /// # Errors
    /// [`TokenError::HistoryUnavailable`] beyond the kept tail, [`TokenError::Gap`] beyond the end.
    pub fn rollback(&self, req: RequestId, to_pos: u64) -> Result<(), TokenError> {
        self.core().rollback(req, to_pos)
    }

    /// A request with the history of `parent` (without its drafts) that goes on by itself, from the parent's end. Groups that both need are
    /// read once.
    ///
    /// # Errors
    /// As [`Scheduler::begin`].
    pub fn fork(&self, parent: RequestId) -> Result<RequestId, TokenError> {
        self.core().fork(parent)
    }

    /// Takes a request's rows away and lets others have its place; the id stays, for [`Scheduler::resume`], `finish` or `abort`. Its
    /// waiter gets [`crate::AwaitError::Cancelled`], its rows in running steps fail.
    ///
    /// # Errors
    /// [`TokenError`]; at most `requests_max` requests may be preempted.
    pub fn preempt(&self, req: RequestId) -> Result<(), TokenError> {
        self.core().preempt(req)
    }

    /// Admits a preempted request again, wherever `begin` says.
    ///
    /// # Errors
    /// As [`Scheduler::begin`]; [`TokenError::BadState`] if it is not preempted.
    pub fn resume(&self, req: RequestId, begin: Begin<'_>) -> Result<(), TokenError> {
        self.core().resume(req, begin)
    }

    /// The request as bytes, for [`Scheduler::import_state`] of a process with the same model: position, kept ids, profile, class. Without
    /// drafts.
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn export_state(&self, req: RequestId) -> Result<Vec<u8>, TokenError> {
        self.core().export_state(req)
    }

    /// Admits an exported request. Nothing before its end is delivered.
    ///
    /// # Errors
    /// [`TokenError::BadImport`] for damaged bytes or another model, else as [`Scheduler::begin`].
    pub fn import_state(&self, state: &[u8]) -> Result<RequestId, TokenError> {
        self.core().import_state(state)
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
        AwaitLayer::of_request(self.core(), req, None)
    }

    /// The same, naming the layer; it must be the one that is due.
    pub fn await_layer_at(&self, req: RequestId, layer: Layer) -> AwaitLayer<'_> {
        AwaitLayer::of_request(self.core(), req, Some(layer))
    }

    /// Binds the rows of one forward, in batch order, to one contiguous buffer per layer. Positions whose tokens have not come complete
    /// when they do.
    ///
    /// # Errors
    /// [`StepError`]; nothing was submitted.
    pub fn submit_step(&self, spec: &StepSpec<'_>) -> Result<Step<'_>, StepError> {
        self.core().submit_step(spec).map(|step| Step::new(self.core(), step))
    }

    /// A step of zeros that is complete at once and reads nothing: for warm-up, and for ranks with nothing to do.
    ///
    /// # Errors
    /// As [`Scheduler::submit_step`].
    pub fn submit_dummy(&self, tokens: u32, dests: &[Dest]) -> Result<Step<'_>, StepError> {
        self.core().submit_dummy(tokens, dests).map(|step| Step::new(self.core(), step))
    }

    /// A step of one layer, of rows by id, for engines that hash themselves. The ids are read before this returns; [`Step::failed`] has a
    /// bit for each token.
    ///
    /// # Errors
    /// [`StepError`]: an id that is not one of the table's is refused with its place.
    pub fn submit_rows<T: RowInt>(
        &self,
        layer: Layer,
        rows: RowIds<'_, T>,
        dest: Dest,
        deadline: Option<Instant>,
    ) -> Result<Step<'_>, StepError> {
        self.core().submit_rows(layer, rows, dest, deadline).map(|step| Step::new(self.core(), step))
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
