//! Row reads (`submit_rows`): planned by an actor of their own, whose rows come by id.

use super::{KeygenActor, Wish};
use crate::core::{CellWanted, Core, NO_ROW};
use crate::plan::PlanClass;
use crate::step::{RowAt, Wakes};
use crate::sync::Ordering;
use engram_keygen::RowId;

/// Tokens of a row read that is taken for a decode step: beyond that there must be prompts among them, which give way to decoding.
const DECODE_ROWS_MAX: u64 = 256;

impl Core {
    /// The actor of row reads: plans the rows of `submit_rows`, step by step, as credit comes back.
    pub(super) fn look_at_rows(&self, index: u32, actor: &mut KeygenActor, wakes: &mut Wakes) -> bool {
        let slot = &self.slots[index as usize];
        self.take_wishes(slot, actor);
        actor.wishes.append(&mut actor.early);
        actor.wishes.retain(|wish| wish.at < wish.end && self.steps.get(wish.step).lease.is(wish.step_generation));
        'credit: for i in 0..actor.wishes.len() {
            while actor.wishes[i].at < actor.wishes[i].end {
                if !slot.credit.take(1) {
                    break 'credit;
                }
                let wish = actor.wishes[i];
                let lease = &self.steps.get(wish.step).lease;
                // The ids are the step's own as long as it is held; the next one's may be of another table, and out of this one's range.
                if !lease.hold(wish.step_generation) {
                    let _ = slot.credit.give(1); // the wish, if any, is this run's own
                    actor.wishes[i].at = wish.end;
                    break;
                }
                actor.wishes[i].at += 1;
                self.plan_row_token(index, actor, &wish, wakes);
                lease.release();
            }
        }
        self.send_drafts(actor);
        true
    }

    /// One token of a row read: a group for each order, of rows by id.
    fn plan_row_token(&self, index: u32, actor: &mut KeygenActor, wish: &Wish, wakes: &mut Wakes) {
        let step = self.steps.get(wish.step);
        let table = wish.after as usize; // see `leave_wish`: a row read comes after no message
        let token = (wish.at - wish.pos) as usize;
        let columns = self.geometry.columns;
        let mut ids = [0 as RowId; engram_keygen::ORDERS_MAX * engram_keygen::HEADS_MAX];
        let ids = &mut ids[..columns];
        for (id, word) in ids.iter_mut().zip(&step.row_ids[token * columns..]) {
            *id = word.load(Ordering::Relaxed);
        }
        let orders = self.geometry.orders.len();
        let draft = &mut actor.drafts[table];
        // A step of decoding requests, or one with prompts in it.
        let decodes = wish.end - wish.pos <= DECODE_ROWS_MAX;
        let class = if decodes { PlanClass::DecodeDemand } else { PlanClass::PrefillDemand };
        let deadline_ns = step.layers[table].deadline_ns.load(Ordering::Relaxed);
        self.make_room(draft, orders, class, deadline_ns);
        let mut rest: &[RowId] = ids;
        let mut groups = [&ids[..0]; engram_keygen::ORDERS_MAX];
        for (group, owned) in groups.iter_mut().zip(&self.geometry.orders) {
            (*group, rest) = rest.split_at(owned.heads.len());
        }
        let real = |rows: &&[RowId]| rows.iter().any(|&row| row != NO_ROW);
        let wanted = CellWanted {
            groups: orders,
            deposits: groups[..orders].iter().filter(|rows| real(rows)).count(),
            bytes: self.geometry.token_bytes[table],
            class,
        };
        let cell = self.open_cell(index, table, &wanted);
        for (order, rows) in groups[..orders].iter().enumerate() {
            self.want_rows(cell.cell, table, order, rows, draft);
        }
        let at = RowAt {
            step: wish.step,
            generation: wish.step_generation,
            table,
            row: wish.row + token as u32,
            entry: wish.entry + token as u32,
        };
        self.bind_row(at, cell, wakes);
    }
}
