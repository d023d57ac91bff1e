//! Memory of the engine: destinations that it registers, fences that it supplies.
//!
//! The scheduler writes to memory that it does not own here, on the engine's promise; so these calls are unsafe. Where such memory is
//! written, and until when, is told in [`crate::delivery`] and [`crate::protocol::fence`].

use crate::StepError;
use crate::core::Core;
use crate::protocol::fence::FenceWords;
use crate::scheduler::{Layer, Scheduler};
use crate::submit::{DestId, StepSlot};
use std::ptr::NonNull;

/// Fences begin at a page.
const PAGE_BYTES: usize = 4096;

/// What kind of memory it is; for reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MemoryKind {
    /// Locked, and known to a device.
    #[default]
    Pinned,
    /// Shared with other processes.
    Shared,
}

/// Memory of the engine: `len` bytes at a fixed address.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// First byte.
    pub ptr: NonNull<u8>,
    /// Bytes.
    pub len: usize,
    /// What kind it is.
    pub kind: MemoryKind,
    /// The NUMA node it is on, if that is known.
    pub node: Option<u32>,
}

/// The fence words of all (step slot, layer), in one region that never moves. Those of a slot are at byte
/// `(slot * layers + layer index) * 192`.
#[derive(Debug)]
pub struct FenceRegion<'s> {
    /// First byte, page-aligned.
    pub base: NonNull<u8>,
    /// Bytes.
    pub len: usize,
    core: &'s Core,
}

impl FenceRegion<'_> {
    /// The words of a step slot's layer; `None` if there is no such slot or layer.
    pub fn words(&self, slot: StepSlot, layer: Layer) -> Option<&FenceWords> {
        let step = self.core.steps.first_slot + u32::from(slot.0);
        let table = self.core.geometry.table(layer)?;
        let steps = &self.core.steps;
        steps.slots().contains(&step).then(|| steps.fences.words(steps.fence_index(step, table)))
    }
}

impl Scheduler {
    /// Registers memory that steps may be written to ([`crate::Dest::Registered`]).
    ///
    /// # Errors
    /// [`StepError::LimitReached`] for `dests_max`.
    ///
    /// # Safety
    /// The memory stays mapped until [`Scheduler::unregister`] returns Ok (or the scheduler is gone), and while a layer of a step that is
    /// bound to a part of it is not complete, nothing else reads or writes that part.
    pub unsafe fn register(&self, memory: Memory) -> Result<DestId, StepError> {
        self.core().check_open()?;
        self.core().steps.dests.register(memory.ptr.as_ptr(), memory.len)
    }

    /// Gives registered memory back: after Ok nothing is written there any more.
    ///
    /// # Errors
    /// [`StepError::Busy`] while a layer that is written there is not complete; [`StepError::UnknownDest`].
    pub fn unregister(&self, dest: DestId) -> Result<(), StepError> {
        self.core().check_process()?;
        self.core().steps.dests.unregister(dest)
    }

    /// Puts the fences into memory of the engine, for example such that a device maps. It is zeroed.
    ///
    /// # Errors
    /// [`StepError::WrongSize`], [`StepError::Misaligned`]; [`StepError::Busy`] after the first step or the first [`Scheduler::fences`].
    ///
    /// # Safety
    /// The memory stays mapped as long as a handle of the scheduler lives and its threads run, and only the scheduler writes it.
    pub unsafe fn supply_fences(&self, memory: Memory) -> Result<(), StepError> {
        self.core().check_process()?;
        let fences = &self.core().steps.fences;
        if memory.len < fences.bytes() {
            return Err(StepError::WrongSize { need: fences.bytes(), got: memory.len });
        }
        if !memory.ptr.addr().get().is_multiple_of(PAGE_BYTES) {
            return Err(StepError::Misaligned(PAGE_BYTES));
        }
        // SAFETY: aligned and long enough; the rest is the caller's promise.
        if unsafe { fences.supply(memory.ptr.as_ptr()) } { Ok(()) } else { Err(StepError::Busy) }
    }

    /// Where the fences are. From now on they stay there.
    pub fn fences(&self) -> FenceRegion<'_> {
        let fences = &self.core().steps.fences;
        let base = NonNull::new(fences.base()).expect("memory is not at address 0");
        FenceRegion { base, len: fences.bytes(), core: self.core() }
    }
}
