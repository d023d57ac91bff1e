//! Awaiting a layer: of a request's own step, or of a step slot.
//!
//! The first await of a request's range asks the keygen actor to bind it (`[drained, end)`), every await then waits for its layer's gate,
//! and the guard it gets lends the bytes out. An await registers its waker before it looks at anything that could end the wait: the gate,
//! the request's tenure, the scheduler's state; whoever changes one of these wakes afterwards.

use crate::core::Core;
use crate::protocol::fence::FenceStatus;
use crate::protocol::layer_gate::LayerGate;
use crate::protocol::taker::{ClaimRefused, Claimed};
use crate::request::Slot;
use crate::scheduler::{Layer, RequestId};
use crate::step::StepLayer;
use crate::sync::{Ordering, thread, thread_waker};
use crate::{AwaitError, Closed, EntryFailure};
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// Whose layer is awaited.
#[derive(Clone, Copy, Debug)]
enum Of {
    /// The layer that is due, or this one.
    Request(RequestId, Option<Layer>),
    /// A layer of a step slot (its index among all steps), which its handle keeps alive.
    Step(u32, Layer),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Nothing claimed yet.
    Fresh,
    /// The claim on layer 0 of a new range is ours; the range can be asked for when nobody copies to the last one's rows any more.
    Asking,
    /// The claim on this table is ours.
    Claimed(u32),
    /// Done: a result was given.
    Over,
}

/// A layer to come: a `Future` whose output is the layer's rows, with blocking forms beside.
///
/// A missed deadline or a drop advances nothing and keeps the range. There is one waiter per request, and per layer of a step: a second
/// gets [`AwaitError::Busy`].
#[must_use = "an await does nothing until it is polled or waited for"]
#[derive(Debug)]
pub struct AwaitLayer<'s> {
    core: &'s Core,
    of: Of,
    stage: Stage,
    /// Waiting since, if the layer was not complete at once.
    since: Option<Instant>,
}

impl<'s> AwaitLayer<'s> {
    pub(crate) fn of_request(core: &'s Core, req: RequestId, asked: Option<Layer>) -> Self {
        Self { core, of: Of::Request(req, asked), stage: Stage::Fresh, since: None }
    }

    pub(crate) fn of_step(core: &'s Core, step: u32, layer: Layer) -> Self {
        Self { core, of: Of::Step(step, layer), stage: Stage::Fresh, since: None }
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
        let nothing = AwaitError::DeadlineMissed { ready: 0, total: 0 };
        let Stage::Claimed(table) = self.stage else { return nothing };
        // First the gate, then the rows: an unbound gate (another thread is about to bind it) goes with the range before.
        let Some(remaining) = self.layer(table).gate.remaining() else { return nothing };
        let total = match self.of {
            Of::Request(req, _) => self.slot(req).range().1,
            Of::Step(..) => self.layer(table).rows_len(),
        };
        AwaitError::DeadlineMissed { ready: total - remaining.min(total), total }
    }

