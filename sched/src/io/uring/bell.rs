//! The doorbell inside the ring: an eventfd whose read is an entry of the ring, so that one sleep waits for reads and for wakes.
//!
//! Why a read and not a poll: the kernel resets the counter itself, which saves the actor a system call per wake.
//!
//! # Memory ordering
//! `rung` collapses wakes: only the first since the last [`Bell::heard`] writes the eventfd.
//! - *ring* (any thread): publish work; `swap(true, AcqRel)`; if it was `false`, write the eventfd.
//! - *hear* (actor): the read has completed; `swap(false, AcqRel)`; then look for work.
//!
//! A ring that finds `true` writes nothing, and precedes some hear in the order of `rung`: that hear reads `true` from it or from a
//! later swap of its release sequence, acquires the work, and the actor, who looks after hearing, finds it. A ring that finds `false`
//! writes, and the next read of the eventfd completes, whenever it is started.

use super::super::WakeBackend;
use crate::sync::{AtomicBool, Ordering};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// See the module.
pub(super) struct Bell {
    eventfd: OwnedFd,
    rung: AtomicBool,
}

impl Bell {
    pub(super) fn new() -> io::Result<Self> {
        // Blocking, as a ring's read of a non-blocking eventfd fails with EAGAIN instead of waiting.
        // SAFETY: touches no memory of ours.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and belongs to nobody else.
        let eventfd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { eventfd, rung: AtomicBool::new(false) })
    }

    pub(super) fn fd(&self) -> RawFd {
        self.eventfd.as_raw_fd()
    }

    /// The eventfd's read has completed.
    pub(super) fn heard(&self) {
        // AcqRel: pairs with `wake`, see the module.
        self.rung.swap(false, Ordering::AcqRel);
    }

    /// Completes the read that is out or the next one, whatever was rung before.
    pub(super) fn strike(&self) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: writes the 8 bytes given to a descriptor that is open while `self` lives.
        while unsafe { libc::write(self.fd(), one.as_ptr().cast(), one.len()) } < 0
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
    }
}

impl WakeBackend for Bell {
    fn wake(&self) {
        // AcqRel: pairs with `heard`, see the module.
        if !self.rung.swap(true, Ordering::AcqRel) {
            self.strike();
        }
    }
}
