//! Setting up a ring: flags, sizes, registrations; what is refused, and what to do about it.
//!
//! Why so careful: containers refuse io_uring by seccomp, hosts by sysctl, unprivileged users run into `RLIMIT_MEMLOCK`, and every flag
//! has its kernel version. What the kernel grants is found out once, here, on the real ring: it is made *disabled*, so that any thread
//! may make it at start, and belongs to the thread that enables it.
//!
//! Invariants: flags are dropped one rung at a time and only on `EINVAL`; sizes are halved, down to a floor, and only on `ENOMEM`;
//! everything that is not granted leaves a note or is an error with its remedy.

use super::faults::{Gate, UringCall};
use io_uring::{IoUring, Probe, opcode};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

/// A flag of `io_uring_setup`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SetupFlag {
    /// Only one thread enters the ring (kernel 6.0).
    SingleIssuer,
    /// Completion work runs when that thread asks for it (6.1).
    DeferTaskrun,
    /// Completion work interrupts nobody (5.19).
    CoopTaskrun,
    /// The ring says whether there is completion work (5.19).
    TaskrunFlag,
    /// The ring starts disabled (5.10).
    Disabled,
}

impl SetupFlag {
    fn name(self) -> &'static str {
        match self {
            Self::SingleIssuer => "single-issuer",
            Self::DeferTaskrun => "defer-taskrun",
            Self::CoopTaskrun => "coop-taskrun",
            Self::TaskrunFlag => "taskrun-flag",
            Self::Disabled => "made-disabled",
        }
    }
}

use SetupFlag::{CoopTaskrun, DeferTaskrun, Disabled, SingleIssuer, TaskrunFlag};

/// Sets of flags, best first. Without `Disabled` there must be no `SingleIssuer`: the ring would belong to the thread of `prepare`.
const LADDER: [&[SetupFlag]; 5] = [
    &[SingleIssuer, DeferTaskrun, TaskrunFlag, Disabled],
    &[SingleIssuer, CoopTaskrun, TaskrunFlag, Disabled],
    &[CoopTaskrun, TaskrunFlag, Disabled],
    &[Disabled],
    &[],
];

/// Entries of the submission queue, at most and at least.
const SQ_ENTRIES_MAX: u32 = 4096;
const SQ_ENTRIES_MIN: u32 = 8;
/// Completions that are not reads: the doorbell's, and one to spare.
const CQ_SLACK: u32 = 2;
/// The kernel gives a closed ring's memory back late: so an `ENOMEM` is waited out for this long before it is believed.
const ENOMEM_WAITS_MS: [u64; 4] = [1, 4, 16, 40];

/// Why there is no ring.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) why: String,
}

/// A ring and what was granted with it.
pub(super) struct Granted {
    pub(super) ring: IoUring,
    pub(super) flags: &'static [SetupFlag],
    /// Reads that can be in the kernel at once without any chance of completions overflowing.
    pub(super) in_flight_max: u32,
    pub(super) fixed_files: bool,
    pub(super) notes: Vec<String>,
}

impl Granted {
    pub(super) fn has(&self, flag: SetupFlag) -> bool {
        self.flags.contains(&flag)
    }
}

/// Makes a ring for `slots` reads of the files `fds`.
pub(super) fn open(slots: u32, fds: &[RawFd], gate: &mut Gate) -> Result<Granted, Refused> {
    let mut notes = Vec::new();
    let full = slots.clamp(SQ_ENTRIES_MIN, SQ_ENTRIES_MAX).next_power_of_two();
    let mut entries = full;
    let mut rung = 0;
    let mut waits = ENOMEM_WAITS_MS.iter();
    let ring = loop {
        match make(LADDER[rung], entries, completions(entries, full, slots), gate) {
            Ok(ring) => break ring,
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) && rung + 1 < LADDER.len() => rung += 1,
            Err(e) if e.raw_os_error() == Some(libc::ENOMEM) => {
                if let Some(&wait_ms) = waits.next() {
                    crate::sync::thread::sleep(Duration::from_millis(wait_ms));
                } else if entries > SQ_ENTRIES_MIN {
                    entries /= 2;
                } else {
                    return Err(Refused { why: describe("io_uring_setup", &e) });
                }
            }
            Err(e) => return Err(Refused { why: describe("io_uring_setup", &e) }),
        }
    };
    if entries < full {
        notes.push(format!("the ring has {entries} entries instead of {full}: {}", memlock_remedy()));
    }
    let in_flight_max = slots.min(ring.params().cq_entries().saturating_sub(CQ_SLACK)).max(1);
    probe(&ring, gate)?;
    // A disabled ring answers EBADFD; a filter that lets a ring be made but not entered shows here.
    match gate.enter(ring.as_raw_fd(), 0, 0, 0) {
        Ok(_) | Err(libc::EAGAIN | libc::EBUSY | libc::EINTR) => {}
        Err(libc::EBADFD) if LADDER[rung].contains(&Disabled) => {}
        Err(errno) => return Err(Refused { why: describe("io_uring_enter", &io::Error::from_raw_os_error(errno)) }),
    }
    let fixed_files = match gate.call(UringCall::RegisterFiles, || ring.submitter().register_files(fds)) {
        Ok(()) => true,
        Err(e) => {
            notes.push(format!("the files are not registered with the ring ({e}); each read looks its file up"));
            false
        }
    };
    Ok(Granted { ring, flags: LADDER[rung], in_flight_max, fixed_files, notes })
}

