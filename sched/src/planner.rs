//! Planner: the keygen actor of a request, which turns its tokens into cells, groups and plans, and binds cells to steps.
//!
//! An actor's state belongs to whoever runs it (the slot's run gate). What others leave for it: messages in the mailbox, wishes of steps, the
//! wish for the next range of `await_layer`, the end of the tenure, credit that came back. They all end in [`Core::run`].
//!
//! Positions of a request, from low to high:
//!
//! ```text
//! kept ids ....... cursor ....... planned ....... committed ....... end
//! (for rewriting)   | bound or     | have cells,    | recorded        | drafts
//!                   | passed       | not bound      |                 |
//! ```
//!
//! Invariants:
//! - `cursor <= planned <= end`, and `waiting` holds the cells of `cursor..planned`, one per table and position.
//! - What is wanted comes first: a step's position takes its waiting cell, or gets one, whatever was planned ahead; a position that was passed
//!   is planned once more from the kept ids. Planning ahead takes what credit is left, drafts last.
//! - Nobody waits for credit that waiting cells hold: where a wanted position lacks it, the furthest waiting cell is let go of.
//! - A cut takes back everything at and beyond its position: cells, and rows of steps that are not complete, whose entries fail.

mod rows;
mod wishes;

use crate::core::{CellRef, CellWanted, Core};
use crate::failure::Cause;
use crate::message::Message;
use crate::plan::{PLAN_GROUPS_MAX, PlanClass, PlanDraft};
use crate::protocol::run_gate::{Claim, Runner};
use crate::request::Slot;
use crate::scheduler::RequestClass;
use crate::step::{RowAt, Wakes};
use crate::sync::Ordering;
use engram_keygen::{History, Window};
use std::collections::VecDeque;

/// Generation of the words of a request's own step: its rows are touched by its actor alone, and armed anew for each range.
pub(crate) const OWN: u32 = 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Vacant,
    Serving,
    Preempted,
    Draining,
}

/// Positions that a step wants.
#[derive(Clone, Copy, Debug)]
struct Wish {
    step: u32,
    step_generation: u32,
    request_generation: u32,
    entry: u32,
    /// Row of the first position.
    row: u32,
    pos: u64,
    end: u64,
    /// Positions below have been served.
    at: u64,
    /// Mailbox words that come before it.
    after: u64,
}

/// State of a keygen actor; reached through the run gate alone.
#[derive(Debug)]
pub(crate) struct KeygenActor {
    phase: Phase,
    generation: u32,
    class: RequestClass,
    /// All ids: committed ones, then drafts.
    history: History,
    committed: u64,
    /// Committed positions below came as a prompt.
    prefill_end: u64,
    cursor: u64,
    planned: u64,
    /// Where the next range of `await_layer` begins: behind the last one, and behind what steps cover. It does not depend on how far
    /// serving has come.
    drained: u64,
    waiting: VecDeque<CellRef>,
    /// The engine waits for a range to be bound.
    asked: bool,
    /// The range of `await_layer`, as a wish of the request's own step.
    own: Wish,
    /// Wishes of step slots, until their step is over.
    wishes: Vec<Wish>,
    /// Wishes that mailbox words still come before.
    early: Vec<Wish>,
    /// When the last range was bound.
    bound_ns: u64,
    /// Plans under construction, one per table; empty between runs.
    drafts: Vec<PlanDraft>,
}

impl KeygenActor {
    pub(crate) fn new(history: History, cells: usize, tables: usize, steps: usize) -> Self {
        Self {
            phase: Phase::Vacant,
            generation: 0,
            class: RequestClass::default(),
            history,
            committed: 0,
            prefill_end: 0,
            cursor: 0,
            planned: 0,
            drained: 0,
            waiting: VecDeque::with_capacity(cells),
            asked: false,
            own: Wish {
                step: 0,
                step_generation: OWN,
                request_generation: 0,
                entry: 0,
                row: 0,
                pos: 0,
                end: 0,
                at: 0,
                after: 0,
            },
            wishes: Vec::with_capacity(steps),
            early: Vec::with_capacity(steps),
            bound_ns: 0,
            drafts: (0..tables).map(|_| PlanDraft::new(PlanClass::Bulk, 0)).collect(),
        }
    }

