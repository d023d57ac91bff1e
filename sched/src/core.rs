//! Core: what all threads share. Pools, the group index, queues, request slots; and the steps between them.
//!
//! Invariants:
//! - Bounded by construction: a cell exists only against its slot's credit, a group only while a cell or an assembly refers to it, a
//!   plan only while one of its groups is unread. The pools are sized for all credit, so they never run dry on the hot path.
//! - Nothing here waits and, after [`Core::new`], nothing here allocates.

use crate::failure::Failure;
use crate::geometry::Geometry;
use crate::io::WakeBackend;
use crate::limits::Resolved;
use crate::memory::RowMemory;
use crate::placement::{ACTORS_MAX, Placement};
use crate::plan::{BANDS, PlanClass, PlanDraft, PlanSlab, URGENT_BAND};
use crate::protocol::cell::{Bound, Cell, Deposited, Orphaned};
use crate::protocol::closing::Closing;
use crate::protocol::group::{Group, GroupIndex, IndexPlace, Joined, Links, Waiters};
use crate::protocol::index_stack::IndexStack;
use crate::protocol::plan_queue::{PlanQueue, PushError};
use crate::protocol::plan_slab::{PlanLink, PlanRef, Urgency};
use crate::request::Slot;
use crate::stats::Counters;
use crate::step::{Steps, Wakes};
use crate::sync::process::Process;
use crate::sync::{Arc, AtomicU32, AtomicU64, BoundedQueue, Mutex, OnceLock, Ordering, lock};
use crate::{Closed, StartError};
use engram_keygen::{Keygen, ORDERS_MAX, RowId};
use engram_store::{DataFile, Table};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// A cell's payload; the cell's word orders it.
#[derive(Debug)]
pub(crate) struct CellBody {
    /// Whose credit it is.
    slot: AtomicU32,
    pub(crate) table: AtomicU32,
    /// Groups in use; 0: a dead position, delivered as zeros.
    groups_len: AtomicU32,
    groups: [AtomicU32; ORDERS_MAX],
    /// Bytes to deliver.
    bytes: AtomicU32,
    /// Where its rows go, once it is bound: a row of a step, which belongs to an entry of the step.
    pub(crate) step: AtomicU32,
    pub(crate) row: AtomicU32,
    pub(crate) entry: AtomicU32,
    /// A [`PlanClass`].
    pub(crate) class: AtomicU32,
}

/// In a cell's groups: no row of the group is wanted, its bytes are zeros.
pub(crate) const ZERO_GROUP: u32 = u32::MAX;

/// In a group's rows: no row, its bytes are zeros.
pub(crate) const NO_ROW: RowId = RowId::MAX;

/// A group's key and rows; its references order them.
#[derive(Debug)]
pub(crate) struct GroupKey {
    table_order: AtomicU32,
    mix: AtomicU64,
    /// Rows in use, at most `heads`.
    rows_len: AtomicU32,
    /// Place in the index + 1; 0: not entered.
    place: AtomicU32,
    /// The most urgent class that wanted it so far.
    class: AtomicU32,
    plan: PlanLink,
    pub(crate) failure: Failure,
}

/// The way to one I/O actor.
pub(crate) struct ActorDoor {
    pub(crate) queue: PlanQueue<u32, BANDS>,
    /// Set by the actor's thread before the scheduler is handed out.
    pub(crate) waker: OnceLock<Arc<dyn WakeBackend>>,
}

impl ActorDoor {
    pub(crate) fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }
}

/// What a new cell is for.
pub(crate) struct CellWanted {
    /// Its groups, and those of them that are to be waited for.
    pub(crate) groups: usize,
    pub(crate) deposits: usize,
    pub(crate) bytes: usize,
    pub(crate) class: PlanClass,
}

/// A cell by its generation: once bound it goes its own way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CellRef {
    pub(crate) cell: u32,
    pub(crate) generation: u32,
}

