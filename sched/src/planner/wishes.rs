//! What steps want of a request: its own step (`await_layer`), and the wishes of step slots.

use super::{KeygenActor, OWN, Phase, Wish};
use crate::core::Core;
use crate::failure::Cause;
use crate::request::Slot;
use crate::step::Wakes;
use crate::sync::Ordering;

impl Core {
    /// Binds the next range to the request's own step: what is committed beyond the cursor, at most `await_tokens_max` tokens.
    pub(super) fn bind_own(&self, index: u32, slot: &Slot, actor: &mut KeygenActor, wakes: &mut Wakes) {
        let start = actor.drained.min(actor.committed);
        let tokens = (actor.committed - start).min(u64::from(self.limits.await_tokens));
        actor.own = Wish { step: index, pos: start, end: start + tokens, at: start, ..actor.own };
        actor.drained = actor.drained.max(actor.own.end);
        slot.taker.bound();
        slot.set_range(start, tokens as u32); // ordered by the layer gates
        let now_ns = self.now_ns();
        self.steps.learn(now_ns - std::mem::replace(&mut actor.bound_ns, now_ns));
        for (table, layer) in self.steps.get(index).layers.iter().enumerate() {
            let token_bytes = self.geometry.token_bytes[table];
            let offset = self.limits.destination_offset(&self.geometry, index, table);
            let base = self.own_destination(offset, self.limits.await_tokens as usize * token_bytes);
            layer.place(base, None);
            layer.begin(OWN, token_bytes, tokens as u32, 1, now_ns + self.lead_ns(table));
            self.count_rows(index, table, 1, wakes);
        }
    }

    /// Shortens the request's own range to end at `to`; its rows beyond are not delivered any more.
    pub(super) fn cut_own(&self, index: u32, actor: &mut KeygenActor, to: u64, wakes: &mut Wakes) {
        let own = actor.own;
        let from = to.max(own.pos);
        for table in 0..actor.drafts.len() {
            if from < own.end && self.steps.layer(index, table).gate.hold() {
                let rows = (from - own.pos) as u32..(own.end - own.pos) as u32;
                let taken: u32 = rows.map(|row| self.take_row(index, OWN, table, row).count).sum();
                self.count_rows(index, table, taken + 1, wakes);
            }
        }
        let slot = &self.slots[index as usize];
        let (pos, end) = (own.pos.min(to), own.end.min(to));
        actor.own = Wish { pos, end, at: own.at.clamp(pos, end), ..own };
        slot.set_range(pos, (end - pos) as u32);
    }

    /// Takes the wishes that were left for a slot, oldest first.
    pub(super) fn take_wishes(&self, slot: &Slot, actor: &mut KeygenActor) {
        let new = actor.early.len();
        for node in slot.wishes.take(&self.steps.links) {
            let (number, entry) = (node / self.steps.entries_max, node % self.steps.entries_max);
            let step = self.steps.first_slot + number;
            let left = &self.steps.get(step).entries[entry as usize];
            let lease = &self.steps.get(step).lease;
            let pos = left.pos.load(Ordering::Relaxed);
            actor.early.push(Wish {
                step,
                step_generation: left.step_generation.load(Ordering::Relaxed),
                request_generation: left.request_generation.load(Ordering::Relaxed),
                entry,
                row: left.row.load(Ordering::Relaxed),
                pos,
                end: pos + u64::from(left.tokens.load(Ordering::Relaxed)),
                at: pos,
                after: left.after.load(Ordering::Relaxed),
            });
            lease.release(); // the node may serve another step now
        }
        actor.early[new..].reverse();
    }

    /// Takes in the wishes whose turn it is.
    pub(super) fn accept_wishes(&self, slot: &Slot, actor: &mut KeygenActor, wakes: &mut Wakes) {
        actor.wishes.retain(|wish| self.steps.get(wish.step).lease.is(wish.step_generation));
        let head = slot.mailbox.head();
        for wish in actor.early.extract_if(.., |wish| wish.after <= head) {
            if actor.phase == Phase::Serving && wish.request_generation == actor.generation {
                actor.wishes.push(wish);
            } else {
                self.fail_rows(&wish, wish.pos, wish.end, Cause::Cancelled, wakes);
            }
        }
        self.cover(actor);
    }

    /// The rows of positions `from..to` of a wish will not be what they should: its entry fails, in each layer that is not complete.
    pub(super) fn fail_rows(&self, wish: &Wish, from: u64, to: u64, cause: Cause, wakes: &mut Wakes) {
        for table in 0..self.geometry.layers.len() {
            let layer = self.steps.layer(wish.step, table);
            if !layer.gate.hold() {
                continue;
            }
            let mut count = 1;
            // While the gate is held the step cannot end, so it is this one or another until the end of the block.
            if self.steps.get(wish.step).lease.is(wish.step_generation) && from < to {
                layer.fail(wish.entry, |f| f.set_cause(cause, from));
                for pos in from..to {
                    let row = wish.row + (pos - wish.pos) as u32;
                    count += self.take_row(wish.step, wish.step_generation, table, row).count;
                }
            }
            self.count_rows(wish.step, table, count, wakes);
        }
    }
}
