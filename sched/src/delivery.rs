//! Delivery: the bytes of rows on their way, read buffer to group to destination. The one place that moves them.
//!
//! Each function states whose right it uses. Groups: a depositor owns the range of its extent until its deposit, afterwards the bytes
//! are read only while references exist. Destinations: the copier of a claimed cell owns its row until the layer gate has counted it,
//! who counts the last row owns the whole layer until it opens the gate, afterwards the guards of the layer have it for reading until the
//! step is over. Freed buffers are poisoned in debug builds, so that a mix-up is seen.

use crate::core::Core;
use crate::sync::{AtomicUsize, Ordering};

/// What free buffers hold in debug builds.
const POISON: u8 = 0xDB;

/// Where a layer's rows go. Set by who sets the step up, and ordered by the words of the step's rows.
#[derive(Debug, Default)]
pub(crate) struct Destination(AtomicUsize);

/// An address inside a destination.
#[derive(Clone, Copy)]
pub(crate) struct Place(*mut u8);

impl Destination {
    /// Sets the address, which must stay valid until the layer is complete.
    pub(crate) fn set(&self, address: *mut u8) {
        self.0.store(address.expose_provenance(), Ordering::Relaxed);
    }

    /// `offset` bytes inside.
    pub(crate) fn at(&self, offset: usize) -> Place {
        Place(std::ptr::with_exposed_provenance_mut::<u8>(self.0.load(Ordering::Relaxed)).wrapping_add(offset))
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

    /// Writes zeros where a group has no row. For the group's owner, before it opens the group.
    pub(crate) fn zero_group_row(&self, group: u32, table: usize, head: usize) {
        let row_bytes = self.geometry.row_bytes[table];
        let at = group as usize * self.geometry.group_bytes + head * row_bytes;
        // SAFETY: the group is free, the caller owns it.
        unsafe { self.group_memory.fill(at, row_bytes, 0) }
    }

    /// Copies `bytes` bytes of a complete group to byte `at` behind `to`. For the copier of a claimed cell.
    pub(crate) fn copy_group(&self, group: u32, to: Place, at: usize, bytes: usize) {
        debug_assert!(bytes <= self.geometry.group_bytes);
        // SAFETY: the cell holds a reference to the group, which is complete: nobody writes it.
        let from = unsafe { self.group_memory.bytes(group as usize * self.geometry.group_bytes, bytes) };
        // SAFETY: the claimed cell owns its row of the destination, which holds all groups of a cell.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.0.wrapping_add(at), bytes) }
    }

    /// Writes zeros to byte `at` behind `to`. For the copier of a claimed cell, who sets a step up, or who finishes a layer.
    pub(crate) fn zero(&self, to: Place, at: usize, bytes: usize) {
        // SAFETY: as in `copy_group`; the others own the whole layer.
        unsafe { std::ptr::write_bytes(to.0.wrapping_add(at), 0, bytes) }
    }

    /// Marks a group's buffer as free. For its owner, after the last reference.
    pub(crate) fn poison_group(&self, group: u32) {
        if cfg!(debug_assertions) {
            let bytes = self.geometry.group_bytes;
            // SAFETY: no reference is left, the caller owns the group.
            unsafe { self.group_memory.fill(group as usize * bytes, bytes, POISON) }
        }
    }

    /// Address of byte `offset` of the destinations of ours, `bytes` of which are used.
    pub(crate) fn own_destination(&self, offset: usize, bytes: usize) -> *mut u8 {
        self.destination_memory.address(offset, bytes)
    }

    /// The first `bytes` bytes of a complete layer. For the one who holds the layer's guard.
    pub(crate) fn delivered(&self, from: Place, bytes: usize) -> &[u8] {
        // SAFETY: the layer is complete, and its destination is not written again before every guard of the step is dropped.
        unsafe { std::slice::from_raw_parts(from.0, bytes) }
    }
}
