//! The step plane: steps are submitted, awaited, released.
//!
//! `submit_step` takes a step slot, sets its layers up, and leaves a wish with each request that it has entries of; the requests' keygen
//! actors bind the rows, now or when the tokens come. Everything that can be refused is refused before anything is set up.

use crate::await_layer::AwaitLayer;
use crate::core::{Core, NO_ROW};
use crate::message::POSITION_MAX;
use crate::protocol::fence::FenceStatus;
use crate::scheduler::{Layer, RequestId};
use crate::step::Wakes;
use crate::sync::Ordering;
use crate::{EntryFailure, StepError};
use std::time::Instant;

/// A step slot, below `Limits::steps_in_flight_max`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StepSlot(pub u16);

/// A registered destination.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DestId(u64);

impl DestId {
    pub(crate) fn new(index: u32, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | u64::from(index))
    }

    pub(crate) fn index(self) -> u32 {
        self.0 as u32
    }

    pub(crate) fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

impl std::fmt::Display for DestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}#{}", self.index(), self.generation())
    }
}

/// `tokens` positions of a request from `pos` on. Each is a committed token, else a draft (which becomes demand), else it waits for a
/// later `on_token*`, `on_draft` or `accept`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepEntry {
    /// The request.
    pub req: RequestId,
    /// Its first position.
    pub pos: u64,
    /// Positions.
    pub tokens: u32,
}

/// Where the rows of a layer, `[padded_tokens, heads, row_bytes]`, go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Dest {
    /// The step slot's own memory.
    #[default]
    Slot,
    /// Registered memory, from byte `offset` on.
    Registered {
        /// The destination.
        id: DestId,
        /// Bytes before the layer's first row.
        offset: usize,
    },
}

/// One forward pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepSpec<'a> {
    /// What the batch consists of, in order. Several entries of one request are allowed.
    pub entries: &'a [StepEntry],
    /// Rows of the batch, those of padding included: they are zeros.
    pub padded_tokens: u32,
    /// One for each open layer, or none: the slot's own memory.
    pub dests: &'a [Dest],
    /// When the engine will be at each open layer; none: estimated from the time that steps take.
    pub deadlines: &'a [Instant],
    /// The slot that a captured graph was made for; `None`: any free one.
    pub slot: Option<StepSlot>,
    /// At its deadline a layer is completed with zeros for what is missing, which is counted (`Stats::rows_zero_filled`).
    pub zero_fill: bool,
}

/// `[tokens, heads]` row ids of one layer, `stride` elements from token to token.
#[derive(Clone, Copy, Debug)]
pub struct RowIds<'a, T> {
    /// The ids, token-major.
    pub ids: &'a [T],
    /// Tokens.
    pub tokens: u32,
    /// Elements from one token's first id to the next's; at least the heads of a token.
    pub stride: usize,
    /// This id stands for a row of zeros; it need not be a legal one.
    pub sentinel: Option<T>,
}

/// Integers that row ids come as: `i32`, `i64`, `u64`.
pub trait RowInt: Copy + Eq + sealed::Sealed {
    /// The id, exactly.
    fn to_i128(self) -> i128;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! row_int {
    ($($int:ty),*) => { $(
        impl sealed::Sealed for $int {}
        impl RowInt for $int {
            fn to_i128(self) -> i128 {
                i128::from(self)
            }
        }
    )* };
}
row_int!(i32, i64, u64);

/// A step slot that was claimed, with what has to be given back if the submission is refused.
struct Claimed<'c> {
    core: &'c Core,
    index: u32,
    generation: u32,
    /// References that nobody else gives back.
    references: u32,
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        for _ in 0..self.references {
            self.core.steps.get(self.index).lease.release();
        }
    }
}

