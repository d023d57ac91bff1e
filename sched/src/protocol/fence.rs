//! Fence: the words by which a device (or another process) learns that a layer of a step is final.
//!
//! Three words for each (step slot, layer), each on a line of its own, all in one page-aligned region that never moves: a captured graph may
//! bake the addresses. `expected` is stored when a step is submitted; completion or failure stores `status`, then `fence`.
//!
//! # Memory ordering
//! F1 `expect` (Release) comes before anything that can complete the layer. F2 `raise` is a Release store of the fence after the status and
//! after the last write to the destination: who sees `fence >= expected` with Acquire sees both. Fences only grow.

use crate::sync::seeded::{self, Bug};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// What became of a layer of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum FenceStatus {
    /// Not final yet.
    Pending = 0,
    /// Every row is in place.
    Ok = 1,
    /// The rows of some entries could not be had and are zeros.
    EntriesFailed = 2,
    /// The watchdog, or a deadline with `zero_fill`, ended the layer; the rows of entries that were not ready are zeros.
    Timeout = 3,
    /// The step was cancelled.
    Cancelled = 4,
    /// The scheduler was shut down or failed.
    Closed = 5,
}

impl FenceStatus {
    /// Back from its number.
    pub fn from_word(word: u32) -> Self {
        [Self::Pending, Self::Ok, Self::EntriesFailed, Self::Timeout, Self::Cancelled, Self::Closed]
            .into_iter()
            .find(|&status| status as u32 == word)
            .unwrap_or(Self::Pending)
    }
}

/// A word on a cache line of its own.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Line<T>(pub T);

/// The words of one (step slot, layer): 192 B. Wait until `fence >= expected` (Acquire), then read `status`.
#[derive(Debug, Default)]
#[repr(C)]
pub struct FenceWords {
    /// Raised to `expected` when the layer is final.
    pub fence: Line<AtomicU64>,
    /// A [`FenceStatus`], valid once the fence is reached.
    pub status: Line<AtomicU32>,
    /// What the fence will be raised to; stored by `submit_step`.
    pub expected: Line<AtomicU64>,
}

impl FenceWords {
    /// A step begins. For who sets it up (and the models): not a part of the interface.
    #[doc(hidden)]
    pub fn expect(&self) {
        self.status.0.store(FenceStatus::Pending as u32, Ordering::Relaxed);
        let next = self.expected.0.load(Ordering::Relaxed) + 1;
        self.expected.0.store(next, Ordering::Release); // F1
    }

    /// The layer is final. For the one who finishes it; as above.
    #[doc(hidden)]
    pub fn raise(&self, status: FenceStatus) {
        let expected = self.expected.0.load(Ordering::Relaxed);
        if seeded::is(Bug::FenceBeforeStatus) {
            self.fence.0.store(expected, Ordering::Release);
        }
        self.status.0.store(status as u32, Ordering::Relaxed);
        self.fence.0.store(expected, Ordering::Release); // F2
    }

    /// Whether the layer is final, and how it ended.
    pub fn reached(&self) -> Option<FenceStatus> {
        let expected = self.expected.0.load(Ordering::Acquire); // pairs with F1
        let reached = self.fence.0.load(Ordering::Acquire) >= expected; // pairs with F2
        reached.then(|| FenceStatus::from_word(self.status.0.load(Ordering::Relaxed)))
    }
}

#[cfg(not(loom))]
pub(crate) use region::FenceRegion;

#[cfg(not(loom))]
mod region {
    use super::FenceWords;
    use crate::sync::{AtomicBool, AtomicUsize, Mutex, Ordering, lock};
    use memmap2::MmapMut;

    /// All fence words: `steps x layers` of them, step-major.
    #[derive(Debug)]
    pub(crate) struct FenceRegion {
        /// Where the words are: memory of ours, or the engine's.
        base: AtomicUsize,
        words: usize,
        /// A step was submitted, or words were lent out: the region stays where it is.
        fixed: AtomicBool,
        supplying: Mutex<()>,
        _own: MmapMut,
    }

    impl FenceRegion {
        /// Reserves `words` words of ours.
        ///
        /// # Errors
        /// The OS error.
        pub(crate) fn new(words: usize) -> std::io::Result<Self> {
            let mut own = MmapMut::map_anon((words * size_of::<FenceWords>()).max(1))?;
            let base = AtomicUsize::new(own.as_mut_ptr().expose_provenance());
            Ok(Self { base, words, fixed: AtomicBool::new(false), supplying: Mutex::new(()), _own: own })
        }

        /// Bytes of the region.
        pub(crate) fn bytes(&self) -> usize {
            self.words * size_of::<FenceWords>()
        }

        /// First address; from now on it stays.
        pub(crate) fn base(&self) -> *mut u8 {
            let _turn = lock(&self.supplying);
            self.fixed.store(true, Ordering::Release); // pairs with `words`
            std::ptr::with_exposed_provenance_mut(self.base.load(Ordering::Relaxed))
        }

        /// Moves the words, zeroed, to memory of the engine. False: they are in use already.
        ///
        /// # Safety
        /// `base` is page-aligned and [`FenceRegion::bytes`] long, stays mapped as long as `self` lives, and only this writes it.
        pub(crate) unsafe fn supply(&self, base: *mut u8) -> bool {
            let _turn = lock(&self.supplying);
            if self.fixed.load(Ordering::Relaxed) {
                return false;
            }
            // SAFETY: long enough and ours alone, by the caller's promise.
            unsafe { std::ptr::write_bytes(base, 0, self.bytes()) };
            self.base.store(base.expose_provenance(), Ordering::Relaxed);
            true
        }

        /// The words `index`.
        ///
        /// # Panics
        /// If there are fewer.
        pub(crate) fn words(&self, index: usize) -> &FenceWords {
            assert!(index < self.words, "fence words {index} of {}", self.words);
            if !self.fixed.load(Ordering::Acquire) {
                self.base(); // once
            }
            let base = std::ptr::with_exposed_provenance::<FenceWords>(self.base.load(Ordering::Relaxed));
            // SAFETY: in the region, which is page-aligned, zeroed (valid words) and stays until `self` is dropped; the base no longer
            // moves, and every access is atomic.
            unsafe { &*base.add(index) }
        }
    }
}
