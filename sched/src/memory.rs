//! Row memory: one region of bytes, reserved at start and committed by the kernel on first use.
//!
//! Threads read and write disjoint ranges of it at the same time; who owns which range when is decided by the protocols (a group's
//! buffer by its deposits, a destination by its cell and layer gate). This module only turns those rights into pointers: its unsafe
//! functions are called from [`crate::delivery`] alone.

use memmap2::MmapMut;

/// See the module text.
#[derive(Debug)]
pub(crate) struct RowMemory {
    base: *mut u8,
    len: usize,
    _map: Option<MmapMut>,
}

// SAFETY: the memory is plain bytes; every access goes through unsafe functions whose callers own the range they name.
unsafe impl Send for RowMemory {}
// SAFETY: as above.
unsafe impl Sync for RowMemory {}

impl RowMemory {
    /// Reserves `len` bytes of zeros, aligned to pages.
    ///
    /// # Errors
    /// The OS error if the address space or the overcommit limit does not allow it.
    pub(crate) fn reserve(len: usize) -> std::io::Result<Self> {
        if len == 0 {
            return Ok(Self { base: std::ptr::NonNull::dangling().as_ptr(), len, _map: None });
        }
        let mut map = MmapMut::map_anon(len)?;
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::DontFork); // best effort: a child of fork(2) shall not share what actors write
        Ok(Self { base: map.as_mut_ptr(), len, _map: Some(map) })
    }

    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "range inside the region");
        // SAFETY: inside the region by the assertion.
        unsafe { self.base.add(offset) }
    }

    /// Writes `bytes` at `offset`.
    ///
    /// # Safety
    /// The caller owns the range: nobody else reads or writes it during the call.
    pub(crate) unsafe fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: in range; exclusive by the caller's promise; `bytes` is not in the region, which is never lent out mutably.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    /// Fills a range with one byte.
    ///
    /// # Safety
    /// As [`RowMemory::write`].
    pub(crate) unsafe fn fill(&self, offset: usize, len: usize, byte: u8) {
        // SAFETY: in range; exclusive by the caller's promise.
        unsafe { std::ptr::write_bytes(self.at(offset, len), byte, len) }
    }

    /// The bytes of a range.
    ///
    /// # Safety
    /// Nobody writes the range while the slice lives, and the last write happened before.
    pub(crate) unsafe fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        // SAFETY: in range; not written during the lifetime by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.at(offset, len), len) }
    }

    /// The address of a range, for a destination that the caller owns until its cells are delivered.
    pub(crate) fn address(&self, offset: usize, len: usize) -> *mut u8 {
        self.at(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn begins_as_zeros_and_keeps_what_is_written() {
        let memory = RowMemory::reserve(10_000).unwrap();
        // SAFETY: single thread.
        unsafe {
            assert!(memory.bytes(0, 10_000).iter().all(|&b| b == 0));
            memory.write(9_990, &[7; 10]);
            assert_eq!(memory.bytes(9_990, 10), &[7; 10]);
            memory.fill(0, 3, 0xDB);
            assert_eq!(memory.bytes(0, 4), &[0xDB, 0xDB, 0xDB, 0]);
        }
    }

    #[test]
    #[should_panic(expected = "inside the region")]
    fn never_reaches_outside() {
        RowMemory::reserve(16).unwrap().address(10, 7);
    }
}