/// See the module text.
pub(crate) struct Core {
    pub(crate) keygen: Keygen,
    pub(crate) tables: Vec<Table>,
    pub(crate) files: Vec<DataFile>,
    pub(crate) geometry: Geometry,
    pub(crate) limits: Resolved,
    pub(crate) placement: Placement,
    pub(crate) slots: Box<[Slot]>,
    /// First in, first out: an ended request's orphans have the longest time to come home before its slot serves again.
    pub(crate) free_slots: BoundedQueue<u32>,
    pub(crate) cells: Box<[Cell<CellBody>]>,
    free_cells: IndexStack,
    links: Links,
    pub(crate) groups: Box<[Group<GroupKey>]>,
    free_groups: IndexStack,
    index: GroupIndex,
    /// Row ids, `heads` per group.
    group_rows: Box<[AtomicU64]>,
    pub(crate) group_memory: RowMemory,
    /// Destinations of ours: of each request's own step, then of each step slot.
    pub(crate) destination_memory: RowMemory,
    pub(crate) steps: Steps,
    pub(crate) plans: PlanSlab,
    pub(crate) doors: Vec<ActorDoor>,
    closing: Closing,
    process: Process,
    /// Requests that have begun and not ended; at most `requests_max`.
    pub(crate) live: AtomicU32,
    /// Requests that are preempted; at most `requests_max`.
    pub(crate) preempted: AtomicU32,
    /// Live interactive requests: while there is one, the in-flight limit is the lower one.
    pub(crate) interactive_live: AtomicU32,
    pub(crate) counters: Counters,
    pub(crate) epoch: Instant,
    pub(crate) workers: crate::workers::WorkQueue,
    /// Why the scheduler failed, told with the backends' notes.
    pub(crate) failures: Mutex<Vec<String>>,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("layers", &self.geometry.layers).finish_non_exhaustive()
    }
}

impl Core {
    pub(crate) fn new(
        keygen: Keygen,
        tables: Vec<Table>,
        files: Vec<DataFile>,
        geometry: Geometry,
        limits: Resolved,
        placement: Placement,
    ) -> Result<Self, StartError> {
        let cells = limits.cells(&geometry);
        let groups = limits.groups(&geometry);
        let plans = limits.plans();
        let reserve = |bytes: u64| {
            usize::try_from(bytes)
                .map_err(|_| std::io::Error::from(std::io::ErrorKind::OutOfMemory))
                .and_then(RowMemory::reserve)
                .map_err(|source| StartError::Memory { bytes, source })
        };
        let cell = || CellBody {
            slot: AtomicU32::new(0),
            table: AtomicU32::new(0),
            groups_len: AtomicU32::new(0),
            groups: std::array::from_fn(|_| AtomicU32::new(0)),
            bytes: AtomicU32::new(0),
            step: AtomicU32::new(0),
            row: AtomicU32::new(0),
            entry: AtomicU32::new(0),
            class: AtomicU32::new(0),
        };
        let key = || GroupKey {
            table_order: AtomicU32::new(0),
            mix: AtomicU64::new(0),
            rows_len: AtomicU32::new(0),
            place: AtomicU32::new(0),
            class: AtomicU32::new(0),
            plan: PlanLink::new(),
            failure: Failure::default(),
        };
        Ok(Self {
            slots: (0..=limits.request_slots).map(|i| Slot::new(i, &keygen, &limits, geometry.layers.len())).collect(),
            free_slots: {
                let free = BoundedQueue::new(limits.request_slots as usize);
                (0..limits.request_slots).for_each(|slot| free.push(slot).expect("as many places as slots"));
                free
            },
            cells: (0..cells).map(|_| Cell::new(cell())).collect(),
            free_cells: IndexStack::full(cells),
            links: Links::new(cells as usize * geometry.orders.len()),
            groups: (0..groups).map(|_| Group::new(key())).collect(),
            free_groups: IndexStack::full(groups),
            index: GroupIndex::new(groups as usize),
            group_rows: (0..groups as usize * geometry.heads).map(|_| AtomicU64::new(0)).collect(),
            group_memory: reserve(u64::from(groups) * geometry.group_bytes as u64)?,
            destination_memory: reserve(limits.destination_bytes(&geometry))?,
            steps: Steps::new(&limits, &geometry)
                .map_err(|source| StartError::Memory { bytes: limits.fence_bytes(&geometry), source })?,
            plans: PlanSlab::new(plans, placement.actors()),
            doors: (0..placement.actors())
                .map(|_| ActorDoor { queue: PlanQueue::new(plans as usize), waker: OnceLock::new() })
                .collect(),
            closing: Closing::new(),
            process: Process::current()
                .map_err(|source| StartError::Memory { bytes: crate::batch::PAGE_BYTES, source })?,
            live: AtomicU32::new(0),
            preempted: AtomicU32::new(0),
            interactive_live: AtomicU32::new(0),
            counters: Counters::default(),
            epoch: Instant::now(),
            workers: crate::workers::WorkQueue::new(limits.request_slots as usize + 1),
            failures: Mutex::new(Vec::new()),
            keygen,
            tables,
            files,
            geometry,
            limits,
            placement,
        })
    }