    fn end(&self) -> u64 {
        self.history.position()
    }

    /// The class of a position that a step has asked for.
    fn demand(&self, pos: u64, awaited: bool) -> PlanClass {
        match self.class {
            RequestClass::Bulk => PlanClass::Bulk,
            RequestClass::Interactive if pos < self.prefill_end => PlanClass::PrefillDemand,
            RequestClass::Interactive if awaited => PlanClass::Awaited,
            RequestClass::Interactive => PlanClass::DecodeDemand,
        }
    }

    /// The class of a position that nobody has asked for.
    fn prefetch(&self, pos: u64) -> PlanClass {
        match self.class {
            RequestClass::Bulk => PlanClass::Bulk,
            RequestClass::Interactive if pos >= self.committed => PlanClass::Speculative,
            RequestClass::Interactive if pos < self.prefill_end => PlanClass::PrefillPrefetch,
            RequestClass::Interactive => PlanClass::DecodePrefetch,
        }
    }
}

/// Why planning stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stopped {
    /// Nothing is left to plan, or who brings it will notify.
    Idle,
    /// Who gives credit back will notify.
    Credit,
    /// The budget is used up; a worker goes on.
    Budget,
}

impl Core {
    // ---- running ---------------------------------------------------------------------------------------------------------------

    /// Announces an event to a slot's actor and runs it if nobody else does.
    pub(crate) fn run(&self, slot: u32) {
        if let Some(runner) = self.slots[slot as usize].actor.notify() {
            self.run_and_wake(slot, runner);
        }
    }

    /// Runs an actor whose claim a caller has passed on. For keygen workers.
    pub(crate) fn run_passed_on(&self, slot: u32, claim: Claim) {
        self.run_and_wake(slot, self.slots[slot as usize].actor.take_up(claim));
    }

    fn run_and_wake(&self, slot: u32, runner: Runner<'_, KeygenActor>) {
        let mut wakes = Wakes::default();
        self.run_claimed(slot, runner, &mut wakes, |_, _, _, _| false);
        self.wake(wakes); // wakers run outside of all claims
    }

    /// Runs a claimed actor until all events are seen. `first` is asked in each look whether it has done what there was to do.
    pub(crate) fn run_claimed(
        &self,
        index: u32,
        runner: Runner<'_, KeygenActor>,
        wakes: &mut Wakes,
        mut first: impl FnMut(&Self, &Slot, &mut KeygenActor, &mut Wakes) -> bool,
    ) {
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
        let mut budget = self.limits.inline_tokens;
        let slot = &self.slots[index as usize];
        let left = runner.run(|actor| {
            if first(self, slot, actor, wakes) {
                return true;
            }
            if index == self.limits.request_slots {
                return self.look_at_rows(index, actor, wakes);
            }
            self.look(index, actor, &mut budget, wakes)
        });
        unwinds.0 = None;
        if let Some(claim) = left {
            self.workers.push(index, claim.pass_on());
        }
    }

    /// Sees to everything there is for the actor. False: the budget is used up and a worker shall go on.
    fn look(&self, index: u32, actor: &mut KeygenActor, budget: &mut u32, wakes: &mut Wakes) -> bool {
        let slot = &self.slots[index as usize];
        actor.asked |= slot.bind.take(); // before the mailbox: what was fed before the wish is seen by it
        self.drain_mailbox(slot, actor, index, wakes);
        // Read after the admission was looked for: a request that ended before it was admitted is admitted and let go of all the same.
        let serves = matches!(actor.phase, Phase::Serving | Phase::Preempted);
        if serves && !slot.tenure.is_live() {
            if slot.tenure.is_pushing() {
                return true; // the pusher will notify
            }
            self.let_go(index, slot, actor, wakes);
            actor.phase = Phase::Draining;
        }
        match actor.phase {
            Phase::Vacant => true,
            Phase::Preempted => {
                if std::mem::take(&mut actor.asked) {
                    slot.taker.withdraw(); // the range that was asked for will not come
                }
                true
            }
            Phase::Draining => {
                self.recycle(index, slot, actor, wakes);
                true
            }
            Phase::Serving => {
                if std::mem::take(&mut actor.asked) {
                    self.bind_own(index, slot, actor, wakes);
                }
                let stopped = self.plan(index, slot, actor, budget, wakes);
                self.send_drafts(actor);
                slot.planned.store(actor.planned, Ordering::Relaxed);
                stopped != Stopped::Budget
            }
        }
    }

