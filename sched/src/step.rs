//! Steps: the destinations of rows, layer by layer, and how they are completed.
//!
//! A step is one forward pass: for each layer a contiguous destination, a gate that counts its rows, a word for each row (which cell serves
//! it), and what failed. There are three kinds, in one table: each request has a step of its own (`await_layer`), row reads have one, and the
//! others are step slots that `submit_step` and its like take.
//!
//! Invariants:
//! - A row is counted once at its gate, by the one that [`crate::protocol::step_row`] names.
//! - Who counts the last row of a layer finishes it: zeroes the rows of failed entries, raises the fence, opens the gate. Nobody writes to the
//!   destination afterwards.
//! - A step slot serves the next step when its handle has let go, all its layers are complete and all its wishes taken
//!   ([`crate::protocol::lease`]).

use crate::core::{CellRef, Core};
use crate::delivery::{Destination, Place};
use crate::dest::Dests;
use crate::failure::{Cause, Failure};
use crate::geometry::Geometry;
use crate::limits::{ROW_CELLS, Resolved};
use crate::plan::PlanClass;
use crate::protocol::fence::{FenceRegion, FenceStatus};
use crate::protocol::layer_gate::LayerGate;
use crate::protocol::lease::Lease;
use crate::protocol::step_row::{StepRow, Took};
use crate::protocol::wish_list::WishLinks;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::watchdog::Watchdog;
use smallvec::SmallVec;

/// Rows whose plans a waiter raises at most: a hint is not worth a walk over a whole prompt.
const RAISED_ROWS_MAX: usize = 1024;

/// Layers that have become complete, by step and table: their waiters are woken when no claim is held.
#[derive(Debug, Default)]
pub(crate) struct Wakes(pub(crate) SmallVec<[(u32, u32); 8]>);

/// One layer of a step.
#[derive(Debug)]
pub(crate) struct StepLayer {
    pub(crate) gate: LayerGate,
    /// Whether somebody awaits it (of a step slot; a request's own has its taker).
    pub(crate) claimed: AtomicBool,
    /// A waiter sleeps on it: rows that are planned from now on are urgent.
    pub(crate) awaited: AtomicBool,
    destination: Destination,
    /// Bytes from row to row.
    row_bytes: AtomicU32,
    rows: Box<[StepRow]>,
    rows_len: AtomicU32,
    /// The first failure of each entry, and a bit for each that has one. Ordered by the gate.
    failures: Box<[Failure]>,
    failed: Box<[AtomicU64]>,
    /// The first entry that failed + 1.
    first_failed: AtomicU32,
    /// Nanoseconds of the scheduler's clock.
    pub(crate) deadline_ns: AtomicU64,
    /// When the layer is ended, ready or not; `u64::MAX`: never.
    pub(crate) expires_ns: AtomicU64,
    /// A status that overrides what the rows say, 0: none.
    ended: AtomicU32,
    status: AtomicU32,
    /// Registered destination + 1 that the layer is written to.
    dest: AtomicU32,
}