    /// Nanoseconds since start.
    pub(crate) fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    // ---- closing ---------------------------------------------------------------------------------------------------------------

    fn reason(reason: u32) -> Option<Closed> {
        match reason {
            0 => None,
            1 => Some(Closed::Shutdown),
            _ => Some(Closed::Fatal),
        }
    }

    /// Whether this is a child of `fork(2)`: then nothing here may be touched, and locks may be held for ever.
    #[inline]
    pub(crate) fn is_forked_child(&self) -> bool {
        self.process.is_forked_child()
    }

    /// For calls that are allowed when the scheduler has closed.
    pub(crate) fn check_process(&self) -> Result<(), Closed> {
        if self.is_forked_child() { Err(Closed::ForkedChild) } else { Ok(()) }
    }

    pub(crate) fn check_open(&self) -> Result<(), Closed> {
        self.check_process()?;
        Self::reason(self.closing.reason()).map_or(Ok(()), Err)
    }

    /// The same, for who has claimed a step slot: see [`Closing`].
    pub(crate) fn check_open_after_claim(&self) -> Result<(), Closed> {
        Self::reason(self.closing.reason_after_claim()).map_or(Ok(()), Err)
    }

    /// Ends service: the flag first, then the queues, then everybody who may be asleep.
    pub(crate) fn close(&self, why: Closed) {
        let reason = if why == Closed::Shutdown { 1 } else { 2 };
        self.closing.close(reason, || {
            for door in &self.doors {
                door.queue.close();
                door.wake();
            }
            self.workers.close();
            self.steps.watchdog.close();
            self.end_steps();
            for step in 0..=self.limits.request_slots {
                (0..self.geometry.layers.len()).for_each(|table| self.wake_layer(step, table));
            }
        });
    }

    /// Ends service because something inside failed: the note first, so that whoever sees the end finds the cause.
    pub(crate) fn fail(&self, note: String) {
        if self.is_forked_child() {
            return; // a panic of the child's
        }
        lock(&self.failures).push(note);
        self.close(Closed::Fatal);
    }

    /// Wakes the waiter of a layer of a step. Its waker is the engine's: a panic of it stays with it (and is told by the panic hook).
    pub(crate) fn wake_layer(&self, step: u32, table: usize) {
        let gate = &self.steps.layer(step, table).gate;
        let _ = catch_unwind(AssertUnwindSafe(|| gate.wake()));
    }

    // ---- cells -----------------------------------------------------------------------------------------------------------------

