//! Requests: slots, and the keygen actor that turns a request's tokens into cells, groups and plans.
//!
//! A slot's actor state belongs to whoever runs it (its run gate). What others leave for the runner: tokens in the mailbox, `bind`
//! (the engine waits for a range), the end of the tenure, credit that came back. They all end in [`Core::run`].
//!
//! Life of a slot: VACANT (on the free list) -> SERVING (admitted) -> DRAINING (ended; its last copies, holders and pusher finish) ->
//! VACANT. Reads of an ended request may still be in flight when the slot goes to the next one: their cells are orphans, they belong
//! to no request and give their credit back when they come home.

use crate::TokenError;
use crate::core::{Core, Failure, Geometry, Wakes};
use crate::limits::{ROW_CELLS, Resolved};
use crate::plan::{PLAN_GROUPS_MAX, PlanClass, PlanDraft};
use crate::protocol::admission::Admission;
use crate::protocol::ask::Ask;
use crate::protocol::credit::Credit;
use crate::protocol::layer_gate::LayerGate;
use crate::protocol::mailbox::{Entry, Mailbox};
use crate::protocol::run_gate::{Claim, RunGate, Runner};
use crate::protocol::taker::Taker;
use crate::protocol::tenure::{PushRefused, Tenure};
use crate::scheduler::{Begin, RequestClass, RequestId};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use engram_keygen::{History, Keygen, SeedError, Token};
use std::collections::VecDeque;

/// Ids that a request keeps for rewriting.
const HISTORY_TAIL_MAX: usize = 256;

/// One layer of a slot's bound range.
#[derive(Debug, Default)]
pub(crate) struct SlotLayer {
    pub(crate) gate: LayerGate,
    /// Set by copiers before they count, read after the layer is complete.
    pub(crate) failure: Failure,
}

/// A cell of this request, by its generation: once bound it goes its own way.
#[derive(Clone, Copy, Debug)]
struct CellRef {
    cell: u32,
    generation: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Vacant,
    Serving,
    Draining,
}

/// State of a keygen actor; reached through the run gate alone.
#[derive(Debug)]
pub(crate) struct KeygenActor {
    phase: Phase,
    history: History,
    class: RequestClass,
    /// Positions below have cells (or had).
    planned: u64,
    /// The range bound to the engine's await; empty before the first.
    bound_start: u64,
    bound_end: u64,
    /// Cells of `bound_end..planned`, one per table and position.
    waiting: VecDeque<CellRef>,
    /// Cells of `bound_start..min(planned, bound_end)`.
    bound: Vec<CellRef>,
}

/// What `begin` hands to the actor.
#[derive(Debug)]
struct Admitted {
    history: History,
    class: RequestClass,
    start_pos: u64,
}

/// A request's place in the scheduler.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) tenure: Tenure,
    pub(crate) actor: RunGate<KeygenActor>,
    pub(crate) credit: Credit,
    pub(crate) layers: Box<[SlotLayer]>,
    mailbox: Mailbox,
    /// Position after the last token taken; moved by the pusher.
    end: AtomicU64,
    /// Tokens before this position came as a prompt (`on_tokens`).
    prefill_end: AtomicU64,
    admission: Admission<Admitted>,
    /// The engine waits for a range to be bound.
    bind: Ask,
    /// The range in force, for the waiter; written before its layer gates can complete.
    range_start: AtomicU64,
    range_tokens: AtomicU32,
    pub(crate) taker: Taker,
}

impl Slot {
    pub(crate) fn new(index: u32, keygen: &Keygen, limits: &Resolved, geometry: &Geometry) -> Self {
        let tables = geometry.layers.len();
        // The slot past the last request is that of row reads: it has cells, but neither tokens nor an actor at work.
        let is_request = index < limits.request_slots;
        let (cells, tokens) =
            if is_request { (limits.request_cells(), limits.request_tokens as usize) } else { (ROW_CELLS, 32) };
        let bound = if is_request { limits.await_tokens as usize * tables } else { 0 };
        let actor = KeygenActor {
            phase: Phase::Vacant,
            history: History::new(keygen, HISTORY_TAIL_MAX),
            class: RequestClass::default(),
            planned: 0,
            bound_start: 0,
            bound_end: 0,
            waiting: VecDeque::with_capacity(if is_request { cells as usize } else { 0 }),
            bound: Vec::with_capacity(bound),
        };
        Self {
            tenure: Tenure::new(),
            actor: RunGate::new(actor),
            credit: Credit::new(cells),
            layers: (0..tables).map(|_| SlotLayer::default()).collect(),
            mailbox: Mailbox::new(tokens),
            end: AtomicU64::new(0),
            prefill_end: AtomicU64::new(0),
            admission: Admission::new(),
            bind: Ask::new(),
            range_start: AtomicU64::new(0),
            range_tokens: AtomicU32::new(0),
            taker: Taker::new(),
        }
    }

