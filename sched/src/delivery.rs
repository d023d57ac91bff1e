//! Delivery: the bytes of rows on their way, read buffer to group to destination. The one place that moves them.
//!
//! Each function states whose right it uses. Groups: a depositor owns the range of its extent until its deposit, afterwards the bytes
//! are read only while references exist. Destinations: the copier of a claimed cell owns that cell's range until it completes the layer
//! gate, afterwards the guard of the layer has it for reading until the range is given up. Freed buffers are poisoned in debug builds,
//! so that a mix-up is seen.

use crate::core::{CellBody, Core};
use crate::sync::{AtomicUsize, Ordering};

/// What free buffers hold in debug builds.
const POISON: u8 = 0xDB;

/// Where a bound cell's rows go: an address whose range the cell owns until its layer gate has counted it. Ordered by the cell's word.
#[derive(Debug, Default)]
pub(crate) struct Destination(AtomicUsize);

impl Destination {
    /// Sets the address, which must stay valid until the cell has been delivered or orphaned.
    pub(crate) fn set(&self, address: *mut u8) {
        self.0.store(address.expose_provenance(), Ordering::Relaxed);
    }

    fn at(&self, offset: usize) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut::<u8>(self.0.load(Ordering::Relaxed)).wrapping_add(offset)
    }
}

impl Core {
    /// Puts the bytes of an extent into its group: row `head`, from byte `offset` of the row on. For the I/O actor that read it, before
    /// it deposits.
    pub(crate) fn fill_group(&self, group: u32, table: usize, head: usize, offset: usize, bytes: &[u8]) {
        let row_bytes = self.geometry.row_bytes[table];
        assert!(head < self.geometry.heads && offset + bytes.len() <= row_bytes);
        let at = group as usize * self.geometry.group_bytes + head * row_bytes + offset;
        // SAFETY: each extent of a group is deposited once, by one actor, which owns its range until then.
        unsafe { self.group_memory.write(at, bytes) }
    }

    /// Copies `bytes` bytes of a complete group to byte `at` of the cell's destination. For the copier of a claimed cell.
    pub(crate) fn copy_group(&self, group: u32, cell: &CellBody, at: usize, bytes: usize) {
        debug_assert!(bytes <= self.geometry.group_bytes);
        // SAFETY: the cell holds a reference to the group, which is complete: nobody writes it.
        let from = unsafe { self.group_memory.bytes(group as usize * self.geometry.group_bytes, bytes) };
        // SAFETY: the claimed cell owns its part of the destination, which its binder sized for all groups of the cell.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), cell.destination.at(at), bytes) }
    }

    /// Writes zeros to the cell's destination. For the copier of a claimed cell.
    pub(crate) fn zero_destination(&self, cell: &CellBody, at: usize, bytes: usize) {
        // SAFETY: as in `copy_group`.
        unsafe { std::ptr::write_bytes(cell.destination.at(at), 0, bytes) }
    }

    /// Marks a group's buffer as free. For its owner, after the last reference.
    pub(crate) fn poison_group(&self, group: u32) {
        if cfg!(debug_assertions) {
            let bytes = self.geometry.group_bytes;
            // SAFETY: no reference is left, the caller owns the group.
            unsafe { self.group_memory.fill(group as usize * bytes, bytes, POISON) }
        }
    }

    /// Address of token `index` of a slot's range in layer `table`.
    pub(crate) fn destination(&self, slot: u32, table: usize, index: usize) -> *mut u8 {
        let (offset, bytes) = self.destination_range(slot, table, index, 1);
        self.destination_memory.address(offset, bytes)
    }

    fn destination_range(&self, slot: u32, table: usize, index: usize, tokens: usize) -> (usize, usize) {
        let tokens_max = self.limits.await_tokens as usize;
        assert!(slot < self.limits.request_slots && index + tokens <= tokens_max);
        let before: usize = self.geometry.token_bytes[..table].iter().map(|bytes| bytes * tokens_max).sum();
        let slot_bytes = self.limits.slot_destination_bytes(&self.geometry) as usize;
        let token_bytes = self.geometry.token_bytes[table];
        (slot as usize * slot_bytes + before + index * token_bytes, tokens * token_bytes)
    }

    /// The rows of a complete layer. For the one who holds the layer's guard.
    pub(crate) fn delivered(&self, slot: u32, table: usize, tokens: usize) -> &[u8] {
        let (offset, bytes) = self.destination_range(slot, table, 0, tokens);
        // SAFETY: the layer is complete, and its destination is not bound again before every guard of the range is dropped.
        unsafe { self.destination_memory.bytes(offset, bytes) }
    }
}