impl Core {
    /// Claims a step slot for `layers` layers, `wishes` that will be left, and a handle.
    fn claim_step(&self, slot: Option<StepSlot>, layers: u32, wishes: u32) -> Result<Claimed<'_>, StepError> {
        let references = layers + wishes + 1;
        let claim = |index: u32| {
            let generation = self.steps.get(index).lease.claim(references)?;
            Some(Claimed { core: self, index, generation, references })
        };
        match slot {
            None => self.steps.slots().find_map(claim).ok_or(StepError::LimitReached("steps_in_flight_max")),
            Some(StepSlot(slot)) => {
                let index = self.steps.first_slot + u32::from(slot);
                if !self.steps.slots().contains(&index) {
                    return Err(StepError::LimitReached("steps_in_flight_max"));
                }
                claim(index).ok_or(StepError::Busy)
            }
        }
    }

    fn since_epoch_ns(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.epoch).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Finds the destinations of a claimed step's layers. All of them before any layer begins: a gate that was armed cannot be taken back,
    /// as somebody who takes the step for an earlier one may hold it.
    fn place_layers(
        &self,
        step: &Claimed<'_>,
        tables: std::ops::Range<usize>,
        dests: &[Dest],
        padded: u32,
    ) -> Result<(), StepError> {
        for (number, table) in tables.clone().enumerate() {
            let dest = dests.get(number).copied().unwrap_or_default();
            if let Err(error) = self.place_layer(step, table, dest, padded) {
                (tables.start..table)
                    .for_each(|placed| self.steps.layer(step.index, placed).give_up(&self.steps.dests));
                return Err(error);
            }
        }
        Ok(())
    }

    fn place_layer(&self, step: &Claimed<'_>, table: usize, dest: Dest, padded: u32) -> Result<(), StepError> {
        let bytes = padded as usize * self.geometry.token_bytes[table];
        let layer = self.steps.layer(step.index, table);
        match dest {
            Dest::Registered { id, offset } => {
                let base = self.steps.dests.hold(id, offset, bytes)?;
                layer.place(base, Some(id.index()));
            }
            Dest::Slot => {
                let offset = self.limits.destination_offset(&self.geometry, step.index, table);
                layer.place(self.own_destination(offset, bytes), None);
            }
        }
        Ok(())
    }

    /// Sets one layer of a claimed step up, for `rows` rows and padding up to `padded`. It has been placed.
    fn begin_layer(&self, step: &Claimed<'_>, table: usize, setup: &Setup) {
        let token_bytes = self.geometry.token_bytes[table];
        let layer = self.steps.layer(step.index, table);
        let deadline_ns = setup.deadline.unwrap_or(setup.now_ns + self.lead_ns(table));
        layer.begin(step.generation, token_bytes, setup.rows, setup.entries, deadline_ns);
        let padding = (setup.padded - setup.rows) as usize * token_bytes;
        self.zero(layer.destination(setup.rows), 0, padding);
    }

    /// From here on the layers' fences will be raised; their own counts are the caller's.
    fn launch(&self, step: &Claimed<'_>, tables: std::ops::Range<usize>, expires_ns: impl Fn(usize) -> u64) {
        for table in tables {
            self.steps.fences.words(self.steps.fence_index(step.index, table)).expect();
            self.steps.layer(step.index, table).expires_ns.store(expires_ns(table), Ordering::Release);
        }
    }

    /// Gives the caller's own counts, and makes sure that the step ends if the scheduler does.
    fn commit_step(&self, mut step: Claimed<'_>, tables: std::ops::Range<usize>) -> (u32, u32) {
        let (index, generation) = (step.index, step.generation);
        step.references = 0; // the handle's, the layers' and the wishes' now
        let mut wakes = Wakes::default();
        let mut expires_ns = u64::MAX;
        for table in tables {
            expires_ns = expires_ns.min(self.steps.layer(index, table).expires_ns.load(Ordering::Relaxed));
            self.count_rows(index, table, 1, &mut wakes);
        }
        self.wake(wakes);
        if self.check_open_after_claim().is_err() {
            self.end_step(index, generation, FenceStatus::Closed);
        }
        self.steps.watchdog.tell(expires_ns);
        (index, generation)
    }

    pub(crate) fn submit_step(&self, spec: &StepSpec<'_>) -> Result<(u32, u32), StepError> {
        self.check_open()?;
        let tables = self.geometry.layers.len();
        let rows: u64 = spec.entries.iter().map(|entry| u64::from(entry.tokens)).sum();
        if rows > u64::from(spec.padded_tokens) {
            return Err(StepError::WrongSize { need: rows as usize, got: spec.padded_tokens as usize });
        }
        if spec.padded_tokens > self.limits.step_tokens || spec.entries.len() > self.limits.step_tokens as usize {
            return Err(StepError::LimitReached("step_tokens_max"));
        }
        for len in [spec.dests.len(), spec.deadlines.len()] {
            if len != 0 && len != tables {
                return Err(StepError::WrongSize { need: tables, got: len });
            }
        }
        let held = Held::all(self, spec.entries)?;
        if spec.entries.iter().any(|entry| entry.pos >= POSITION_MAX) {
            return Err(StepError::LimitReached("position"));
        }
        let step = self.claim_step(spec.slot, tables as u32, spec.entries.len() as u32)?;
        self.place_layers(&step, 0..tables, spec.dests, spec.padded_tokens)?;
        self.describe(&step, spec);
        let now_ns = self.now_ns();
        for table in 0..tables {
            let setup = Setup {
                deadline: spec.deadlines.get(table).map(|&at| self.since_epoch_ns(at)),
                rows: rows as u32,
                padded: spec.padded_tokens,
                entries: spec.entries.len(),
                now_ns,
            };
            self.begin_layer(&step, table, &setup);
        }
        self.steps.pace(now_ns);
        self.counters.steps.add(1);
        let watchdog_ns = now_ns.saturating_add(self.limits.watchdog_ns);
        self.launch(&step, 0..tables, |table| {
            let deadline_ns = self.steps.layer(step.index, table).deadline_ns.load(Ordering::Relaxed);
            if spec.zero_fill { watchdog_ns.min(deadline_ns) } else { watchdog_ns }
        });
        for (number, entry) in (0..).zip(spec.entries) {
            let slot = entry.req.slot();
            self.leave_wish(&step, number, slot, self.slots[slot as usize].mailbox.tail());
        }
        drop(held);
        Ok(self.commit_step(step, 0..tables))
    }

    /// Writes down which rows belong to which entry. Before a layer begins: who ends layers reads it.
    fn describe(&self, step: &Claimed<'_>, spec: &StepSpec<'_>) {
        let claimed = self.steps.get(step.index);
        claimed.released.store(false, Ordering::Relaxed);
        claimed.tokens.store(spec.padded_tokens, Ordering::Relaxed);
        claimed.entries_len.store(spec.entries.len() as u32, Ordering::Relaxed);
        let mut row = 0;
        for (node, entry) in claimed.entries.iter().zip(spec.entries) {
            node.describe(step.generation, entry.req.generation(), entry.pos, entry.tokens, row);
            row += entry.tokens;
        }
    }

    /// Leaves an entry's wish with a slot, whose mailbox words before `after` come first (of a row read it is the table), and runs the slot.
    fn leave_wish(&self, step: &Claimed<'_>, number: u32, slot: u32, after: u64) {
        self.steps.get(step.index).entries[number as usize].after.store(after, Ordering::Relaxed);
        let node = (step.index - self.steps.first_slot) * self.steps.entries_max + number;
        self.slots[slot as usize].wishes.push(node, &self.steps.links);
        self.run(slot);
    }

    pub(crate) fn submit_dummy(&self, tokens: u32, dests: &[Dest]) -> Result<(u32, u32), StepError> {
        let spec = StepSpec { padded_tokens: tokens, dests, ..StepSpec::default() };
        let step = self.submit_step(&spec)?;
        self.counters.steps_dummy.add(1);
        Ok(step)
    }

    pub(crate) fn submit_rows<T: RowInt>(
        &self,
        layer: Layer,
        rows: RowIds<'_, T>,
        dest: Dest,
        deadline: Option<Instant>,
    ) -> Result<(u32, u32), StepError> {
        self.check_open()?;
        let table = self.geometry.table(layer).ok_or(StepError::UnknownLayer(layer))?;
        if rows.tokens > self.limits.step_tokens {
            return Err(StepError::LimitReached("step_tokens_max"));
        }
        let columns = self.geometry.columns;
        let need = match rows.tokens as usize {
            0 => 0,
            tokens => (tokens - 1).saturating_mul(rows.stride).saturating_add(columns),
        };
        if rows.ids.len() < need || (rows.stride < columns && rows.tokens > 1) {
            return Err(StepError::WrongSize { need: need.max(columns), got: rows.ids.len() });
        }
        let table_rows = i128::from(self.tables[table].rows());
        let id = |token: usize, head: usize| rows.ids[token * rows.stride + head];
        for token in 0..rows.tokens as usize {
            for head in 0..columns {
                let row = id(token, head);
                let legal = (0..table_rows).contains(&row.to_i128());
                if rows.sentinel != Some(row) && !legal {
                    let (token, head, row) = (token as u32, head as u16, row.to_i128());
                    return Err(StepError::BadRow { layer, row, token, head });
                }
            }
        }
        let step = self.claim_step(None, 1, u32::from(rows.tokens > 0))?;
        self.place_layers(&step, table..table + 1, &[dest], rows.tokens)?;
        let claimed = self.steps.get(step.index);
        for token in 0..rows.tokens as usize {
            for head in 0..columns {
                let row = id(token, head);
                let row = if rows.sentinel == Some(row) { NO_ROW } else { row.to_i128() as u64 };
                claimed.row_ids[token * columns + head].store(row, Ordering::Relaxed);
            }
        }
        claimed.layers.iter().for_each(|other| other.gate.reset());
        let now_ns = self.now_ns();
        let setup = Setup {
            deadline: deadline.map(|at| self.since_epoch_ns(at)),
            rows: rows.tokens,
            padded: rows.tokens,
            entries: rows.tokens as usize,
            now_ns,
        };
        claimed.tokens.store(rows.tokens, Ordering::Relaxed);
        claimed.entries_len.store(rows.tokens, Ordering::Relaxed);
        for (token, node) in claimed.entries[..rows.tokens as usize].iter().enumerate() {
            // An entry for each token, so that each has its own failure; the first is the node of the wish for all of them.
            node.describe(step.generation, 0, token as u64, 1, token as u32);
        }
        self.begin_layer(&step, table, &setup);
        self.counters.steps.add(1);
        self.launch(&step, table..table + 1, |_| now_ns.saturating_add(self.limits.watchdog_ns));
        if rows.tokens > 0 {
            self.leave_wish(&step, 0, self.limits.request_slots, table as u64);
        }
        Ok(self.commit_step(step, table..table + 1))
    }
}