    /// Gives an ended request's slot back, if nobody uses it any more.
    fn recycle(&self, index: u32, slot: &Slot, actor: &mut KeygenActor, wakes: &mut Wakes) {
        let layers = &self.steps.get(index).layers;
        if !layers.iter().all(|l| l.gate.is_quiet()) || !slot.tenure.recycle() {
            return;
        }
        // Who left a wish held the slot meanwhile: nothing comes after this.
        self.take_wishes(slot, actor);
        for wish in actor.early.drain(..) {
            self.fail_rows(&wish, wish.pos, wish.end, Cause::Cancelled, wakes);
        }
        layers.iter().for_each(|l| l.gate.reset());
        slot.taker.reset();
        let _ = slot.bind.take();
        actor.asked = false;
        let _ = slot.admission.take();
        actor.phase = Phase::Vacant;
        self.free_slots.push(index).expect("as many places as slots");
    }

    fn serve(&self, slot: &Slot, actor: &mut KeygenActor) {
        let Some(admitted) = slot.admission.take() else { return };
        actor.phase = Phase::Serving;
        actor.generation = slot.tenure.life().0;
        actor.class = admitted.class;
        actor.history.copy_from(&admitted.history);
        let start = actor.history.position();
        (actor.committed, actor.cursor, actor.planned, actor.drained) = (start, start, start, start);
        actor.prefill_end = 0;
        actor.own = Wish { pos: start, end: start, at: start, ..actor.own };
    }

    // ---- messages --------------------------------------------------------------------------------------------------------------

    /// Applies what lies in the mailbox, and takes in the wishes that come with it.
    pub(crate) fn drain_mailbox(&self, slot: &Slot, actor: &mut KeygenActor, index: u32, wakes: &mut Wakes) {
        if actor.phase == Phase::Vacant {
            self.serve(slot, actor);
        }
        let tail = slot.mailbox.tail(); // before the wishes: see `wish_list`
        self.take_wishes(slot, actor);
        loop {
            if !actor.early.is_empty() {
                self.accept_wishes(slot, actor, wakes);
            }
            let Some(word) = slot.mailbox.pop(tail) else { break };
            self.apply(index, actor, Message::from_word(word), wakes);
        }
    }

    /// Applies a message.
    pub(crate) fn apply(&self, index: u32, actor: &mut KeygenActor, message: Message, wakes: &mut Wakes) {
        self.apply_to(index, actor, message, wakes);
        if message.cuts() {
            self.slots[index as usize].cuts_applied.fetch_add(1, Ordering::Release);
        }
    }

    fn apply_to(&self, index: u32, actor: &mut KeygenActor, message: Message, wakes: &mut Wakes) {
        if message == Message::Resume && actor.phase == Phase::Preempted {
            self.serve(&self.slots[index as usize], actor);
            return;
        }
        if actor.phase != Phase::Serving {
            return; // it has ended
        }
        match message {
            Message::Token { id, prefill } => {
                debug_assert_eq!(actor.end(), actor.committed, "drafts are cut before");
                actor.history.append(id);
                actor.committed += 1;
                if prefill {
                    actor.prefill_end = actor.committed;
                }
                self.cover(actor);
            }
            Message::Draft(id) => {
                actor.history.append(id);
                self.cover(actor);
            }
            Message::Commit(n) => self.commit(actor, n.into()),
            Message::Cut(to) => self.cut(index, actor, to, wakes),
            Message::Preempt => {
                self.let_go(index, &self.slots[index as usize], actor, wakes);
                actor.phase = Phase::Preempted;
            }
            Message::Resume => {}
        }
    }