    /// Takes a cell, against credit that the caller has taken.
    pub(crate) fn open_cell(&self, slot: u32, table: usize, wanted: &CellWanted) -> CellRef {
        let &CellWanted { groups, deposits, bytes, class } = wanted;
        let cell = self.free_cells.pop().expect("cells are bounded by credit");
        let body = self.cells[cell as usize].payload();
        body.slot.store(slot, Ordering::Relaxed);
        body.table.store(table as u32, Ordering::Relaxed);
        body.groups_len.store(groups as u32, Ordering::Relaxed);
        body.bytes.store(bytes as u32, Ordering::Relaxed);
        body.class.store(class as u32, Ordering::Relaxed);
        CellRef { cell, generation: self.cells[cell as usize].init(deposits as u8) }
    }

    fn cell_groups<'c>(&self, body: &'c CellBody) -> impl Iterator<Item = u32> + use<'c> {
        let len = (body.groups_len.load(Ordering::Relaxed) as usize).min(ORDERS_MAX);
        body.groups[..len].iter().map(|g| g.load(Ordering::Relaxed))
    }

    /// Returns what a cell holds and the cell itself. For its owner, after `finish` or a step to FREE.
    ///
    /// The groups go first: the pools are sized so that a group without a cell is the rare one in a publisher's hands.
    fn free_cell(&self, cell: u32) {
        let body = self.cells[cell as usize].payload();
        let slot = body.slot.load(Ordering::Relaxed);
        for group in self.cell_groups(body).filter(|&group| group != ZERO_GROUP) {
            self.unpin(group);
        }
        self.free_cells.push(cell);
        if self.slots[slot as usize].credit.give(1) {
            self.run(slot);
        }
    }

    /// Binds a waiting cell of the caller's to the row of a step in its body, and copies if it is ready.
    pub(crate) fn bind_cell(&self, cell: u32, wakes: &mut Wakes) {
        if self.cells[cell as usize].bind() == Bound::Copy {
            self.deliver_cell(cell, wakes);
        }
    }

    /// Copies a claimed cell to its row, counts it, and frees it.
    fn deliver_cell(&self, cell: u32, wakes: &mut Wakes) {
        let body = self.cells[cell as usize].payload();
        let (step, table) = (body.step.load(Ordering::Relaxed), body.table.load(Ordering::Relaxed) as usize);
        let layer = self.steps.layer(step, table);
        let to = layer.destination(body.row.load(Ordering::Relaxed));
        let mut at = 0;
        let total = body.bytes.load(Ordering::Relaxed) as usize;
        for (order, group) in self.cell_groups(body).enumerate() {
            let bytes = self.group_bytes(table, order).min(total - at);
            if group == ZERO_GROUP {
                self.zero(to, at, bytes);
            } else {
                let failure = &self.groups[group as usize].key().failure;
                if failure.is_set() {
                    layer.fail(body.entry.load(Ordering::Relaxed), |entry| failure.copy_to(entry));
                    self.zero(to, at, bytes);
                } else {
                    self.copy_group(group, to, at, bytes);
                }
            }
            at += bytes;
        }
        if at == 0 {
            self.zero(to, 0, total);
        }
        self.cells[cell as usize].finish();
        self.count_rows(step, table, 1, wakes);
        self.free_cell(cell);
    }

    /// Bytes of a group of a table: the owned heads of its order.
    fn group_bytes(&self, table: usize, order: usize) -> usize {
        self.geometry.orders[order].heads.len() * self.geometry.row_bytes[table]
    }

    /// A group of the cell is complete.
    fn deposit_cell(&self, cell: u32) {
        match self.cells[cell as usize].deposit() {
            Deposited::Pending => {}
            Deposited::Free => {
                self.counters.late_completions.add(1);
                self.free_cell(cell);
            }
            Deposited::Copy => {
                let mut wakes = Wakes::default();
                self.deliver_cell(cell, &mut wakes);
                self.wake_and_run(wakes);
            }
        }
    }

    /// The request lets go of a cell. True: it was bound, and its destination will not be written.
    pub(crate) fn orphan_cell(&self, at: CellRef) -> bool {
        match self.cells[at.cell as usize].orphan(at.generation) {
            Orphaned::Free => {
                self.free_cell(at.cell);
                false
            }
            Orphaned::Later { was_bound } => was_bound,
            Orphaned::Delivered => false,
        }
    }

    /// Makes what a cell still waits for as urgent as `class`. A hint: the cell may be anybody's by now.
    pub(crate) fn raise_cell(&self, cell: u32, class: PlanClass, deadline_ns: u64) {
        for group in self.cell_groups(self.cells[cell as usize].payload()) {
            if let Some(raised) = self.groups.get(group as usize)
                && !raised.is_published()
            {
                self.raise_group(group, class, deadline_ns);
            }
        }
    }

    // ---- groups ----------------------------------------------------------------------------------------------------------------

    fn group_hash(table: usize, order: usize, mix: u64) -> u64 {
        // The mix is a product of large odd constants; folding spreads it over set and tag. Not a proof of equality: the key is.
        let salt = (table as u64) << 8 | order as u64;
        let x = (mix ^ salt.wrapping_mul(0x9E37_79B9_7F4A_7C15)) as u128 * 0xD6E8_FEB8_6659_FD93_u128;
        (x as u64) ^ (x >> 64) as u64
    }

    /// Finds the group (table, order, mix) and lets the cell's node wait for it, or opens it and adds it to the plan. `order` counts the
    /// owned ones.
    ///
    /// The cell is WAITING and the caller's.
    pub(crate) fn want_group(&self, cell: u32, (table, order, mix): (usize, usize, u64), plan: &mut PlanDraft) {
        let hash = Self::group_hash(table, order, mix);
        let table_order = (table as u32) << 8 | order as u32;
        let node = cell * self.geometry.orders.len() as u32 + order as u32;
        let body = self.cells[cell as usize].payload();
        for group in self.index.candidates(hash) {
            let found = &self.groups[group as usize];
            if !found.pin() {
                continue;
            }
            let key = found.key();
            let same = key.table_order.load(Ordering::Relaxed) == table_order
                && key.mix.load(Ordering::Relaxed) == mix
                && key.place.load(Ordering::Relaxed) != 0
                && !key.failure.is_set();
            if !same {
                self.unpin(group);
                continue;
            }
            body.groups[order].store(group, Ordering::Relaxed);
            match found.join(node, &self.links) {
                Joined::Abandoned => {
                    self.unpin(group);
                    continue;
                }
                Joined::Complete => self.deposit_cell(cell), // the cell is waiting, so nothing else comes due
                Joined::Waits => {
                    // Its plan may be of a lower class, and wait behind others for as long as there are any: a token does not wait with it.
                    if key.class.fetch_min(plan.class as u32, Ordering::Relaxed) > plan.class as u32 {
                        self.raise_group(group, plan.class, plan.deadline_ns);
                    }
                }
            }
            self.counters.group_joins.add(1);
            if plan.groups.contains(&group) {
                self.counters.group_joins_in_step.add(1);
            }
            return;
        }
        let mut rows = [0; engram_keygen::HEADS_MAX];
        let rows = &mut rows[..self.keygen.heads()];
        let owned = &self.geometry.orders[order];
        self.keygen.rows(self.geometry.keys[table], owned.order, mix, rows);
        let group = self.open_group(table_order, mix, &rows[owned.heads.clone()], Some(hash), plan.class);
        body.groups[order].store(group, Ordering::Relaxed);
        let _ = self.groups[group as usize].join(node, &self.links); // not published: it is in no plan yet
        plan.groups.push(group);
    }

    /// Opens a group outside of the index, as the cell's group `order`, for rows named by the caller, at most `heads`; adds it to the plan.
    /// Rows that are [`NO_ROW`] are zeros. False: all are, and there is no group.
    pub(crate) fn want_rows(
        &self,
        cell: u32,
        table: usize,
        order: usize,
        rows: &[RowId],
        plan: &mut PlanDraft,
    ) -> bool {
        let groups = &self.cells[cell as usize].payload().groups;
        if rows.iter().all(|&row| row == NO_ROW) {
            groups[order].store(ZERO_GROUP, Ordering::Relaxed);
            return false;
        }
        let group = self.open_group((table as u32) << 8, 0, rows, None, plan.class);
        groups[order].store(group, Ordering::Relaxed);
        let _ = self.groups[group as usize].join(cell * self.geometry.orders.len() as u32 + order as u32, &self.links);
        plan.groups.push(group);
        true
    }

    fn open_group(&self, table_order: u32, mix: u64, rows: &[RowId], hash: Option<u64>, class: PlanClass) -> u32 {
        let group = self.free_groups.pop().expect("groups are bounded by cells");
        let opened = &self.groups[group as usize];
        let base = group as usize * self.geometry.heads;
        for (slot, &row) in self.group_rows[base..].iter().zip(rows) {
            slot.store(row, Ordering::Relaxed);
        }
        let key = opened.key();
        key.table_order.store(table_order, Ordering::Relaxed);
        key.mix.store(mix, Ordering::Relaxed);
        key.rows_len.store(rows.len() as u32, Ordering::Relaxed);
        key.class.store(class as u32, Ordering::Relaxed);
        key.plan.open();
        key.failure.clear();
        let place = hash.and_then(|hash| self.index.insert(hash, group)).map_or(0, |place| place.to_word());
        key.place.store(place, Ordering::Relaxed);
        let table = (table_order >> 8) as usize;
        let parts = self.tables[table].parts().len();
        for (head, _) in rows.iter().enumerate().filter(|&(_, &row)| row == NO_ROW) {
            self.zero_group_row(group, table, head);
        }
        let real = rows.iter().filter(|&&row| row != NO_ROW).count();
        opened.open((real * parts) as u32);
        group
    }

    /// Table and rows, with their place, of a group that the caller holds.
    pub(crate) fn group_rows(&self, group: u32) -> (usize, impl Iterator<Item = (usize, RowId)>) {
        let key = self.groups[group as usize].key();
        let base = group as usize * self.geometry.heads;
        let len = key.rows_len.load(Ordering::Relaxed) as usize;
        let rows = self.group_rows[base..base + len].iter().map(|r| r.load(Ordering::Relaxed));
        let table = key.table_order.load(Ordering::Relaxed) >> 8;
        (table as usize, rows.enumerate().filter(|&(_, row)| row != NO_ROW))
    }

    fn unpin(&self, group: u32) {
        let unpinned = &self.groups[group as usize];
        // The place is read before the reference is given back: afterwards the key is the next owner's.
        let place = unpinned.key().place.load(Ordering::Relaxed);
        if unpinned.unpin() {
            if let Some(place) = IndexPlace::from_word(place) {
                self.index.remove(place);
            }
            self.poison_group(group);
            self.free_groups.push(group);
        }
    }

    /// An extent of the group has arrived, or has failed (then its failure is set). For the group's I/O actor.
    pub(crate) fn deposit_group(&self, group: u32) {
        if let Some(waiters) = self.groups[group as usize].deposit() {
            self.publish(group, waiters);
        }
    }

    fn publish(&self, group: u32, mut waiters: Waiters) {
        while let Some(node) = waiters.next(&self.links) {
            self.deposit_cell(node / self.geometry.orders.len() as u32);
        }
        self.unpin(group);
    }

    // ---- plans -----------------------------------------------------------------------------------------------------------------

    /// Sends a plan to the I/O actors that own its rows, and empties the draft.
    ///
    /// Each group learns its plan before an actor can: afterwards the group may be complete, free, and in use for other rows. After a
    /// close the plan is dropped: nobody will wait for its cells, see [`Core::close`].
    pub(crate) fn send(&self, plan: &mut PlanDraft) {
        if plan.groups.is_empty() {
            return;
        }
        self.counters.plans.add(1);
        let shares = &mut [0; ACTORS_MAX][..self.doors.len()];
        self.share_out(plan, shares);
        let now_ns = self.now_ns();
        let deadline_ns = if plan.deadline_ns == 0 { now_ns } else { plan.deadline_ns };
        let sent = self.plans.store(&plan.groups, shares, now_ns, Urgency::new(plan.class as u8, deadline_ns));
        // Wishes that came while the plan was being made: they are seen to when it can be found, by the most urgent for all of them.
        let mut wishes = 0u64;
        let mut wish = Urgency::new(u8::MAX >> 1, 0);
        for (bit, &group) in plan.groups.iter().enumerate() {
            if let Some(urgency) = self.groups[group as usize].key().plan.sent(sent, bit as u32) {
                wishes |= 1 << bit;
                wish = wish.min(urgency);
            }
        }
        for actor in (0..self.doors.len()).filter(|&a| shares[a] != 0) {
            self.push_plan(actor, plan.class.band() as usize, sent.index);
        }
        while wishes != 0 {
            self.raise_plan(sent, wishes.trailing_zeros(), wish);
            wishes &= wishes - 1;
        }
        plan.groups.clear();
    }

    /// Hands a plan to an actor, together with a hold on it.
    fn push_plan(&self, actor: usize, band: usize, plan: u32) {
        let door = &self.doors[actor];
        match door.queue.push(band, plan) {
            Ok(true) => {
                self.counters.wakes.add(1);
                door.wake();
            }
            Ok(false) => {}
            Err(PushError::Closed(_)) => {
                self.plans.done(plan);
            }
            Err(PushError::Full(_)) => unreachable!("a band holds as many plans as there are"),
        }
    }

    /// Wants a group sooner than it was planned. Best effort: nothing happens if its reads have started or it is as urgent already, and
    /// any index will do, that of a group in another life too: at worst a group is read earlier than it might be.
    pub(crate) fn raise_group(&self, group: u32, class: PlanClass, deadline_ns: u64) {
        let deadline_ns = if deadline_ns == 0 { self.now_ns() } else { deadline_ns };
        let urgency = Urgency::new(class as u8, deadline_ns);
        if let Some((plan, bit)) = self.groups[group as usize].key().plan.want(urgency) {
            self.raise_plan(plan, bit, urgency);
        }
    }

    fn raise_plan(&self, plan: PlanRef, bit: u32, urgency: Urgency) {
        let mut actors = self.plans.raise(plan, bit, urgency);
        while actors != 0 {
            self.counters.plans_raised.add(1);
            self.push_plan(actors.trailing_zeros() as usize, URGENT_BAND, plan.index);
            actors &= actors - 1;
        }
    }

    /// Whether the group need not be read, as every request has let go of it. For an actor that has a deposit to make.
    pub(crate) fn is_abandoned(&self, group: u32) -> bool {
        let looked_at = &self.groups[group as usize];
        let orders = self.geometry.orders.len() as u32;
        let (abandoned, now) = looked_at.abandon(&self.links, |node| self.cells[(node / orders) as usize].is_orphan());
        if now {
            self.counters.groups_abandoned.add(1);
            if looked_at.key().class.load(Ordering::Relaxed) == PlanClass::Speculative as u32 {
                self.counters.speculative_shed.add(1);
            }
        }
        abandoned
    }

    /// Sets bit `i` of an I/O actor's share if it owns an extent of the plan's group `i`.
    fn share_out(&self, plan: &PlanDraft, shares: &mut [u64]) {
        if let [all] = shares {
            *all = !0;
            return;
        }
        for (i, &group) in plan.groups.iter().enumerate() {
            let (table, rows) = self.group_rows(group);
            for (_, row) in rows {
                for part in 0..self.tables[table].parts().len() {
                    shares[self.placement.actor_of(self.tables[table].extent(part, row).file)] |= 1 << i;
                }
            }
        }
    }
}