/// Entries of the completion queue: room for every slot at full size; twice the submissions when memory is short.
fn completions(entries: u32, full: u32, slots: u32) -> u32 {
    let least = entries * 2;
    if entries == full { least.max(slots.saturating_add(CQ_SLACK).next_power_of_two()) } else { least }
}

fn make(flags: &'static [SetupFlag], entries: u32, cq_entries: u32, gate: &mut Gate) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.dontfork().setup_cqsize(cq_entries);
    for flag in flags {
        match flag {
            SingleIssuer => builder.setup_single_issuer(),
            DeferTaskrun => builder.setup_defer_taskrun(),
            CoopTaskrun => builder.setup_coop_taskrun(),
            TaskrunFlag => builder.setup_taskrun_flag(),
            Disabled => builder.setup_r_disabled(),
        };
    }
    gate.call(UringCall::Setup { flags, entries }, || builder.build(entries))
}

/// The kernel must know `READ`; where it cannot even be asked (before 5.6), it does not.
fn probe(ring: &IoUring, gate: &mut Gate) -> Result<(), Refused> {
    let mut probe = Probe::new();
    let too_old = || Refused { why: "this kernel's io_uring has no READ; 5.6 or later is needed".into() };
    match gate.call(UringCall::Probe, || ring.submitter().register_probe(&mut probe)) {
        Ok(()) if probe.is_supported(opcode::Read::CODE) && probe.is_supported(opcode::ReadFixed::CODE) => Ok(()),
        Ok(()) => Err(too_old()),
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Err(too_old()),
        Err(e) => Err(Refused { why: describe("io_uring_register", &e) }),
    }
}

/// Registers the arena. Any refusal is a note: reads then name their buffer by address.
pub(super) fn register_arena(ring: &IoUring, arena: &super::Arena, gate: &mut Gate, notes: &mut Vec<String>) -> bool {
    let iovec = libc::iovec { iov_base: arena.base().cast(), iov_len: arena.bytes() };
    // SAFETY: the arena outlives the ring: both are in `Held`, which drops the ring first, or drops neither.
    let registered = gate.call(UringCall::RegisterBuffers, || unsafe { ring.submitter().register_buffers(&[iovec]) });
    if let Err(e) = &registered {
        let remedy = match e.raw_os_error() {
            Some(libc::ENOMEM | libc::EPERM) => memlock_remedy(),
            _ => "the kernel pins the pages of each read instead".into(),
        };
        notes.push(format!(
            "the {} KiB of buffers are not registered with the ring ({e}): {remedy}",
            arena.bytes() / 1024
        ));
    }
    registered.is_ok()
}

/// Cause and remedy of a refused system call.
pub(super) fn describe(call: &str, error: &io::Error) -> String {
    let remedy = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => format!(
            "allow the system calls 425 to 427 in the container's seccomp profile{}",
            match disabled_sysctl() {
                Some(level @ 1..) => format!(", and set the sysctl kernel.io_uring_disabled (now {level}) to 0"),
                _ => String::new(),
            }
        ),
        Some(libc::ENOSYS) => {
            "this kernel has no io_uring, or a seccomp filter hides the system calls 425 to 427".into()
        }
        Some(libc::ENOMEM) => memlock_remedy(),
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit of open files (ulimit -n)".into(),
        _ => "this is not expected; please report it".into(),
    };
    format!("{call} failed: {error}; {remedy}")
}

fn disabled_sysctl() -> Option<u32> {
    std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok()?.trim().parse().ok()
}

fn memlock_remedy() -> String {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes one `rlimit` to the address given.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } == 0;
    let now = match limit.rlim_cur {
        _ if !known => "unknown".into(),
        libc::RLIM_INFINITY => "unlimited".into(),
        bytes => format!("{} KiB", bytes / 1024),
    };
    format!("raise RLIMIT_MEMLOCK (ulimit -l), which is {now}, or lower the limits of the scheduler")
}

/// The names of flags, for reports.
pub(super) fn flag_names(flags: &'static [SetupFlag]) -> impl Iterator<Item = &'static str> {
    flags.iter().filter(|&&flag| flag != Disabled).map(|flag| flag.name())
}

/// `struct io_uring_rsrc_update`.
#[repr(C)]
struct RingUpdate {
    offset: u32,
    reserved: u32,
    fd: u64,
}

const IORING_REGISTER_RING_FDS: libc::c_uint = 20;
const IORING_UNREGISTER_RING_FDS: libc::c_uint = 21;

fn update_ring(ring: &IoUring, operation: libc::c_uint, update: &mut RingUpdate) -> io::Result<()> {
    // SAFETY: one structure of the kernel's layout, which outlives the call.
    let done =
        unsafe { libc::syscall(libc::SYS_io_uring_register, ring.as_raw_fd(), operation, &raw mut *update, 1_u32) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Registers the ring's descriptor with the calling thread (kernel 5.18); returns its index. The crate's own call keeps the index in a
/// `Submitter`, which would have to live beside the ring it borrows.
pub(super) fn register_ring(ring: &IoUring) -> io::Result<RawFd> {
    let mut update = RingUpdate { offset: u32::MAX, reserved: 0, fd: ring.as_raw_fd() as u64 };
    update_ring(ring, IORING_REGISTER_RING_FDS, &mut update)?;
    Ok(update.offset as RawFd)
}

/// Undoes it; on the same thread.
pub(super) fn unregister_ring(ring: &IoUring, index: RawFd) {
    let mut update = RingUpdate { offset: index as u32, reserved: 0, fd: 0 };
    // A failure leaves the ring open until the thread ends, and nothing else.
    let _ = update_ring(ring, IORING_UNREGISTER_RING_FDS, &mut update);
}