    /// Drafts become tokens: those that were read ahead are needed now, the others were shed.
    fn commit(&self, actor: &mut KeygenActor, n: u64) {
        let (from, to) = (actor.committed, actor.committed + n);
        actor.committed = to;
        let planned = to.min(actor.planned).saturating_sub(from);
        self.counters.drafts_useful.add(planned);
        self.counters.drafts_shed.add(n - planned);
        let (tables, now_ns) = (actor.drafts.len(), self.now_ns());
        for pos in from.max(actor.cursor)..to.min(actor.planned) {
            let first = (pos - actor.cursor) as usize * tables;
            for (table, at) in actor.waiting.range(first..first + tables).enumerate() {
                self.raise_cell(at.cell, actor.prefetch(pos), now_ns + self.lead_ns(table));
            }
        }
    }

    /// Takes back everything from position `to` on.
    fn cut(&self, index: u32, actor: &mut KeygenActor, to: u64, wakes: &mut Wakes) {
        let end = actor.end();
        let drafts = actor.committed.max(to)..end;
        let wasted = drafts.end.min(actor.planned).saturating_sub(drafts.start);
        self.counters.drafts_wasted.add(wasted);
        self.counters.drafts_shed.add(drafts.end.saturating_sub(drafts.start) - wasted);
        actor.history.rollback(end - to).expect("the front has checked it");
        actor.committed = actor.committed.min(to);
        actor.prefill_end = actor.prefill_end.min(to);
        self.shrink_waiting(actor, to);
        actor.cursor = actor.cursor.min(to);
        actor.drained = actor.drained.min(to);
        if to < actor.own.end {
            self.cut_own(index, actor, to, wakes);
            self.slots[index as usize].taker.restart();
        }
        // An entry that loses a token fails as a whole: what it still waits for is not waited for any more.
        actor.wishes.retain(|wish| {
            let kept = end <= wish.pos || wish.end.min(end) <= to;
            if !kept {
                // Rows before the cut that have a cell are delivered; those that wait for one are given up with the others.
                self.fail_rows(wish, wish.pos.max(to).min(wish.at), wish.end, Cause::Cancelled, wakes);
            }
            kept
        });
    }

    /// Notes what running steps cover, after positions or steps have been added.
    fn cover(&self, actor: &mut KeygenActor) {
        let end = actor.end();
        let covered = |wish: &Wish| if wish.pos < end && self.is_running(wish) { wish.end.min(end) } else { 0 };
        actor.drained = actor.wishes.iter().map(covered).fold(actor.drained, u64::max);
    }

    /// Whether a wish's step has not been released.
    fn is_running(&self, wish: &Wish) -> bool {
        let step = self.steps.get(wish.step);
        step.lease.is(wish.step_generation) && !step.released.load(Ordering::Relaxed)
    }

    /// Lets go of waiting cells from position `to` on.
    fn shrink_waiting(&self, actor: &mut KeygenActor, to: u64) {
        while actor.planned > to.max(actor.cursor) {
            for _ in 0..actor.drafts.len() {
                let at = actor.waiting.pop_back().expect("a cell for each planned position and table");
                self.orphan_cell(at);
            }
            actor.planned -= 1;
        }
        actor.planned = actor.planned.min(to);
    }

    /// Lets go of waiting cells below position `to`.
    fn pass_waiting(&self, actor: &mut KeygenActor, to: u64) {
        while actor.cursor < to.min(actor.planned) {
            for at in actor.waiting.drain(..actor.drafts.len()) {
                self.orphan_cell(at);
            }
            actor.cursor += 1;
        }
    }