impl StepLayer {
    fn new(rows: usize, entries: usize) -> Self {
        Self {
            gate: LayerGate::new(),
            claimed: AtomicBool::new(false),
            awaited: AtomicBool::new(false),
            destination: Destination::default(),
            row_bytes: AtomicU32::new(0),
            rows: (0..rows).map(|_| StepRow::new()).collect(),
            rows_len: AtomicU32::new(0),
            failures: (0..entries).map(|_| Failure::default()).collect(),
            failed: (0..entries.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            first_failed: AtomicU32::new(0),
            deadline_ns: AtomicU64::new(0),
            expires_ns: AtomicU64::new(u64::MAX),
            ended: AtomicU32::new(0),
            status: AtomicU32::new(0),
            dest: AtomicU32::new(0),
        }
    }

    /// The layer will be written from `base` on; it is (or is not) in a registered destination, which the caller holds for it. For who owns
    /// the step.
    pub(crate) fn place(&self, base: *mut u8, dest: Option<u32>) {
        self.destination.set(base);
        self.dest.store(dest.map_or(0, |index| index + 1), Ordering::Relaxed);
    }

    /// Sets the layer up, which has its place: `rows` rows of `row_bytes` bytes, for `entries` entries. For who owns the step.
    pub(crate) fn begin(&self, generation: u32, row_bytes: usize, rows: u32, entries: usize, deadline_ns: u64) {
        self.row_bytes.store(row_bytes as u32, Ordering::Relaxed);
        for word in &self.failed[..entries.div_ceil(64)] {
            word.store(0, Ordering::Relaxed);
        }
        self.failures[..entries].iter().for_each(Failure::clear);
        self.first_failed.store(0, Ordering::Relaxed);
        self.awaited.store(false, Ordering::Relaxed);
        self.claimed.store(false, Ordering::Relaxed);
        self.deadline_ns.store(deadline_ns, Ordering::Relaxed);
        self.expires_ns.store(u64::MAX, Ordering::Relaxed);
        self.ended.store(0, Ordering::Relaxed);
        self.status.store(FenceStatus::Pending as u32, Ordering::Relaxed);
        self.rows_len.store(rows, Ordering::Relaxed);
        self.rows[..rows as usize].iter().for_each(|row| row.arm(generation));
        self.gate.arm(rows);
    }

    /// The step was refused after all; the layer has not begun.
    pub(crate) fn give_up(&self, dests: &Dests) {
        if let Some(dest) = self.dest.swap(0, Ordering::Relaxed).checked_sub(1) {
            dests.release(dest);
        }
    }

    /// Rows that are counted.
    pub(crate) fn rows_len(&self) -> u32 {
        self.rows_len.load(Ordering::Relaxed)
    }

    /// Where a row goes.
    pub(crate) fn destination(&self, row: u32) -> Place {
        self.destination.at(row as usize * self.row_bytes.load(Ordering::Relaxed) as usize)
    }

    /// Bytes from row to row.
    pub(crate) fn row_bytes(&self) -> usize {
        self.row_bytes.load(Ordering::Relaxed) as usize
    }

    /// Notes an entry's failure. For who will count one of its rows, or holds the gate.
    pub(crate) fn fail(&self, entry: u32, set: impl FnOnce(&Failure)) {
        set(&self.failures[entry as usize]);
        self.failed[entry as usize / 64].fetch_or(1 << (entry % 64), Ordering::Relaxed);
        let _ = self.first_failed.compare_exchange(0, entry + 1, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The first entry that failed. For who has seen the gate open.
    pub(crate) fn first_failure(&self) -> Option<&Failure> {
        let first = self.first_failed.load(Ordering::Relaxed).checked_sub(1)?;
        Some(&self.failures[first as usize])
    }

    /// The failure of an entry. As above.
    pub(crate) fn failure(&self, entry: usize) -> Option<&Failure> {
        let bit = self.failed.get(entry / 64)?.load(Ordering::Relaxed) >> (entry % 64) & 1;
        (bit == 1).then(|| &self.failures[entry])
    }

    /// The bitmap of failed entries, as words. As above.
    pub(crate) fn failed_words(&self) -> &[AtomicU64] {
        &self.failed
    }

    /// How the layer ended. As above.
    pub(crate) fn status(&self) -> FenceStatus {
        FenceStatus::from_word(self.status.load(Ordering::Relaxed))
    }
}

/// What a step wants of one request: consecutive positions, from a row of the batch on. Also the node of the request's wish list.
#[derive(Debug, Default)]
pub(crate) struct StepEntry {
    pub(crate) request_generation: AtomicU32,
    pub(crate) step_generation: AtomicU32,
    pub(crate) pos: AtomicU64,
    pub(crate) tokens: AtomicU32,
    pub(crate) row: AtomicU32,
    /// Mailbox words of the request that came before; of a row read, its table.
    pub(crate) after: AtomicU64,
}

impl StepEntry {
    /// Writes down what is wanted. For who owns the step.
    pub(crate) fn describe(&self, step_generation: u32, request_generation: u32, pos: u64, tokens: u32, row: u32) {
        self.step_generation.store(step_generation, Ordering::Relaxed);
        self.request_generation.store(request_generation, Ordering::Relaxed);
        self.pos.store(pos, Ordering::Relaxed);
        self.tokens.store(tokens, Ordering::Relaxed);
        self.row.store(row, Ordering::Relaxed);
    }
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) lease: Lease,
    /// The step's handle has let go; for the requests that it covers.
    pub(crate) released: AtomicBool,
    pub(crate) layers: Box<[StepLayer]>,
    /// None for a request's own step.
    pub(crate) entries: Box<[StepEntry]>,
    pub(crate) entries_len: AtomicU32,
    /// Rows of each layer, padding included.
    pub(crate) tokens: AtomicU32,
    /// Row ids of a row read, `tokens x columns`.
    pub(crate) row_ids: Box<[AtomicU64]>,
}

impl Step {
    fn new(tables: usize, rows: usize, entries: usize, row_ids: usize) -> Self {
        Self {
            lease: Lease::new(),
            released: AtomicBool::new(false),
            layers: (0..tables).map(|_| StepLayer::new(rows, entries.max(1))).collect(),
            entries: (0..entries).map(|_| StepEntry::default()).collect(),
            entries_len: AtomicU32::new(0),
            tokens: AtomicU32::new(0),
            row_ids: (0..row_ids).map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

/// All steps, and what belongs to them.
#[derive(Debug)]
pub(crate) struct Steps {
    steps: Box<[Step]>,
    /// The first step slot.
    pub(crate) first_slot: u32,
    /// Entries of a step slot.
    pub(crate) entries_max: u32,
    pub(crate) links: WishLinks,
    pub(crate) fences: FenceRegion,
    pub(crate) dests: Dests,
    pub(crate) watchdog: Watchdog,
    /// Smoothed time of a step, nanoseconds, and when the last began.
    step_ns: AtomicU64,
    last_ns: AtomicU64,
}

impl Steps {
    pub(crate) fn new(limits: &Resolved, geometry: &Geometry) -> std::io::Result<Self> {
        let tables = geometry.layers.len();
        let requests = (0..limits.request_slots).map(|_| Step::new(tables, limits.await_tokens as usize, 0, 0));
        let rows = std::iter::once_with(|| Step::new(tables, ROW_CELLS as usize, 0, 0));
        let tokens = limits.step_tokens as usize;
        let slots = (0..limits.steps_in_flight).map(|_| Step::new(tables, tokens, tokens, tokens * geometry.columns));
        Ok(Self {
            steps: requests.chain(rows).chain(slots).collect(),
            first_slot: limits.request_slots + 1,
            entries_max: limits.step_tokens,
            links: WishLinks::new(limits.steps_in_flight as usize * tokens),
            fences: FenceRegion::new(limits.steps_in_flight as usize * tables)?,
            dests: Dests::new(limits.dests as usize),
            watchdog: Watchdog::new(),
            step_ns: AtomicU64::new(10_000_000),
            last_ns: AtomicU64::new(0),
        })
    }

    pub(crate) fn get(&self, step: u32) -> &Step {
        &self.steps[step as usize]
    }

    pub(crate) fn layer(&self, step: u32, table: usize) -> &StepLayer {
        &self.steps[step as usize].layers[table]
    }

    /// The step slots, as indices of steps.
    pub(crate) fn slots(&self) -> std::ops::Range<u32> {
        self.first_slot..self.steps.len() as u32
    }

    /// The number of the fence words of a step slot's layer.
    pub(crate) fn fence_index(&self, step: u32, table: usize) -> usize {
        let tables = self.steps[step as usize].layers.len();
        (step - self.first_slot) as usize * tables + table
    }

    /// A step begins: learns how long one takes.
    pub(crate) fn pace(&self, now_ns: u64) {
        let last_ns = self.last_ns.swap(now_ns, Ordering::Relaxed);
        self.learn(now_ns.saturating_sub(last_ns));
    }

    /// A forward pass took this long. Long pauses are none.
    pub(crate) fn learn(&self, since_ns: u64) {
        if (10_000..1_000_000_000).contains(&since_ns) {
            let step_ns = self.step_ns.load(Ordering::Relaxed);
            self.step_ns.store(step_ns - step_ns / 8 + since_ns / 8, Ordering::Relaxed); // a lost update does no harm
        }
    }

    /// When a layer of a step that begins now will be reached: (layer / layers) x the smoothed step time.
    pub(crate) fn lead_ns(&self, lead: f64) -> u64 {
        (lead * self.step_ns.load(Ordering::Relaxed) as f64) as u64
    }
}

impl Core {
    /// Counts `n` rows of a layer; who counts the last finishes it.
    pub(crate) fn count_rows(&self, step: u32, table: usize, n: u32, wakes: &mut Wakes) {
        if self.steps.layer(step, table).gate.complete(n) {
            self.finish_layer(step, table);
            wakes.0.push((step, table as u32));
        }
    }

    /// The last row is counted: the layer is the caller's until it opens the gate.
    fn finish_layer(&self, index: u32, table: usize) {
        let step = self.steps.get(index);
        let layer = &step.layers[table];
        let slot = index >= self.steps.first_slot;
        let mut status = FenceStatus::from_word(layer.ended.load(Ordering::Relaxed));
        if slot {
            let failed = self.zero_failed(step, table);
            self.counters.entries_failed.add(failed);
            status = match status {
                FenceStatus::Pending if failed > 0 => FenceStatus::EntriesFailed,
                FenceStatus::Pending => FenceStatus::Ok,
                ended => ended,
            };
            if status == FenceStatus::Timeout {
                self.counters.fence_timeouts.add(1);
            }
        }
        layer.status.store(status as u32, Ordering::Relaxed);
        layer.expires_ns.store(u64::MAX, Ordering::Relaxed); // a slot that is free never expires
        let dest = layer.dest.load(Ordering::Relaxed).checked_sub(1);
        if slot {
            // Nothing is written any more: who sees the fence may unregister, who sees the gate open finds the fence raised.
            if let Some(dest) = dest {
                self.steps.dests.release(dest);
            }
            self.steps.fences.words(self.steps.fence_index(index, table)).raise(status);
        }
        layer.gate.open();
        if slot {
            step.lease.release();
        }
    }

    /// Zeroes the rows of entries that failed; returns how many there are.
    fn zero_failed(&self, step: &Step, table: usize) -> u64 {
        let layer = &step.layers[table];
        let entries = step.entries_len.load(Ordering::Relaxed) as usize;
        let mut failed = 0;
        for (word, bits) in layer.failed[..entries.div_ceil(64)].iter().enumerate() {
            let mut bits = bits.load(Ordering::Relaxed);
            while bits != 0 {
                let entry = &step.entries[word * 64 + bits.trailing_zeros() as usize];
                let row = entry.row.load(Ordering::Relaxed);
                let rows = entry.tokens.load(Ordering::Relaxed) as usize;
                self.zero(layer.destination(row), 0, rows * layer.row_bytes());
                failed += 1;
                bits &= bits - 1;
            }
        }
        failed
    }

    /// Wakes the waiters of what has been completed. For who holds no claim.
    pub(crate) fn wake(&self, wakes: Wakes) {
        for (step, table) in wakes.0 {
            self.wake_layer(step, table as usize);
        }
    }

    /// The same; requests that have ended wait for their last row.
    pub(crate) fn wake_and_run(&self, wakes: Wakes) {
        for (step, table) in wakes.0 {
            self.wake_layer(step, table as usize);
            if step < self.limits.request_slots {
                self.run(step);
            }
        }
    }

    /// Binds a waiting cell of the caller's to a row of the step `generation`. If the row was taken, the cell is let go of.
    pub(crate) fn bind_row(&self, at: RowAt, cell: CellRef, wakes: &mut Wakes) {
        let RowAt { step, generation, table, row, entry } = at;
        let layer = self.steps.layer(step, table);
        let words = &layer.rows[row as usize];
        if !words.start(generation, cell.generation) {
            self.orphan_cell(cell);
            return;
        }
        let body = self.cells[cell.cell as usize].payload();
        body.step.store(step, Ordering::Relaxed);
        body.row.store(row, Ordering::Relaxed);
        body.entry.store(entry, Ordering::Relaxed);
        self.bind_cell(cell.cell, wakes);
        if !words.settle(generation, cell.cell) && self.orphan_cell(cell) {
            self.count_rows(step, table, 1, wakes);
        }
    }

    /// Takes a row from a layer whose gate the caller holds; returns the rows to count for it.
    pub(crate) fn take_row(&self, step: u32, generation: u32, table: usize, row: u32) -> Taken {
        match self.steps.layer(step, table).rows[row as usize].take(generation) {
            Took::Nothing => Taken { count: 0, delivered: true },
            Took::Empty => Taken { count: 1, delivered: false },
            Took::Binding => Taken { count: 0, delivered: false },
            Took::Bound(cell, cell_generation) => {
                let orphaned = self.orphan_cell(CellRef { cell, generation: cell_generation });
                Taken { count: u32::from(orphaned), delivered: !orphaned }
            }
        }
    }

    /// Ends a layer with `status` unless it is complete: rows that are not there become zeros, and their entries fail. The caller holds the
    /// step.
    pub(crate) fn end_layer(&self, index: u32, generation: u32, table: usize, status: FenceStatus, wakes: &mut Wakes) {
        let step = self.steps.get(index);
        let layer = &step.layers[table];
        if !layer.gate.hold() {
            return;
        }
        let cause = match status {
            FenceStatus::Timeout => Cause::Timeout,
            FenceStatus::Closed => Cause::Closed,
            _ => Cause::Cancelled,
        };
        let mut count = 1;
        for (number, entry) in step.entries[..step.entries_len.load(Ordering::Relaxed) as usize].iter().enumerate() {
            let first = entry.row.load(Ordering::Relaxed);
            let mut missing = 0;
            for row in first..first + entry.tokens.load(Ordering::Relaxed) {
                let taken = self.take_row(index, generation, table, row);
                count += taken.count;
                missing += u32::from(!taken.delivered);
            }
            if missing > 0 {
                layer.ended.store(status as u32, Ordering::Relaxed);
                layer.fail(number as u32, |f| f.set_cause(cause, entry.pos.load(Ordering::Relaxed)));
                if status == FenceStatus::Timeout {
                    self.counters.rows_zero_filled.add(u64::from(missing) * self.geometry.columns as u64);
                }
            }
        }
        self.count_rows(index, table, count, wakes);
    }

    /// Ends all layers of a step that the caller holds.
    pub(crate) fn end_step(&self, index: u32, generation: u32, status: FenceStatus) {
        let mut wakes = Wakes::default();
        for table in 0..self.geometry.layers.len() {
            self.end_layer(index, generation, table, status, &mut wakes);
        }
        self.wake(wakes);
    }

    /// The scheduler has closed: no fence stays down. See [`crate::protocol::closing`] for steps that are being submitted.
    pub(crate) fn end_steps(&self) {
        for index in self.steps.slots() {
            let lease = &self.steps.get(index).lease;
            if let Some(generation) = lease.current()
                && lease.hold(generation)
            {
                self.end_step(index, generation, FenceStatus::Closed);
                lease.release();
            }
        }
    }

    /// A waiter is about to sleep on a layer: what it still waits for becomes urgent.
    pub(crate) fn raise_layer(&self, step: u32, table: usize) {
        let layer = self.steps.layer(step, table);
        if layer.awaited.swap(true, Ordering::Relaxed) {
            return;
        }
        let deadline_ns = layer.deadline_ns.load(Ordering::Relaxed);
        let rows = (layer.rows_len.load(Ordering::Relaxed) as usize).min(RAISED_ROWS_MAX);
        for (row, word) in layer.rows[..rows].iter().enumerate() {
            let Some(cell) = word.cell() else { continue };
            let body = self.cells[cell as usize].payload();
            // A row that was delivered has lost its cell to somebody else.
            let ours = body.step.load(Ordering::Relaxed) == step && body.row.load(Ordering::Relaxed) == row as u32;
            if ours && body.class.load(Ordering::Relaxed) <= PlanClass::DecodePrefetch as u32 {
                self.raise_cell(cell, PlanClass::Awaited, deadline_ns);
            }
        }
    }
}

/// A row of a step, for a cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowAt {
    pub(crate) step: u32,
    pub(crate) generation: u32,
    pub(crate) table: usize,
    pub(crate) row: u32,
    pub(crate) entry: u32,
}

/// What became of a row that was taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    /// Rows that the taker counts.
    pub(crate) count: u32,
    /// Its bytes are in place, or on their way for good.
    pub(crate) delivered: bool,
}
