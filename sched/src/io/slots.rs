//! Which slots are out, and under which tag: the bookkeeping that every backend shares.
//!
//! Why: the safe interface of [`Backend`](super::Backend) is sound only if a slot's bytes cannot be read while the kernel writes them,
//! and a completion may only ever be taken for the read that it belongs to. Both are checked here, in release builds too.
//!
//! Invariants: a slot is out from [`Slots::take`] to [`Slots::give_back`] of the same tag; no slot is taken twice.

use super::{Arena, ReadOp};

#[derive(Clone, Copy, Default)]
struct Slot {
    tag: u64,
    out: bool,
}

/// See the module.
pub(crate) struct Slots {
    slots: Box<[Slot]>,
    out: u32,
    unknown_tags: u64,
}

impl Slots {
    /// Room for `slots` slots, none of them out.
    pub(crate) fn new(slots: u32) -> Self {
        Self { slots: vec![Slot::default(); slots as usize].into(), out: 0, unknown_tags: 0 }
    }

    /// Marks the slot of `op` as out; in debug builds its bytes are poisoned.
    ///
    /// # Panics
    /// If the slot is out already, does not exist, is not the one the tag names, or is too small: each would be a bug of the caller
    /// that ends in memory written under a reference.
    #[inline]
    pub(crate) fn take(&mut self, op: &ReadOp, arena: &Arena) {
        let room = u64::from(op.slot_offset) + u64::from(op.len) <= u64::from(arena.slot_bytes());
        assert!(room, "read of {} bytes at {} is longer than its slot", op.len, op.slot_offset);
        assert_eq!(op.tag as u32, op.slot, "the tag's low half is the slot");
        let slot = &mut self.slots[op.slot as usize];
        assert!(!slot.out, "slot {} is out already", op.slot);
        *slot = Slot { tag: op.tag, out: true };
        self.out += 1;
        #[cfg(debug_assertions)]
        // SAFETY: the slot was not out, so that nothing else writes to it, and the caller, who holds the backend by `&mut`, has no
        // reference into it.
        unsafe {
            arena.slot_mut(op.slot, op.slot_offset, op.len).fill(super::arena::POISON);
        }
    }

    /// The read with this tag has ended. `false`, and counted, if no such read is out: its completion must be dropped.
    #[inline]
    pub(crate) fn give_back(&mut self, tag: u64) -> bool {
        match self.slots.get_mut(tag as u32 as usize) {
            Some(slot) if slot.out && slot.tag == tag => {
                slot.out = false;
                self.out -= 1;
                true
            }
            _ => {
                self.unknown_tags += 1;
                false
            }
        }
    }

    /// # Panics
    /// If the slot is out or does not exist: its bytes are not the caller's to read.
    #[inline]
    pub(crate) fn assert_home(&self, slot: u32) {
        assert!(!self.slots[slot as usize].out, "slot {slot} is out; its bytes belong to the backend");
    }

    /// How many slots are out.
    #[inline]
    pub(crate) fn out(&self) -> u32 {
        self.out
    }

    /// Completions that fitted no read; 0 unless the kernel or this code is wrong.
    pub(crate) fn unknown_tags(&self) -> u64 {
        self.unknown_tags
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engram_store::FileId;

    fn op(slot: u32, generation: u32) -> ReadOp {
        let tag = u64::from(generation) << 32 | u64::from(slot);
        ReadOp { tag, file: FileId(0), offset: 0, len: 4096, slot, slot_offset: 0 }
    }

    #[test]
    fn a_completion_of_an_earlier_generation_is_dropped_and_counted() {
        let arena = Arena::reserve(2, 4096).unwrap();
        let mut slots = Slots::new(2);
        slots.take(&op(1, 7), &arena);
        assert!(!slots.give_back(op(1, 6).tag));
        assert!(!slots.give_back(op(0, 7).tag));
        assert!(!slots.give_back(op(9, 7).tag));
        assert!(slots.give_back(op(1, 7).tag));
        assert!(!slots.give_back(op(1, 7).tag), "exactly once");
        assert_eq!((slots.out(), slots.unknown_tags()), (0, 4));
    }

    #[test]
    #[should_panic(expected = "out already")]
    fn a_slot_is_not_taken_twice() {
        let arena = Arena::reserve(2, 4096).unwrap();
        let mut slots = Slots::new(2);
        slots.take(&op(1, 7), &arena);
        slots.take(&op(1, 8), &arena);
    }

    #[test]
    #[should_panic(expected = "belong to the backend")]
    fn a_slot_that_is_out_is_not_read() {
        let arena = Arena::reserve(2, 4096).unwrap();
        let mut slots = Slots::new(2);
        slots.take(&op(0, 1), &arena);
        slots.assert_home(0);
    }
}
