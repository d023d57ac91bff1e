//! The arena: the read buffers of one I/O actor, one anonymous mapping of `slots` x `slot_bytes`.
//!
//! Why a mapping of its own: the kernel writes into it while no Rust reference to it exists, it must be page-aligned for `O_DIRECT`,
//! it can be pinned by io_uring as a whole, and a child of `fork(2)` must not share it (`MADV_DONTFORK`).
//!
//! Invariants:
//! - The base is page-aligned and never moves; a slot begins at a multiple of 4096 from it.
//! - Nobody holds a Rust reference into a slot whose read is out ([`Slots`](super::slots::Slots) knows which those are).
//! - Whoever hands a pointer into the arena to the kernel or to a thread keeps an `Arc` of it until that use has ended.

use crate::StartError;
use memmap2::MmapMut;

/// What a slot is filled with in debug builds before a read, so that a short read never shows stale bytes as valid.
pub(crate) const POISON: u8 = 0xDB;

/// Slots begin at multiples of this.
pub(crate) const PAGE_BYTES: u32 = 4096;

/// See the module.
pub(crate) struct Arena {
    /// Keeps the pages; only `base` is used to reach them.
    _map: MmapMut,
    base: *mut u8,
    slots: u32,
    slot_bytes: u32,
}

// SAFETY: the mapping is plain memory that belongs to no thread; access to it goes through unsafe methods whose callers rule out races.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Reserves the memory; no page is touched yet.
    pub(crate) fn reserve(slots: u32, slot_bytes: u32) -> Result<Self, StartError> {
        let bytes = u64::from(slots) * u64::from(slot_bytes);
        let memory = |source| StartError::Memory { bytes, source };
        if slots == 0 || slots == u32::MAX || slot_bytes == 0 || !slot_bytes.is_multiple_of(PAGE_BYTES) {
            return Err(memory(std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                format!(
                    "{slots} slots of {slot_bytes} bytes: at least one slot is needed, and slots are multiples of 4096"
                ),
            )));
        }
        let len = usize::try_from(bytes).map_err(|_| memory(std::io::ErrorKind::OutOfMemory.into()))?;
        let mut map = MmapMut::map_anon(len).map_err(memory)?;
        #[cfg(target_os = "linux")]
        map.advise(memmap2::Advice::DontFork).map_err(memory)?;
        let base = map.as_mut_ptr();
        Ok(Self { _map: map, base, slots, slot_bytes })
    }

    /// Writes one byte to every page, so that the calling thread's node gives the memory. Nothing may be out yet.
    pub(crate) fn touch(&mut self) {
        for page in (0..self.bytes()).step_by(PAGE_BYTES as usize) {
            // SAFETY: `page` is below the length of the mapping, and `&mut self` says that nothing else uses it.
            unsafe { self.base.add(page).write_volatile(0) };
        }
    }

    /// Number of slots.
    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    /// Bytes of a slot.
    pub(crate) fn slot_bytes(&self) -> u32 {
        self.slot_bytes
    }

    /// Bytes of the whole arena.
    pub(crate) fn bytes(&self) -> usize {
        self.slots as usize * self.slot_bytes as usize
    }

    /// The first byte of the arena.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    /// Where byte `offset` of `slot` is.
    ///
    /// # Panics
    /// If that is outside the slot.
    pub(crate) fn at(&self, slot: u32, offset: u32) -> *mut u8 {
        assert!(slot < self.slots && offset <= self.slot_bytes, "slot {slot}+{offset} is outside the arena");
        // SAFETY: checked above; the sum is at most the length of the mapping.
        unsafe { self.base.add(slot as usize * self.slot_bytes as usize + offset as usize) }
    }

    /// The bytes of a slot.
    ///
    /// # Safety
    /// Nothing may write to the slot while the reference lives.
    pub(crate) unsafe fn slot(&self, slot: u32) -> &[u8] {
        // SAFETY: `at` checks the slot, the mapping is initialised (zeros), and the caller rules out writers.
        unsafe { std::slice::from_raw_parts(self.at(slot, 0), self.slot_bytes as usize) }
    }

    /// `len` bytes of a slot from `offset`, for writing.
    ///
    /// # Safety
    /// Nothing else may use these bytes while the reference lives.
    #[allow(clippy::mut_from_ref, reason = "the arena is a set of cells; the caller holds this one alone")]
    pub(crate) unsafe fn slot_mut(&self, slot: u32, offset: u32, len: u32) -> &mut [u8] {
        assert!(u64::from(offset) + u64::from(len) <= u64::from(self.slot_bytes), "read is longer than its slot");
        // SAFETY: checked; the caller rules out other users.
        unsafe { std::slice::from_raw_parts_mut(self.at(slot, offset), len as usize) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_page_aligned_and_disjoint() {
        let mut arena = Arena::reserve(3, 8192).unwrap();
        arena.touch();
        for slot in 0..3 {
            assert_eq!(arena.at(slot, 0) as usize % PAGE_BYTES as usize, 0);
            // SAFETY: nothing else uses the arena.
            unsafe { arena.slot_mut(slot, 0, 8192).fill(slot as u8 + 1) };
        }
        for slot in 0..3 {
            // SAFETY: as above.
            assert!(unsafe { arena.slot(slot) }.iter().all(|&b| b == slot as u8 + 1));
        }
    }

    #[test]
    fn impossible_sizes_are_refused() {
        for (slots, slot_bytes) in [(0, 4096), (4, 0), (4, 4095), (u32::MAX, 4096)] {
            assert!(matches!(Arena::reserve(slots, slot_bytes), Err(StartError::Memory { .. })));
        }
    }
}
