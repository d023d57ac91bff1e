//! Awaiting a layer: the waiter's side of a request's implicit step.
//!
//! The first await of a range asks the keygen actor to bind it (`[drained, end)`), every await then waits for its layer's gate, and
//! the guard it gets lends the bytes out. An await registers its waker before it looks at anything that could end the wait: the gate,
//! the request's tenure, the scheduler's state; whoever changes one of these wakes afterwards.

use crate::AwaitError;
use crate::core::Core;
use crate::protocol::taker::{ClaimRefused, Claimed};
use crate::request::Slot;
use crate::scheduler::{Layer, RequestId};
use crate::sync::{thread, thread_waker};
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Nothing claimed yet.
    Fresh,
    /// The claim on this table is ours; waiting since, if the layer was not complete at once.
    Claimed { table: u32, since: Option<Instant> },
    /// Done: a result was given.
    Over,
}

/// A layer to come: a `Future` whose output is the layer's rows, with blocking forms beside.
///
/// A missed deadline or a drop advances nothing and keeps the range. There is one waiter per request: a second gets
/// [`AwaitError::Busy`].
#[must_use = "an await does nothing until it is polled or waited for"]
#[derive(Debug)]
pub struct AwaitLayer<'s> {
    core: &'s Core,
    req: RequestId,
    asked: Option<Layer>,
    stage: Stage,
}

impl<'s> AwaitLayer<'s> {
    pub(crate) fn new(core: &'s Core, req: RequestId, asked: Option<Layer>) -> Self {
        Self { core, req, asked, stage: Stage::Fresh }
    }

    /// Blocks until the layer is complete, the request ends, or the scheduler closes.
    ///
    /// # Errors
    /// [`AwaitError`], but never `DeadlineMissed`.
    pub fn wait(mut self) -> Result<LayerRows<'s>, AwaitError> {
        self.block(None)
    }

    /// Blocks until `deadline` at most.
    ///
    /// # Errors
    /// [`AwaitError::DeadlineMissed`] if the layer is not complete by then; this may be waited for again. Otherwise as [`Self::wait`].
    pub fn wait_deadline(&mut self, deadline: Instant) -> Result<LayerRows<'s>, AwaitError> {
        self.block(Some(deadline))
    }

    /// Takes the layer if it is complete; `None` if it is not there yet. Never blocks.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn try_take(&mut self) -> Result<Option<LayerRows<'s>>, AwaitError> {
        match self.look(None) {
            Poll::Ready(result) => result.map(Some),
            Poll::Pending => Ok(None),
        }
    }

    fn block(&mut self, deadline: Option<Instant>) -> Result<LayerRows<'s>, AwaitError> {
        let waker = thread_waker();
        loop {
            if let Poll::Ready(result) = self.look(Some(&waker)) {
                return result;
            }
            match deadline {
                None => thread::park(),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(self.missed());
                    }
                    thread::park_timeout(left);
                }
            }
        }
    }

    fn missed(&self) -> AwaitError {
        self.core.counters.deadlines_missed.add(1);
        let Stage::Claimed { table, .. } = self.stage else { return AwaitError::DeadlineMissed { ready: 0, total: 0 } };
        let slot = self.slot();
        // First the gate, then the range: an unbound gate (another thread is about to bind it) goes with the range before.
        let Some(remaining) = slot.layers[table as usize].gate.remaining() else {
            return AwaitError::DeadlineMissed { ready: 0, total: 0 };
        };
        let total = slot.range().1;
        let remaining = remaining.min(total);
        AwaitError::DeadlineMissed { ready: total - remaining, total }
    }

    fn slot(&self) -> &'s Slot {
        &self.core.slots[self.req.slot() as usize]
    }

    /// Claims the layer that is due, and asks for a range if there is none.
    fn claim(&mut self) -> Result<(), AwaitError> {
        let core = self.core;
        core.check_open()?;
        let unknown = AwaitError::UnknownRequest(self.req);
        let slot = core.slot_of(self.req).map_err(|_| unknown.clone())?;
        let layers = &core.geometry.layers;
        let expected = match self.asked {
            None => None,
            Some(layer) => {
                let table = layers.iter().position(|&l| l == layer).ok_or(AwaitError::UnknownLayer(layer))?;
                Some(table as u32)
            }
        };
        if !slot.tenure.hold(self.req.generation()) {
            core.counters.stale_ids.add(1);
            return Err(unknown);
        }
        match slot.taker.claim(layers.len() as u32, expected) {
            Ok(Claimed::Waits(table)) => self.stage = Stage::Claimed { table, since: None },
            Ok(Claimed::AsksFor) => {
                self.stage = Stage::Claimed { table: 0, since: None };
                slot.layers.iter().for_each(|l| l.gate.reset());
                slot.ask_to_bind();
                core.run(self.req.slot());
            }
            Err(refused) => {
                self.let_go_of_slot();
                return Err(match refused {
                    ClaimRefused::Busy => AwaitError::Busy,
                    ClaimRefused::OutOfOrder(due) => AwaitError::OutOfOrder {
                        next: layers[due as usize],
                        asked: self.asked.unwrap_or(layers[due as usize]),
                    },
                });
            }
        }
        Ok(())
    }

    fn let_go_of_slot(&self) {
        if self.slot().tenure.release() {
            self.core.run(self.req.slot());
        }
    }

    /// Looks once; registers `waker` before it does.
    fn look(&mut self, waker: Option<&Waker>) -> Poll<Result<LayerRows<'s>, AwaitError>> {
        if self.stage == Stage::Fresh
            && let Err(error) = self.claim()
        {
            return Poll::Ready(Err(error));
        }
        let Stage::Claimed { table, since } = self.stage else {
            panic!("an await gives one result");
        };
        let (core, slot) = (self.core, self.slot());
        let layer = &slot.layers[table as usize];
        let complete = match waker {
            Some(waker) => layer.gate.poll(waker),
            None => layer.gate.is_complete(),
        };
        if !slot.tenure.is(self.req.generation()) {
            return Poll::Ready(Err(AwaitError::UnknownRequest(self.req)));
        }
        if !complete {
            return match core.check_open() {
                Ok(()) => {
                    self.stage = Stage::Claimed { table, since: since.or_else(|| Some(Instant::now())) };
                    Poll::Pending
                }
                Err(closed) => Poll::Ready(Err(closed.into())),
            };
        }
        if layer.failure.is_set() {
            return Poll::Ready(Err(layer.failure.error(core).into()));
        }
        match since {
            None => core.counters.layers_hidden.add(1),
            Some(since) => {
                core.counters.layers_exposed.add(1);
                core.counters.exposed_ns.add(since.elapsed().as_nanos() as u64);
            }
        }
        let (start, tokens) = slot.range();
        slot.taker.take();
        self.stage = Stage::Over; // the hold goes over to the guard
        Poll::Ready(Ok(LayerRows { core, slot: self.req.slot(), table: table as usize, start, tokens }))
    }
}