    /// Lets go of everything that an ended or preempted request has.
    fn let_go(&self, index: u32, slot: &Slot, actor: &mut KeygenActor, wakes: &mut Wakes) {
        let tail = slot.mailbox.tail();
        while let Some(word) = slot.mailbox.pop(tail) {
            slot.cuts_applied.fetch_add(u64::from(Message::from_word(word).cuts()), Ordering::Release);
        }
        for at in actor.waiting.drain(..) {
            self.orphan_cell(at);
        }
        actor.planned = actor.cursor;
        self.cut_own(index, actor, actor.own.pos, wakes);
        slot.taker.withdraw();
        for wish in actor.wishes.drain(..).chain(actor.early.drain(..)) {
            self.fail_rows(&wish, wish.pos, wish.end, Cause::Cancelled, wakes);
        }
        wakes.0.extend((0..actor.drafts.len() as u32).map(|table| (index, table)));
    }

    // ---- planning --------------------------------------------------------------------------------------------------------------

    /// When a layer of a step that begins now is due, from now.
    pub(crate) fn lead_ns(&self, table: usize) -> u64 {
        self.steps.lead_ns(self.geometry.lead[table])
    }

    /// Serves what steps want, then plans ahead, while there are positions, credit and budget.
    fn plan(&self, index: u32, slot: &Slot, actor: &mut KeygenActor, budget: &mut u32, wakes: &mut Wakes) -> Stopped {
        if actor.own.at < actor.own.end {
            let mut own = actor.own;
            let stopped = self.serve_wish(index, slot, actor, &mut own, budget, wakes);
            actor.own.at = own.at;
            if stopped != Stopped::Idle {
                return stopped;
            }
        }
        for i in 0..actor.wishes.len() {
            let mut wish = actor.wishes[i];
            if wish.at < wish.end {
                let stopped = self.serve_wish(index, slot, actor, &mut wish, budget, wakes);
                actor.wishes[i].at = wish.at;
                if stopped != Stopped::Idle {
                    return stopped;
                }
            }
        }
        self.plan_ahead(index, slot, actor, budget)
    }

    /// Binds the positions of a wish, in order, as far as there are tokens.
    fn serve_wish(
        &self,
        index: u32,
        slot: &Slot,
        actor: &mut KeygenActor,
        wish: &mut Wish,
        budget: &mut u32,
        wakes: &mut Wakes,
    ) -> Stopped {
        let step = self.steps.get(wish.step);
        if wish.step != index && !step.lease.is(wish.step_generation) {
            wish.at = wish.end; // it is over
        }
        let tables = actor.drafts.len();
        while wish.at < wish.end && wish.at < actor.end() {
            let pos = wish.at;
            let at = |table| RowAt {
                step: wish.step,
                generation: wish.step_generation,
                table,
                row: wish.row + (pos - wish.pos) as u32,
                entry: wish.entry,
            };
            let class = |actor: &KeygenActor, table: usize| {
                let layer = &step.layers[table];
                let awaited = layer.awaited.load(Ordering::Relaxed);
                (actor.demand(pos, awaited), layer.deadline_ns.load(Ordering::Relaxed))
            };
            if (actor.cursor..actor.planned).contains(&pos) {
                self.pass_waiting(actor, pos);
                for table in 0..tables {
                    let cell = actor.waiting.pop_front().expect("a cell for each planned position and table");
                    let (class, deadline_ns) = class(actor, table);
                    self.cells[cell.cell as usize].payload().class.store(class as u32, Ordering::Relaxed);
                    // A prompt's rows stay where they were planned: raised, they would stand among those of decoding requests.
                    if class <= PlanClass::DecodeDemand {
                        self.raise_cell(cell.cell, class, deadline_ns);
                    }
                    self.bind_row(at(table), cell, wakes);
                }
                actor.cursor = pos + 1;
                wish.at = pos + 1;
                continue;
            }
            if *budget == 0 && self.limits.workers > 0 {
                return Stopped::Budget;
            }
            let fresh = pos >= actor.planned;
            if fresh {
                self.pass_waiting(actor, actor.planned);
            }
            if !slot.credit.take(tables as u32) {
                if actor.planned > actor.cursor {
                    // Planned ahead, and in the way of what is wanted now: it is planned again later.
                    let shed = actor.planned - 1;
                    self.shrink_waiting(actor, shed);
                    self.counters.prefetch_shed.add(1);
                    continue;
                }
                return Stopped::Credit;
            }
            *budget = budget.saturating_sub(1);
            let Some(window) = self.keygen.window_at(&actor.history, pos) else {
                let _ = slot.credit.give(tables as u32); // the wish, if any, is this run's own
                self.fail_rows(wish, pos, wish.end, Cause::HistoryUnavailable, wakes);
                wish.at = wish.end;
                break;
            };
            for table in 0..tables {
                let (class, deadline_ns) = class(actor, table);
                let cell = self.open_token_cell(index, table, &window, class, deadline_ns, &mut actor.drafts[table]);
                self.bind_row(at(table), cell, wakes);
            }
            if fresh {
                (actor.planned, actor.cursor) = (pos + 1, pos + 1);
            }
            wish.at = pos + 1;
        }
        Stopped::Idle
    }

