//! The gate through which every io_uring system call goes, and at which tests make it fail.
//!
//! Why: the errors that hurt (`EAGAIN` twice in a row, an error after part of a batch was taken) come from a kernel short of memory and
//! cannot be had to order. Without a script the gate is one branch.

use super::setup::SetupFlag;
use std::io;
use std::os::fd::RawFd;

/// A system call about to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum UringCall {
    /// `io_uring_setup`.
    Setup {
        /// With these flags.
        flags: &'static [SetupFlag],
        /// Entries of the submission queue.
        entries: u32,
    },
    /// Asking for the opcodes.
    Probe,
    /// Registering the files.
    RegisterFiles,
    /// Registering the arena.
    RegisterBuffers,
    /// Registering the ring's descriptor.
    RegisterRing,
    /// Enabling the ring.
    Enable,
    /// `io_uring_enter`.
    Enter {
        /// Entries to submit.
        to_submit: u32,
        /// Completions to wait for.
        min_complete: u32,
    },
}

/// What becomes of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum UringFault {
    /// It is made.
    Pass,
    /// It is not made, and fails with this error number.
    Fail(i32),
    /// An `Enter` submits only so many entries, waits for nothing, and fails with this error number all the same.
    FailAfter {
        /// Entries that the kernel takes.
        sqes: u32,
        /// The error number.
        errno: i32,
    },
}

/// Decides over each call, in order.
pub type UringFaults = Box<dyn FnMut(UringCall) -> UringFault + Send>;

/// See the module.
#[derive(Default)]
pub(super) struct Gate {
    pub(super) faults: Option<UringFaults>,
}

/// `IORING_ENTER_GETEVENTS`.
pub(super) const ENTER_GETEVENTS: u32 = 1;
/// `IORING_ENTER_REGISTERED_RING`.
pub(super) const ENTER_REGISTERED_RING: u32 = 1 << 4;

impl Gate {
    /// Makes a call other than `Enter`.
    pub(super) fn call<T>(&mut self, call: UringCall, make: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match self.faults.as_mut().map_or(UringFault::Pass, |faults| faults(call)) {
            UringFault::Pass => make(),
            UringFault::Fail(errno) | UringFault::FailAfter { errno, .. } => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Enters the ring `fd` (an index if `flags` say so); returns how many entries the kernel took, or the error number.
    #[inline]
    pub(super) fn enter(&mut self, fd: RawFd, to_submit: u32, min_complete: u32, flags: u32) -> Result<u32, i32> {
        if let Some(faults) = &mut self.faults {
            match faults(UringCall::Enter { to_submit, min_complete }) {
                UringFault::Pass => {}
                UringFault::Fail(errno) => return Err(errno),
                UringFault::FailAfter { sqes, errno } => {
                    enter(fd, sqes.min(to_submit), 0, flags)?;
                    return Err(errno);
                }
            }
        }
        enter(fd, to_submit, min_complete, flags)
    }
}

#[inline]
fn enter(fd: RawFd, to_submit: u32, min_complete: u32, flags: u32) -> Result<u32, i32> {
    let no_argument = std::ptr::null::<libc::c_void>();
    // SAFETY: the ring is open; its submission queue holds only entries whose buffers live until their completions are reaped (the
    // invariant of `Held`); no argument is passed.
    let taken =
        unsafe { libc::syscall(libc::SYS_io_uring_enter, fd, to_submit, min_complete, flags, no_argument, 0_usize) };
    if taken >= 0 { Ok(taken as u32) } else { Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)) }
}