/// How a layer is set up.
struct Setup {
    deadline: Option<u64>,
    rows: u32,
    padded: u32,
    entries: usize,
    now_ns: u64,
}

/// Holds on the requests of a step while wishes are left with them: their slots are not recycled meanwhile.
struct Held<'c, 'e> {
    core: &'c Core,
    entries: &'e [StepEntry],
}

impl<'c, 'e> Held<'c, 'e> {
    fn all(core: &'c Core, entries: &'e [StepEntry]) -> Result<Self, StepError> {
        let mut held = Self { core, entries: &entries[..0] };
        for (number, entry) in entries.iter().enumerate() {
            let unknown = StepError::UnknownRequest(entry.req);
            let slot = core.slot_of(entry.req).map_err(|_| unknown.clone())?;
            if slot.preempted.load(Ordering::Acquire) || !slot.tenure.hold(entry.req.generation()) {
                core.counters.stale_ids.add(1);
                return Err(unknown);
            }
            held.entries = &entries[..=number];
        }
        Ok(held)
    }
}

impl Drop for Held<'_, '_> {
    fn drop(&mut self) {
        for entry in self.entries {
            if self.core.slots[entry.req.slot() as usize].tenure.release() {
                self.core.run(entry.req.slot());
            }
        }
    }
}