    fn slot(&self, req: RequestId) -> &'s Slot {
        &self.core.slots[req.slot() as usize]
    }

    /// The step that has the layer, among all steps.
    fn step(&self) -> u32 {
        match self.of {
            Of::Request(req, _) => req.slot(),
            Of::Step(step, _) => step,
        }
    }

    fn layer(&self, table: u32) -> &'s StepLayer {
        self.core.steps.layer(self.step(), table as usize)
    }

    /// Claims the layer, and asks for a range if there is none.
    fn claim(&mut self) -> Result<(), AwaitError> {
        let core = self.core;
        core.check_open()?;
        match self.of {
            Of::Request(req, asked) => self.claim_of_request(req, asked),
            Of::Step(step, layer) => {
                let table = core.geometry.table(layer).ok_or(AwaitError::UnknownLayer(layer))?;
                let awaited = core.steps.layer(step, table);
                if awaited.gate.remaining().is_none() {
                    return Err(AwaitError::UnknownLayer(layer)); // a row read has one layer
                }
                if awaited.claimed.swap(true, Ordering::AcqRel) {
                    return Err(AwaitError::Busy);
                }
                self.stage = Stage::Claimed(table as u32);
                Ok(())
            }
        }
    }

    fn claim_of_request(&mut self, req: RequestId, asked: Option<Layer>) -> Result<(), AwaitError> {
        let core = self.core;
        let unknown = AwaitError::UnknownRequest(req);
        let slot = core.slot_of(req).map_err(|_| unknown.clone())?;
        let layers = &core.geometry.layers;
        let expected = match asked {
            None => None,
            Some(layer) => Some(core.geometry.table(layer).ok_or(AwaitError::UnknownLayer(layer))? as u32),
        };
        if !slot.tenure.hold(req.generation()) {
            core.counters.stale_ids.add(1);
            return Err(unknown);
        }
        match slot.taker.claim(layers.len() as u32, expected) {
            Ok(Claimed::Waits(table)) => self.stage = Stage::Claimed(table),
            Ok(Claimed::AsksFor) => self.stage = Stage::Asking,
            Err(refused) => {
                self.let_go_of(slot);
                return Err(match refused {
                    ClaimRefused::Busy => AwaitError::Busy,
                    ClaimRefused::OutOfOrder(due) => AwaitError::OutOfOrder {
                        next: layers[due as usize],
                        asked: asked.unwrap_or(layers[due as usize]),
                    },
                });
            }
        }
        Ok(())
    }

    /// Asks for a range, once nobody copies to the rows of the last one: a range that was cut may have left a copy under way.
    fn ask(&mut self, req: RequestId, waker: Option<&Waker>) -> bool {
        let slot = self.slot(req);
        let layers = &self.core.steps.get(req.slot()).layers;
        for layer in layers {
            if !layer.gate.is_quiet() {
                if let Some(waker) = waker {
                    layer.gate.register(waker);
                }
                if !layer.gate.is_quiet() {
                    return false;
                }
            }
        }
        layers.iter().for_each(|layer| layer.gate.reset());
        slot.ask_to_bind();
        self.stage = Stage::Claimed(0);
        self.core.run(req.slot());
        true
    }

    fn let_go_of(&self, slot: &Slot) {
        if slot.tenure.release()
            && let Of::Request(req, _) = self.of
        {
            self.core.run(req.slot());
        }
    }

    /// What has ended the wait, beside the layer.
    fn ended(&self) -> Result<(), AwaitError> {
        if let Of::Request(req, _) = self.of {
            let slot = self.slot(req);
            if !slot.tenure.is(req.generation()) {
                return Err(AwaitError::UnknownRequest(req));
            }
            if slot.preempted.load(Ordering::Acquire) {
                return Err(AwaitError::Cancelled);
            }
        }
        Ok(())
    }

    /// Nothing yet, unless the wait has ended otherwise.
    fn pending(&self) -> Poll<Result<LayerRows<'s>, AwaitError>> {
        match self.ended().and_then(|()| Ok(self.core.check_open()?)) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// Looks once; registers `waker` before it does.
    fn look(&mut self, waker: Option<&Waker>) -> Poll<Result<LayerRows<'s>, AwaitError>> {
        if self.core.is_forked_child() {
            return Poll::Ready(Err(Closed::ForkedChild.into())); // also a layer that is complete: its bytes are not mapped here
        }
        if self.stage == Stage::Fresh {
            if let Of::Request(req, _) = self.of
                && let Ok(slot) = self.core.slot_of(req)
                && !slot.is_settled()
            {
                self.core.run(req.slot());
                if !slot.is_settled() {
                    // Another thread is about to cut the range: it takes a moment.
                    waker.inspect(|waker| waker.wake_by_ref());
                    return self.pending();
                }
            }
            if let Err(error) = self.claim() {
                return Poll::Ready(Err(error));
            }
        }
        if self.stage == Stage::Asking
            && let Of::Request(req, _) = self.of
            && !self.ask(req, waker)
        {
            return self.pending();
        }
        let Stage::Claimed(table) = self.stage else {
            panic!("an await gives one result");
        };
        let (core, layer) = (self.core, self.layer(table));
        let complete = match waker {
            Some(waker) => layer.gate.poll(waker),
            None => layer.gate.is_complete(),
        };
        if let Err(error) = self.ended() {
            return Poll::Ready(Err(error));
        }
        if !complete {
            if let Err(closed) = core.check_open() {
                return Poll::Ready(Err(closed.into()));
            }
            if self.since.is_none() {
                self.since = Some(Instant::now());
                core.raise_layer(self.step(), table as usize);
            }
            return Poll::Pending;
        }
        self.take(table)
    }

    /// The layer is complete.
    fn take(&mut self, table: u32) -> Poll<Result<LayerRows<'s>, AwaitError>> {
        let (core, layer, step) = (self.core, self.layer(table), self.step());
        let (start, tokens) = match self.of {
            Of::Request(req, _) => {
                if let Some(failure) = layer.first_failure() {
                    return Poll::Ready(Err(match failure.error(core) {
                        EntryFailure::Read(error) => error.into(),
                        _ => AwaitError::Cancelled,
                    }));
                }
                self.slot(req).range()
            }
            Of::Step(..) if layer.status() == FenceStatus::Closed => {
                return Poll::Ready(Err(core.check_open().err().unwrap_or(Closed::Shutdown).into()));
            }
            Of::Step(step, _) => (0, core.steps.get(step).tokens.load(Ordering::Relaxed)),
        };
        match self.since {
            None => core.counters.layers_hidden.add(1),
            Some(since) => {
                core.counters.layers_exposed.add(1);
                core.counters.exposed_ns.add(since.elapsed().as_nanos() as u64);
            }
        }
        let slot = match self.of {
            Of::Request(req, _) => {
                self.slot(req).taker.take();
                Some(req.slot()) // the hold goes over to the guard
            }
            Of::Step(..) => {
                layer.claimed.store(false, Ordering::Release);
                None
            }
        };
        self.stage = Stage::Over;
        Poll::Ready(Ok(LayerRows { core, step, slot, table: table as usize, start, tokens }))
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
        if self.core.is_forked_child() {
            return;
        }
        let table = match self.stage {
            Stage::Fresh | Stage::Over => return,
            Stage::Asking => 0,
            Stage::Claimed(table) => table,
        };
        let unregister = |gate: &LayerGate| gate.unregister();
        match self.of {
            Of::Request(req, _) => {
                let slot = self.slot(req);
                self.core.steps.get(req.slot()).layers.iter().for_each(|layer| unregister(&layer.gate));
                if self.stage == Stage::Asking {
                    slot.taker.withdraw(); // nobody has asked
                }
                slot.taker.unclaim();
                self.let_go_of(slot);
            }
            Of::Step(..) => {
                let layer = self.layer(table);
                unregister(&layer.gate);
                layer.claimed.store(false, Ordering::Release);
            }
        }
    }
}