    /// Asks the actor to bind the next range; the caller runs the actor afterwards.
    pub(crate) fn ask_to_bind(&self) {
        self.bind.raise();
    }

    /// First position and tokens of the bound range. For the waiter, after a layer gate is complete.
    pub(crate) fn range(&self) -> (u64, u32) {
        (self.range_start.load(Ordering::Relaxed), self.range_tokens.load(Ordering::Relaxed))
    }
}

/// Tokens on their way into a request.
#[derive(Clone, Copy)]
pub(crate) struct Feed<'a> {
    /// Where they belong; `None`: at the end.
    pub(crate) pos: Option<u64>,
    pub(crate) toks: &'a [Token],
    pub(crate) live: Option<&'a [bool]>,
    pub(crate) prefill: bool,
}

impl Core {
    /// The slot of an id; any id of another scheduler or another time is simply unknown.
    pub(crate) fn slot_of(&self, req: RequestId) -> Result<&Slot, TokenError> {
        if req.slot() >= self.limits.request_slots {
            return Err(TokenError::UnknownRequest(req));
        }
        Ok(&self.slots[req.slot() as usize])
    }

    pub(crate) fn begin(&self, begin: Begin<'_>) -> Result<RequestId, TokenError> {
        self.check_open()?;
        let mut history = History::new(&self.keygen, HISTORY_TAIL_MAX);
        history.seed(&self.keygen, begin.history, begin.live, begin.start_pos).map_err(|e| match e {
            SeedError::TooShort { need, got, .. } => TokenError::HistoryTooShort { need: need as u32, got: got as u32 },
            SeedError::Token(bad) => TokenError::BadToken { tok: bad.token, pos: begin.start_pos, vocab: bad.vocab },
            _ => TokenError::MaskLength { live: begin.live.map_or(0, <[bool]>::len), toks: begin.history.len() },
        })?;
        let requests = self.limits.requests;
        let one_more = |live| (live < requests).then_some(live + 1);
        if self.live.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_err() {
            return Err(TokenError::LimitReached("requests_max"));
        }
        let Some(index) = self.free_slots.pop() else {
            // More ended requests than slots to spare are kept by their guards.
            self.live.fetch_sub(1, Ordering::Relaxed);
            return Err(TokenError::LimitReached("requests_max"));
        };
        let slot = &self.slots[index as usize];
        slot.end.store(begin.start_pos, Ordering::Relaxed);
        slot.prefill_end.store(0, Ordering::Relaxed);
        if begin.class == RequestClass::Interactive {
            self.interactive_live.fetch_add(1, Ordering::Relaxed);
        }
        let admitted = Admitted { history, class: begin.class, start_pos: begin.start_pos };
        let generation = slot.admission.begin(&slot.tenure, admitted);
        self.run(index);
        Ok(RequestId::new(index, generation))
    }

    pub(crate) fn feed(&self, req: RequestId, feed: Feed<'_>) -> Result<(), TokenError> {
        self.check_open()?;
        let slot = self.slot_of(req)?;
        if let Some(live) = feed.live
            && live.len() != feed.toks.len()
        {
            return Err(TokenError::MaskLength { live: live.len(), toks: feed.toks.len() });
        }
        slot.tenure.start_push(req.generation()).map_err(|refused| match refused {
            PushRefused::Busy => TokenError::Busy,
            PushRefused::Ended => {
                self.counters.stale_ids.add(1);
                TokenError::UnknownRequest(req)
            }
        })?;
        let result = self.push(slot, feed);
        slot.tenure.end_push();
        self.run(req.slot());
        result
    }

    /// Checks and appends. For the slot's one pusher.
    fn push(&self, slot: &Slot, feed: Feed<'_>) -> Result<(), TokenError> {
        let end = slot.end.load(Ordering::Relaxed);
        if let Some(pos) = feed.pos.filter(|&pos| pos != end) {
            return Err(TokenError::Gap { end, pos });
        }
        let Some(new_end) = end.checked_add(feed.toks.len() as u64) else {
            return Err(TokenError::LimitReached("position"));
        };
        let is_live = |i: usize| feed.live.is_none_or(|live| live[i]);
        for (i, &tok) in feed.toks.iter().enumerate().filter(|&(i, _)| is_live(i)) {
            if self.keygen.check(tok).is_err() {
                return Err(TokenError::BadToken { tok, pos: end + i as u64, vocab: self.keygen.vocab() });
            }
        }
        let entries = feed.toks.iter().enumerate().map(|(i, &token)| Entry { token, live: is_live(i) });
        // Before the push: a runner that is at work may take the tokens the moment they are in.
        let prefill_before = slot.prefill_end.load(Ordering::Relaxed);
        if feed.prefill {
            slot.prefill_end.store(new_end, Ordering::Relaxed); // ordered by the mailbox's tail
        }
        if !slot.mailbox.push(entries) {
            slot.prefill_end.store(prefill_before, Ordering::Relaxed);
            return Err(TokenError::LimitReached("request_tokens_max"));
        }
        slot.end.store(new_end, Ordering::Relaxed);
        self.counters.tokens.add(feed.toks.len() as u64);
        Ok(())
    }

