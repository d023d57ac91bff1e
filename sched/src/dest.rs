//! Registered destinations: memory of the engine that steps write to.
//!
//! A destination is in use while a layer that is written there is not complete; until then it cannot be unregistered. Its address and
//! length are written before its lease begins and read under a reference.

use crate::protocol::lease::Lease;
use crate::sync::{AtomicUsize, Ordering};
use crate::{DestId, StepError};

#[derive(Debug, Default)]
struct Slot {
    lease: Lease,
    address: AtomicUsize,
    len: AtomicUsize,
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct Dests {
    slots: Box<[Slot]>,
}

impl Dests {
    pub(crate) fn new(dests_max: usize) -> Self {
        Self { slots: (0..dests_max).map(|_| Slot::default()).collect() }
    }

    /// Registers `len` bytes at `base`.
    pub(crate) fn register(&self, base: *mut u8, len: usize) -> Result<DestId, StepError> {
        for (index, slot) in self.slots.iter().enumerate() {
            if let Some(generation) = slot.lease.claim(1) {
                // Nobody knows the id yet, so nobody reads these before they are written; the id's way to its user orders them.
                slot.address.store(base.expose_provenance(), Ordering::Relaxed);
                slot.len.store(len, Ordering::Relaxed);
                return Ok(DestId::new(index as u32, generation));
            }
        }
        Err(StepError::LimitReached("dests_max"))
    }

    pub(crate) fn unregister(&self, dest: DestId) -> Result<(), StepError> {
        match self.slots.get(dest.index() as usize).and_then(|slot| slot.lease.end(dest.generation())) {
            Some(true) => Ok(()),
            Some(false) => Err(StepError::Busy),
            None => Err(StepError::UnknownDest(dest)),
        }
    }

    /// Takes a reference for a layer, and gives the address of `need` bytes from `offset` on.
    pub(crate) fn hold(&self, dest: DestId, offset: usize, need: usize) -> Result<*mut u8, StepError> {
        let unknown = StepError::UnknownDest(dest);
        let slot = self.slots.get(dest.index() as usize).ok_or(unknown)?;
        if !slot.lease.hold(dest.generation()) {
            return Err(StepError::UnknownDest(dest));
        }
        let len = slot.len.load(Ordering::Relaxed);
        let got = len.saturating_sub(offset);
        if got < need {
            slot.lease.release();
            return Err(StepError::WrongSize { need, got });
        }
        let base = std::ptr::with_exposed_provenance_mut::<u8>(slot.address.load(Ordering::Relaxed));
        Ok(base.wrapping_add(offset))
    }

    /// Gives a layer's reference back.
    pub(crate) fn release(&self, index: u32) {
        self.slots[index as usize].lease.release();
    }
}
