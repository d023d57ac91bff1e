//! The plans of an I/O actor: from its queue into a list for each band, from there into wants, and back to the slab.
//!
//! Invariant: a plan that came through its band is in exactly one list until all of the actor's share has been started. One that was
//! raised before it came is in none, and may have wants already; it is listed when it comes, as it will.

use super::{IoActor, NIL, NO_NOTE, PlanNote, UNLISTED, Want};
use crate::batch::{Rank, Wanted};
use crate::plan::{Band, URGENT_BAND};
use crate::protocol::plan_slab::Urgency;
use crate::sync::Arc;
use engram_store::Extent;

impl IoActor {
    /// Takes plans out of the bands. Raised ones are taken out first: as a plan is sent before it can be raised, or at least by then,
    /// whatever was raised so far is in its list before it is looked at. All are taken out, also where there is no room: a plan that has
    /// been started would be kept by its entry, and no credit bounds those.
    pub(super) fn take_plans(&mut self) {
        let core = Arc::clone(&self.core);
        let queue = &core.doors[self.index].queue;
        while let Some(plan) = queue.pop(URGENT_BAND) {
            self.raised.push(plan); // each plan is in the band, or here, at most once
        }
        for band in Band::ALL {
            while let Some(plan) = queue.pop(band as usize) {
                self.list(plan, band as u8);
                self.release_if_started(plan); // it may have been raised, and started, on the way here
            }
        }
    }

    /// Whether a raised plan is new, or one that waits would find room.
    pub(super) fn can_take_in_raised(&self) -> bool {
        let room = self.raised_waiting > 0 && self.room[Band::Decode as usize] >= self.plan_wants_max;
        self.raised.len() > self.raised_waiting || room
    }

    /// Whether a plan that waits would find room.
    pub(super) fn can_take_in(&self) -> bool {
        Band::ALL.into_iter().any(|band| self.next_plan(band).is_some())
    }

    /// The plan of a band that can be taken in.
    pub(super) fn next_plan(&self, band: Band) -> Option<u32> {
        let first = self.lists[band as usize].first;
        (first != NIL && self.room[band as usize] >= self.plan_wants_max).then_some(first)
    }

    pub(super) fn list(&mut self, plan: u32, list: u8) {
        let last = std::mem::replace(&mut self.lists[list as usize].last, plan);
        match last {
            NIL => self.lists[list as usize].first = plan,
            last => self.notes[last as usize].next = plan,
        }
        let note = &mut self.notes[plan as usize];
        debug_assert_eq!(note.list, UNLISTED);
        (note.list, note.previous, note.next) = (list, last, NIL);
    }

    pub(super) fn unlist(&mut self, plan: u32) {
        let PlanNote { list, previous, next, .. } = self.notes[plan as usize];
        match previous {
            NIL => self.lists[list as usize].first = next,
            previous => self.notes[previous as usize].next = next,
        }
        match next {
            NIL => self.lists[list as usize].last = previous,
            next => self.notes[next as usize].previous = previous,
        }
        self.notes[plan as usize].list = UNLISTED;
    }

    /// Gives a plan back if nothing of it is left to be started. One that has not come through its own band yet stays, as it will.
    pub(super) fn release_if_started(&mut self, plan: u32) {
        let note = self.notes[plan as usize];
        if note.list == UNLISTED || note.wants != NIL || note.taken != self.core.plans.share(plan, self.index) {
            return;
        }
        self.unlist(plan);
        self.notes[plan as usize] = NO_NOTE;
        self.core.plans.release(plan, self.index);
    }

    /// Sees to raised plans that bring nothing new, and, if `new`, to others as far as there is room for what they bring.
    pub(super) fn take_in_all_raised(&mut self, new: bool) {
        let mut raised = std::mem::take(&mut self.raised);
        raised.retain(|&plan| {
            let share = self.core.plans.share(plan, self.index);
            let brings_nothing = share & !self.notes[plan as usize].taken == 0;
            let fits = brings_nothing || new && self.room[Band::Decode as usize] >= self.plan_wants_max;
            if fits {
                self.take_in_raised(plan);
            }
            !fits
        });
        self.raised_waiting = raised.len();
        self.raised = raised;
    }

    /// Takes in, or gives a better rank to, the groups of a plan that are wanted sooner, and no others.
    pub(super) fn take_in_raised(&mut self, plan: u32) {
        let (groups, urgency) = self.core.plans.take_raised(plan, self.index);
        let mut at = self.notes[plan as usize].wants;
        while at != NIL {
            let want = &mut self.wants[at as usize];
            let rank = Rank::new(urgency.class(), urgency.deadline_ns(), want.table);
            if groups >> want.bit & 1 == 1 && rank < want.rank {
                want.rank = rank;
                self.backlog.rerank(at, rank);
            }
            at = self.wants[at as usize].plan_next;
        }
        let new = groups & !self.notes[plan as usize].taken;
        self.take_in(plan, new, urgency, Band::Decode);
        self.core.plans.done(plan);
    }

    /// Turns groups of a plan into wants, at the expense of a band's room, which the caller has looked at.
    pub(super) fn take_in(&mut self, plan: u32, groups: u64, urgency: Urgency, account: Band) {
        let Self { core, index, wants, backlog, notes, .. } = self;
        let stamp_ns = core.plans.stamp_ns(plan);
        let note = &mut notes[plan as usize];
        note.taken |= groups;
        for bit in (0..u64::BITS).filter(|bit| groups >> bit & 1 == 1) {
            let group = core.plans.group(plan, bit);
            let (table, rows) = core.group_rows(group);
            let rank = Rank::new(urgency.class(), urgency.deadline_ns(), table as u16);
            for (head, row) in rows {
                let mut row_offset = 0;
                for part in 0..core.tables[table].parts().len() {
                    let Extent { file, offset, len } = core.tables[table].extent(part, row);
                    if core.placement.actor_of(file) == *index {
                        let want = self.free_want;
                        self.free_want = wants[want as usize].next;
                        self.room[account as usize] -= 1;
                        wants[want as usize] = Want {
                            group,
                            table: table as u16,
                            head: head as u16,
                            row_offset,
                            row,
                            rank,
                            offset,
                            len,
                            alone: false,
                            account,
                            next: NIL,
                            bit: bit as u8,
                            plan,
                            plan_previous: NIL,
                            plan_next: note.wants,
                        };
                        if let Some(after) = wants.get_mut(note.wants as usize) {
                            after.plan_previous = want;
                        }
                        note.wants = want;
                        backlog.push(Wanted { rank, stamp_ns, file, offset, len, want, alone: false });
                    }
                    row_offset += len;
                }
            }
        }
    }

    /// A want has left the backlog for the first time: it is no longer its plan's.
    pub(super) fn leave_plan(&mut self, want: u32) {
        let Want { plan, plan_previous, plan_next, .. } = self.wants[want as usize];
        if plan == NIL {
            return; // of a larger read that failed
        }
        self.wants[want as usize].plan = NIL;
        match plan_previous {
            NIL => self.notes[plan as usize].wants = plan_next,
            previous => self.wants[previous as usize].plan_next = plan_next,
        }
        if plan_next != NIL {
            self.wants[plan_next as usize].plan_previous = plan_previous;
        }
        self.release_if_started(plan);
    }
}
