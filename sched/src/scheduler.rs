//! The public face of the machinery (signatures first; bodies follow).
#![allow(missing_docs, clippy::todo, unused_variables)]

use crate::io::{BackendChoice, DirectMode};
use crate::{AwaitError, Limits, MemoryBounds, ShutdownError, StartError, TokenError};
use engram_keygen::Token;
use engram_store::{DataFile, Table};
use std::future::Future;
use std::marker::PhantomData;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};
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

impl std::fmt::Display for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}#{}", self.0 as u32, self.0 >> 32)
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

/// How to start.
#[derive(Clone, Debug, Default)]
pub struct StartOptions {
    pub limits: Limits,
    pub backend: BackendChoice,
    pub direct: DirectMode,
}

/// Admission of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Begin<'a> {
    /// Position of the first token that will be fed.
    pub start_pos: u64,
    /// Ids before `start_pos`, newest last, at least `min(start_pos, n-1)`; older ones are ignored.
    pub history: &'a [Token],
    /// Liveness of `history`; `None`: all live.
    pub live: Option<&'a [bool]>,
    pub class: RequestClass,
}

/// What this process serves: the keys and the tables, composed by the face.
#[derive(Debug)]
pub struct Parts {
    /// One table per keygen table, in the same order.
    pub tables: Vec<Table>,
    /// The files that the tables' extents name.
    pub files: Vec<DataFile>,
    // plus `keygen: engram_keygen::Keygen` once that crate has it
}

/// Counters since start.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Backend report per I/O actor.
    pub backends: Vec<crate::io::BackendReport>,
    pub tokens: u64,
    pub plans: u64,
    /// Rows wanted by tokens.
    pub rows: u64,
    /// Rows actually assembled (after joining groups in flight).
    pub rows_read: u64,
    pub group_joins: u64,
    pub page_joins: u64,
    pub reads: u64,
    pub read_bytes: u64,
    /// Sum over submits of reads in flight, for the mean depth (`depth_sum / depth_samples`).
    pub depth_sum: u64,
    pub depth_samples: u64,
    pub layers_hidden: u64,
    pub layers_exposed: u64,
    pub exposed_ns: u64,
    pub deadlines_missed: u64,
    pub stale_ids: u64,
    pub reads_failed: u64,
    pub retries: u64,
    /// CPU time of I/O actors and backend threads, nanoseconds.
    pub io_cpu_ns: u64,
}

/// Send + Sync; a clone is another handle on the same scheduler.
#[derive(Clone)]
pub struct Scheduler {}

impl Scheduler {
    pub fn start(parts: Parts, options: &StartOptions) -> Result<Self, StartError> {
        todo!()
    }
    /// Every waiter gets an error; returns once the kernel holds no buffer, or `Busy` after `timeout`.
    pub fn shutdown(&self, timeout: Duration) -> Result<Stats, ShutdownError> {
        todo!()
    }
    pub fn stats(&self) -> Stats {
        todo!()
    }
    pub fn memory(&self) -> MemoryBounds {
        todo!()
    }
    /// The layers served, in the order in which they are awaited.
    pub fn layers(&self) -> &[Layer] {
        todo!()
    }
    pub fn begin(&self, begin: Begin<'_>) -> Result<RequestId, TokenError> {
        todo!()
    }
    pub fn on_token(&self, req: RequestId, tok: Token) -> Result<(), TokenError> {
        todo!()
    }
    pub fn on_tokens(&self, req: RequestId, pos: u64, toks: &[Token], live: Option<&[bool]>) -> Result<(), TokenError> {
        todo!()
    }
    pub fn finish(&self, req: RequestId) {
        todo!()
    }
    pub fn abort(&self, req: RequestId) {
        todo!()
    }
    /// The next layer of `[drained, end)`, at most `await_tokens_max` tokens; the last layer advances the cursor.
    pub fn await_layer(&self, req: RequestId) -> AwaitLayer<'_> {
        todo!()
    }
    pub fn await_layer_at(&self, req: RequestId, layer: Layer) -> AwaitLayer<'_> {
        todo!()
    }
}

/// A layer to come: a `Future`, with blocking forms. Dropping it advances nothing.
#[must_use]
pub struct AwaitLayer<'s> {
    _s: PhantomData<&'s Scheduler>,
}

impl<'s> AwaitLayer<'s> {
    pub fn wait(self) -> Result<LayerRows<'s>, AwaitError> {
        todo!()
    }
    pub fn wait_deadline(&mut self, deadline: Instant) -> Result<LayerRows<'s>, AwaitError> {
        todo!()
    }
    /// `None`: not there yet.
    pub fn try_take(&mut self) -> Result<Option<LayerRows<'s>>, AwaitError> {
        todo!()
    }
}

impl<'s> Future for AwaitLayer<'s> {
    type Output = Result<LayerRows<'s>, AwaitError>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        todo!()
    }
}

/// The rows of one layer for a range of positions. Dropping it gives the bytes back.
pub struct LayerRows<'s> {
    _s: PhantomData<&'s Scheduler>,
}

impl LayerRows<'_> {
    pub fn layer(&self) -> Layer {
        todo!()
    }
    pub fn positions(&self) -> Range<u64> {
        todo!()
    }
    /// `[tokens, heads, row_bytes]`.
    pub fn shape(&self) -> [usize; 3] {
        todo!()
    }
    /// `tokens * heads * row_bytes` bytes, contiguous.
    pub fn bytes(&self) -> &[u8] {
        todo!()
    }
    pub fn row(&self, token: usize, head: usize) -> &[u8] {
        todo!()
    }
}