impl<'s> Future for AwaitLayer<'s> {
    type Output = Result<LayerRows<'s>, AwaitError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.look(Some(cx.waker()))
    }
}

impl Drop for AwaitLayer<'_> {
    fn drop(&mut self) {
        if let Stage::Claimed { table, .. } = self.stage {
            self.slot().layers[table as usize].gate.unregister();
            self.slot().taker.unclaim();
            self.let_go_of_slot();
        }
    }
}

/// The rows of one layer for a range of positions, lent without a further copy.
///
/// The next range of the request can be awaited when all guards of this one are dropped.
pub struct LayerRows<'s> {
    core: &'s Core,
    slot: u32,
    table: usize,
    start: u64,
    tokens: u32,
}

impl std::fmt::Debug for LayerRows<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LayerRows")
            .field("layer", &self.layer())
            .field("positions", &self.positions())
            .field("shape", &self.shape())
            .finish_non_exhaustive()
    }
}

impl LayerRows<'_> {
    /// The layer.
    pub fn layer(&self) -> Layer {
        self.core.geometry.layers[self.table]
    }

    /// Positions of the request's tokens, one per leading index of [`Self::shape`].
    pub fn positions(&self) -> Range<u64> {
        self.start..self.start + u64::from(self.tokens)
    }

    /// `[tokens, heads, row_bytes]`.
    pub fn shape(&self) -> [usize; 3] {
        [self.tokens as usize, self.core.geometry.columns(), self.core.geometry.row_bytes[self.table]]
    }

    /// `tokens * heads * row_bytes` bytes, contiguous, heads in the order of the model's concatenation.
    pub fn bytes(&self) -> &[u8] {
        self.core.delivered(self.slot, self.table, self.tokens as usize)
    }

    /// One row.
    ///
    /// # Panics
    /// If `token` or `head` is out of range.
    pub fn row(&self, token: usize, head: usize) -> &[u8] {
        let [tokens, heads, row_bytes] = self.shape();
        assert!(token < tokens && head < heads, "token {token} of {tokens}, head {head} of {heads}");
        &self.bytes()[(token * heads + head) * row_bytes..][..row_bytes]
    }
}

impl Drop for LayerRows<'_> {
    fn drop(&mut self) {
        let slot = &self.core.slots[self.slot as usize];
        slot.taker.drop_guard();
        if slot.tenure.release() {
            self.core.run(self.slot);
        }
    }
}