/// The rows of one layer for a range of positions, lent without a further copy.
///
/// The next range of the request can be awaited when all guards of this one are dropped.
pub struct LayerRows<'s> {
    core: &'s Core,
    step: u32,
    /// The request's slot, which the guard holds; none for a step slot, which its handle holds.
    slot: Option<u32>,
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

    /// Positions of the request's tokens, one per leading index of [`Self::shape`]; of a step, its rows `0..padded_tokens`.
    pub fn positions(&self) -> Range<u64> {
        self.start..self.start + u64::from(self.tokens)
    }

    /// `[tokens, heads, row_bytes]`.
    pub fn shape(&self) -> [usize; 3] {
        [self.tokens as usize, self.core.geometry.columns, self.core.geometry.row_bytes[self.table]]
    }

    /// `tokens * heads * row_bytes` bytes, contiguous, heads in the order of the model's concatenation.
    ///
    /// Empty in a child of `fork(2)`, where the memory is not mapped.
    pub fn bytes(&self) -> &[u8] {
        if self.core.is_forked_child() {
            return &[];
        }
        let bytes = self.tokens as usize * self.core.geometry.token_bytes[self.table];
        self.core.delivered(self.core.steps.layer(self.step, self.table).destination(0), bytes)
    }

    /// One row.
    ///
    /// # Panics
    /// If `token` or `head` is out of range, or in a child of `fork(2)`.
    pub fn row(&self, token: usize, head: usize) -> &[u8] {
        let [tokens, heads, row_bytes] = self.shape();
        assert!(token < tokens && head < heads, "token {token} of {tokens}, head {head} of {heads}");
        &self.bytes()[(token * heads + head) * row_bytes..][..row_bytes]
    }
}

impl Drop for LayerRows<'_> {
    fn drop(&mut self) {
        let Some(slot) = self.slot.filter(|_| !self.core.is_forked_child()) else { return };
        let held = &self.core.slots[slot as usize];
        held.taker.drop_guard();
        if held.tenure.release() {
            self.core.run(slot);
        }
    }
}