    /// Ends a request; idempotent. Its waiter gets an error, its reads in flight come home as orphans.
    pub(crate) fn end(&self, req: RequestId) {
        let Ok(slot) = self.slot_of(req) else { return };
        if slot.tenure.end(req.generation()) {
            self.live.fetch_sub(1, Ordering::Relaxed);
            // Also when another thread runs the actor just now.
            (0..slot.layers.len()).for_each(|table| self.wake_layer(req.slot(), table));
            self.run(req.slot());
        }
    }

    /// Announces an event to a slot's actor and runs it if nobody else does.
    pub(crate) fn run(&self, slot: u32) {
        if let Some(runner) = self.slots[slot as usize].actor.notify() {
            self.run_claimed(slot, runner);
        }
    }

    /// Runs an actor whose claim a caller has passed on. For keygen workers.
    pub(crate) fn run_passed_on(&self, slot: u32, claim: Claim) {
        self.run_claimed(slot, self.slots[slot as usize].actor.take_up(claim));
    }

    fn run_claimed(&self, slot: u32, runner: Runner<'_, KeygenActor>) {
        /// Ends service if the run unwinds: the actor stays claimed, its waiters would wait for ever.
        struct FailOnUnwind<'c>(Option<&'c Core>);
        impl Drop for FailOnUnwind<'_> {
            fn drop(&mut self) {
                if let Some(core) = self.0 {
                    core.fail("a keygen actor panicked on the thread that fed it; reopen the scheduler".into());
                }
            }
        }
        let mut unwinds = FailOnUnwind(Some(self));
        let mut wakes = Wakes::default();
        let mut budget = self.limits.inline_tokens;
        let left = runner.run(|actor| self.look(slot, actor, &mut budget, &mut wakes));
        unwinds.0 = None;
        if let Some(claim) = left {
            self.workers.push(slot, claim.pass_on());
        }
        // Wakers run outside of all claims.
        for table in (0..self.geometry.layers.len()).filter(|t| wakes.0 >> t & 1 == 1) {
            self.wake_layer(slot, table);
        }
    }

    /// Sees to everything there is for the actor. False: the budget is used up and a worker shall go on.
    fn look(&self, index: u32, actor: &mut KeygenActor, budget: &mut u32, wakes: &mut Wakes) -> bool {
        let slot = &self.slots[index as usize];
        if actor.phase == Phase::Vacant {
            admit(slot, actor);
        }
        // Read after the admission was looked for: a request that ended before it was admitted is admitted and let go of all the same.
        if actor.phase == Phase::Serving && !slot.tenure.is_live() {
            if slot.tenure.is_pushing() {
                return true; // the pusher will notify
            }
            self.let_go(slot, actor, wakes);
        }
        match actor.phase {
            Phase::Vacant => true,
            Phase::Draining => {
                if slot.layers.iter().all(|l| l.gate.is_quiet()) && slot.tenure.recycle() {
                    slot.layers.iter().for_each(|l| l.gate.reset());
                    slot.taker.reset();
                    let _ = slot.bind.take();
                    actor.phase = Phase::Vacant;
                    self.free_slots.push(index).expect("as many places as slots");
                }
                true
            }
            Phase::Serving => {
                if slot.bind.take() {
                    self.bind(index, actor, wakes);
                }
                self.plan(index, actor, budget, wakes)
            }
        }
    }

    /// Lets go of everything that an ended request has.
    fn let_go(&self, slot: &Slot, actor: &mut KeygenActor, wakes: &mut Wakes) {
        slot.mailbox.clear();
        for at in actor.waiting.drain(..) {
            self.orphan_cell(at.cell, at.generation);
        }
        let tables = slot.layers.len();
        for (i, at) in actor.bound.drain(..).enumerate() {
            if self.orphan_cell(at.cell, at.generation) {
                let _ = slot.layers[i % tables].gate.complete(1); // all layers are woken below
            }
        }
        // Positions that were bound before they were planned.
        let unplanned = actor.bound_end.saturating_sub(actor.planned.max(actor.bound_start)) as u32;
        if unplanned > 0 {
            slot.layers.iter().for_each(|l| {
                let _ = l.gate.complete(unplanned);
            });
        }
        if actor.class == RequestClass::Interactive {
            self.interactive_live.fetch_sub(1, Ordering::Relaxed);
        }
        wakes.0 = !0;
        actor.phase = Phase::Draining;
    }

    /// Binds the next range to the slot's destinations: `[bound_end, end)`, at most `await_tokens_max` tokens.
    fn bind(&self, index: u32, actor: &mut KeygenActor, wakes: &mut Wakes) {
        let slot = &self.slots[index as usize];
        let end = actor.planned + slot.mailbox.len();
        let tokens = (end - actor.bound_end).min(u64::from(self.limits.await_tokens));
        actor.bound.clear();
        actor.bound_start = actor.bound_end;
        actor.bound_end += tokens;
        slot.range_start.store(actor.bound_start, Ordering::Relaxed); // ordered by the layer gates
        slot.range_tokens.store(tokens as u32, Ordering::Relaxed);
        for layer in &slot.layers {
            layer.failure.clear();
            layer.gate.arm(tokens as u32);
        }
        let tables = slot.layers.len();
        let planned = actor.planned.min(actor.bound_end) - actor.bound_start;
        for at in 0..planned as usize {
            for table in 0..tables {
                let cell = actor.waiting.pop_front().expect("every planned position has a cell per table");
                self.bind_at(index, table, at, cell, actor, wakes);
            }
        }
        for (table, layer) in slot.layers.iter().enumerate() {
            if layer.gate.complete(1) {
                wakes.0 |= 1 << table;
            }
        }
    }

    fn bind_at(&self, slot: u32, table: usize, at: usize, cell: CellRef, actor: &mut KeygenActor, wakes: &mut Wakes) {
        self.cells[cell.cell as usize].payload().destination.set(self.destination(slot, table, at));
        actor.bound.push(cell);
        self.bind_cell(cell.cell, wakes);
    }

    /// Plans tokens while there are tokens, credit and budget. False: the budget is used up and there are workers.
    fn plan(&self, index: u32, actor: &mut KeygenActor, budget: &mut u32, wakes: &mut Wakes) -> bool {
        let slot = &self.slots[index as usize];
        let tables = slot.layers.len();
        let mut draft = PlanDraft { groups: smallvec::SmallVec::new(), class: PlanClass::DecodeDemand, deadline_ns: 0 };
        let mut go_on = true;
        while !slot.mailbox.is_empty() {
            if *budget == 0 && self.limits.workers > 0 {
                go_on = false; // the worker that takes the claim up has a budget of its own
                break;
            }
            if !slot.credit.take(tables as u32) {
                break; // who gives credit back will notify
            }
            let entry = slot.mailbox.pop().expect("the runner is the only consumer");
            *budget = budget.saturating_sub(1);
            let pos = actor.planned;
            let class = match actor.class {
                RequestClass::Bulk => PlanClass::Bulk,
                RequestClass::Interactive if pos < slot.prefill_end.load(Ordering::Relaxed) => PlanClass::PrefillDemand,
                RequestClass::Interactive => PlanClass::DecodeDemand,
            };
            if draft.class != class {
                self.send(&mut draft);
                draft.class = class;
            }
            let window = self.keygen.push(&mut actor.history, entry.token, entry.live);
            actor.planned += 1;
            for table in 0..tables {
                if draft.groups.len() + self.geometry.orders > PLAN_GROUPS_MAX {
                    self.send(&mut draft);
                }
                let cell = self.open_token_cell(index, table, &window, &mut draft);
                if pos < actor.bound_end {
                    let at = (pos - actor.bound_start) as usize;
                    self.bind_at(index, table, at, cell, actor, wakes);
                } else {
                    actor.waiting.push_back(cell);
                }
            }
        }
        self.send(&mut draft);
        go_on
    }

    /// A cell for one position and table, with its groups wanted.
    fn open_token_cell(
        &self,
        slot: u32,
        table: usize,
        window: &engram_keygen::Window,
        draft: &mut PlanDraft,
    ) -> CellRef {
        let orders = if window.dead() { 0 } else { self.geometry.orders };
        let group_bytes = self.geometry.heads * self.geometry.row_bytes[table];
        let (cell, generation) = self.open_cell(slot, table, orders, group_bytes);
        self.counters.rows.add((orders * self.geometry.heads) as u64);
        let mixes = self.keygen.mixes(table, window);
        for (order, &mix) in mixes[..orders].iter().enumerate() {
            self.want_group(cell, (table, order, mix), draft);
        }
        CellRef { cell, generation }
    }
}

fn admit(slot: &Slot, actor: &mut KeygenActor) {
    let Some(admission) = slot.admission.take() else { return };
    actor.phase = Phase::Serving;
    actor.history = admission.history;
    actor.class = admission.class;
    actor.planned = admission.start_pos;
    actor.bound_start = admission.start_pos;
    actor.bound_end = admission.start_pos;
}