    /// Plans positions that nobody has asked for yet.
    fn plan_ahead(&self, index: u32, slot: &Slot, actor: &mut KeygenActor, budget: &mut u32) -> Stopped {
        let tables = actor.drafts.len() as u32;
        // Drafts leave credit for the tokens that will come.
        let reserve = self.limits.ahead_tokens / 4 * tables;
        let now_ns = self.now_ns();
        while actor.planned < actor.end() {
            if *budget == 0 && self.limits.workers > 0 {
                return Stopped::Budget;
            }
            let pos = actor.planned;
            let reserve = if pos >= actor.committed { reserve } else { 0 };
            if !slot.credit.take(tables + reserve) {
                return Stopped::Credit;
            }
            if reserve > 0 {
                let _ = slot.credit.give(reserve); // the wish, if any, is this run's own
            }
            *budget = budget.saturating_sub(1);
            let window = self.keygen.window_at(&actor.history, pos).expect("ids from the cursor on are kept");
            for table in 0..tables as usize {
                let deadline_ns = now_ns + self.lead_ns(table);
                let class = actor.prefetch(pos);
                let cell = self.open_token_cell(index, table, &window, class, deadline_ns, &mut actor.drafts[table]);
                actor.waiting.push_back(cell);
            }
            actor.planned += 1;
        }
        Stopped::Idle
    }

    /// A cell for one position and table, with its groups wanted.
    fn open_token_cell(
        &self,
        slot: u32,
        table: usize,
        window: &Window,
        class: PlanClass,
        deadline_ns: u64,
        draft: &mut PlanDraft,
    ) -> CellRef {
        let orders = if window.dead() { 0 } else { self.geometry.orders.len() };
        self.make_room(draft, orders, class, deadline_ns);
        let wanted = CellWanted { groups: orders, deposits: orders, bytes: self.geometry.token_bytes[table], class };
        let cell = self.open_cell(slot, table, &wanted);
        let mixes = self.keygen.mixes(self.geometry.keys[table], window);
        for (order, owned) in self.geometry.orders[..orders].iter().enumerate() {
            self.counters.rows.add(owned.heads.len() as u64);
            self.want_group(cell.cell, (table, order, mixes[owned.order]), draft);
        }
        cell
    }

    /// Sends the plans under construction.
    fn send_drafts(&self, actor: &mut KeygenActor) {
        actor.drafts.iter_mut().for_each(|draft| self.send(draft));
    }

    /// Sends a draft that has no room for `groups` more of this class and deadline.
    fn make_room(&self, draft: &mut PlanDraft, groups: usize, class: PlanClass, deadline_ns: u64) {
        let same = draft.class == class && draft.deadline_ns == deadline_ns;
        if !same || draft.groups.len() + groups > PLAN_GROUPS_MAX {
            self.send(draft);
            (draft.class, draft.deadline_ns) = (class, deadline_ns);
        }
    }
}