/// A submitted step. Dropping it releases it: its slot serves another step as soon as all its layers are complete and the
/// requests' actors have seen that it is over.
#[must_use = "a step that is dropped is released"]
pub struct Step<'s> {
    core: &'s Core,
    index: u32,
    generation: u32,
}

impl std::fmt::Debug for Step<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Step").field("slot", &self.slot()).finish_non_exhaustive()
    }
}

impl<'s> Step<'s> {
    pub(crate) fn new(core: &'s Core, (index, generation): (u32, u32)) -> Self {
        Self { core, index, generation }
    }

    /// Its slot, which names its fences.
    pub fn slot(&self) -> StepSlot {
        StepSlot((self.index - self.core.steps.first_slot) as u16)
    }

    /// A layer of the step, `[padded_tokens, heads, row_bytes]`. Layers may be awaited in any order, one waiter each. The rows of failed
    /// entries are zeros, see [`Step::failed`].
    pub fn await_layer(&self, layer: Layer) -> AwaitLayer<'_> {
        AwaitLayer::of_step(self.core, self.index, layer)
    }

    fn layer(&self, layer: Layer) -> Option<&'s crate::step::StepLayer> {
        let layer = self.core.steps.layer(self.index, self.core.geometry.table(layer)?);
        layer.gate.is_complete().then_some(layer)
    }

    /// How a layer ended; `Pending` while it has not.
    pub fn status(&self, layer: Layer) -> FenceStatus {
        self.layer(layer).map_or(FenceStatus::Pending, |layer| layer.status())
    }

    /// Bitmap, 64 entries a word, of the entries (of `submit_rows`: the tokens) whose rows of the layer could not be had. Empty while the
    /// layer is not complete.
    pub fn failed(&self, layer: Layer) -> Vec<u64> {
        let entries = self.core.steps.get(self.index).entries_len.load(Ordering::Relaxed) as usize;
        let Some(layer) = self.layer(layer) else { return Vec::new() };
        layer.failed_words()[..entries.div_ceil(64)].iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }

    /// Why an entry (of `submit_rows`: a token) has no rows of the layer; `None` if it has, or while the layer is not complete.
    pub fn failure(&self, layer: Layer, entry: usize) -> Option<EntryFailure> {
        let entries = self.core.steps.get(self.index).entries_len.load(Ordering::Relaxed) as usize;
        let layer = self.layer(layer)?;
        let failure = (entry < entries).then(|| layer.failure(entry))??;
        Some(failure.error(self.core))
    }

    /// The engine (or its device's copy) is done with the bytes. Layers that are not complete are cancelled.
    pub fn release(self) {}

    /// Gives the step up: layers that are not complete end with zeros and status `Cancelled`. The same as [`Step::release`].
    pub fn cancel(self) {}
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        if self.core.is_forked_child() {
            return; // its fences may be in memory that is shared with the parent
        }
        self.core.steps.get(self.index).released.store(true, Ordering::Relaxed);
        self.core.end_step(self.index, self.generation, FenceStatus::Cancelled);
        self.core.steps.get(self.index).lease.release();
    }
}
