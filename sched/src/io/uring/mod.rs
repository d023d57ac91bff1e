//! The io_uring backend: one thread, one ring, registered files and arena, the doorbell as an entry of the ring.
//!
//! Why: it reaches the device's rate at a quarter of the pread pool's CPU. The ring is made in [`UringPrepared::new`] on any thread
//! (disabled, so that refusals show at start) and enabled in [`UringPrepared::build`] on the thread that then owns it.
//!
//! # The way of a read
//! `waiting` (accepted) -> `published` (an entry of the submission queue) -> `in_kernel` -> `ready` (completed or failed) -> the caller.
//! How far the kernel got with the published entries is read from the queue's head after every enter, whatever enter returned.
//!
//! # When entering fails
//! - `EINTR`: again. `EAGAIN`, `EBUSY`: take what has completed, wait a little, again, a bounded number of times.
//! - Anything else, or the bound: the published entries that the kernel did not take fail with the error, once. They cannot be taken
//!   back from the queue, so nothing is submitted to this ring any more; it is reaped until the kernel holds none of its reads, then
//!   **replaced**. Reads that were waiting go to the new ring. Several failures in a row break the backend: all reads fail, `reap` errs.
//!
//! # Invariants
//! - Entries of the submission queue that a failed ring still holds are never submitted: `to_submit` is 0 unless the ring is whole.
//! - `in_kernel + published <= in_flight_max < CQ entries`, so completions cannot overflow; if the counter says so all the same, that is
//!   a loud error.
//! - `Held` (ring, arena, doorbell page) is dropped only when the kernel holds none of it; otherwise it is leaked.
//! - Only the owner's thread enters the ring, and no child of `fork(2)` touches it.

mod bell;
mod faults;
mod setup;

pub use faults::{UringCall, UringFault, UringFaults};
pub use setup::SetupFlag;

use super::{
    Arena, Backend, BackendOptions, BackendReport, Completion, DROP_DRAIN_MAX, FileSet, ReadOp, Wait, WakeBackend,
    arena::PAGE_BYTES, slots::Slots,
};
use crate::StartError;
use crate::sync::process::Process;
use crate::sync::{Arc, thread};
use bell::Bell;
use engram_store::FileId;
use faults::{ENTER_GETEVENTS, ENTER_REGISTERED_RING, Gate};
use io_uring::{IoUring, opcode, squeue, types};
use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

/// Reads per enter. The device starts on them while the next are being submitted; one enter for all that fits moves reads to and
/// from the device in convoys (measured, depth 32 and 64: 0.85 and 0.90 of the rate of fio, against 0.95 and 0.94 by fours, at the
/// same CPU a read; by twos or singly is no faster within the noise).
const SUB_BATCH: usize = 4;
/// The doorbell's tag; no slot has this number.
const BELL_TAG: u64 = u64::MAX;
/// How often an enter that the kernel has no memory for is tried before its entries fail (about 70 ms).
const REFUSALS_MAX: u32 = 20;
const BACK_OFF_MIN: Duration = Duration::from_micros(20);
const BACK_OFF_MAX: Duration = Duration::from_millis(5);
/// Failures in a row, without an enter that succeeds, until the backend counts as broken.
const FAILURES_MAX: u32 = 3;
/// How long closing a ring waits for the doorbell's read to end.
const BELL_END_MAX: Duration = Duration::from_millis(200);

/// A ring that was granted, not yet enabled.
pub struct UringPrepared {
    granted: setup::Granted,
    files: Arc<FileSet>,
    arena: Arena,
    bell_page: Arena,
    bell: Bell,
    gate: Gate,
}

impl UringPrepared {
    /// Makes the ring, on any thread. `faults` is for tests.
    ///
    /// # Errors
    /// [`StartError::Backend`] with cause and remedy if io_uring is refused; [`StartError::Memory`] for the buffers.
    pub fn new(options: &BackendOptions, files: Arc<FileSet>, faults: Option<UringFaults>) -> Result<Self, StartError> {
        let refused = |why| StartError::Backend { backend: "io-uring", why };
        let arena = Arena::reserve(options.slots, options.slot_bytes)?;
        let bell_page = Arena::reserve(1, PAGE_BYTES)?;
        let mut gate = Gate { faults };
        let granted = setup::open(options.slots, &descriptors(&files), &mut gate).map_err(|e| refused(e.why))?;
        let bell = Bell::new().map_err(|e| refused(setup::describe("eventfd", &e)))?;
        Ok(Self { granted, files, arena, bell_page, bell, gate })
    }

    /// What was asked for and not had so far.
    pub fn notes(&self) -> &[String] {
        &self.granted.notes
    }

    /// Enables the ring for the calling thread, which alone may drive the backend, and touches and registers the arena.
    ///
    /// # Errors
    /// [`StartError::Backend`] if the kernel does not enable it.
    pub fn build(self) -> Result<UringBackend, StartError> {
        let Self { granted, files, mut arena, mut bell_page, bell, gate } = self;
        arena.touch();
        bell_page.touch();
        let slots = arena.slots();
        let setup::Granted { ring, .. } = &granted;
        let enter_fd = ring.as_raw_fd();
        let process = Process::current().map_err(|source| StartError::Memory { bytes: PAGE_BYTES.into(), source })?;
        let mut backend = UringBackend {
            flags: Vec::new(),
            notes: granted.notes.clone(),
            fixed_files: granted.fixed_files,
            fixed_buffers: false,
            taskrun_flag: granted.has(SetupFlag::TaskrunFlag),
            deferred: granted.has(SetupFlag::DeferTaskrun),
            in_flight_max: granted.in_flight_max,
            enter_fd,
            enter_flags: 0,
            files,
            gate,
            slots: Slots::new(slots),
            waiting: VecDeque::with_capacity(slots as usize),
            published: VecDeque::with_capacity(slots as usize + 1),
            in_kernel: 0,
            ready: Vec::with_capacity(slots as usize),
            bell: Arc::new(bell),
            bell_state: BellState::Unarmed,
            woken: false,
            state: State::Whole,
            failures: 0,
            enters: 0,
            replaced: 0,
            process,
            drained: false,
            owner: thread::current().id(),
            held: ManuallyDrop::new(Held { ring: granted.ring, arena, bell_page: ManuallyDrop::new(bell_page) }),
        };
        backend
            .take_ring(granted.flags)
            .map_err(|e| StartError::Backend { backend: "io-uring", why: setup::describe("io_uring_register", &e) })?;
        Ok(backend)
    }
}

fn descriptors(files: &FileSet) -> Vec<RawFd> {
    (0..files.len() as u32).map(|i| files.file(FileId(i)).as_raw_fd()).collect()
}

/// What the kernel may be using. Fields drop in this order: the ring first.
struct Held {
    ring: IoUring,
    arena: Arena,
    /// Where the doorbell's read puts its 8 bytes. Dropped by hand: it may have to outlive the rest.
    bell_page: ManuallyDrop<Arena>,
}

/// Where the doorbell's read is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BellState {
    Unarmed,
    Published,
    InKernel,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Whole,
    /// Nothing is submitted any more; to be replaced when the kernel holds none of its reads.
    Retiring,
    /// All reads fail with this error number.
    Broken(i32),
}

/// See the module.
pub struct UringBackend {
    held: ManuallyDrop<Held>,
    files: Arc<FileSet>,
    gate: Gate,
    slots: Slots,
    /// Accepted, no entry yet.
    waiting: VecDeque<ReadOp>,
    /// Tags of the entries that the kernel has not taken, oldest first.
    published: VecDeque<u64>,
    /// Reads that the kernel has taken and not completed.
    in_kernel: u32,
    /// Completions not yet handed out.
    ready: Vec<Completion>,
    bell: Arc<Bell>,
    bell_state: BellState,
    woken: bool,
    state: State,
    /// Since the last enter that succeeded.
    failures: u32,
    enter_fd: RawFd,
    enter_flags: u32,
    in_flight_max: u32,
    deferred: bool,
    taskrun_flag: bool,
    fixed_files: bool,
    fixed_buffers: bool,
    flags: Vec<String>,
    notes: Vec<String>,
    enters: u64,
    replaced: u64,
    process: Process,
    /// Whether somebody has waited for the end already; dropping then does not wait again.
    drained: bool,
    owner: thread::ThreadId,
}

impl UringBackend {
    /// Enables the ring in `held` and registers what belongs to this thread.
    fn take_ring(&mut self, flags: &'static [SetupFlag]) -> io::Result<()> {
        let ring = &self.held.ring;
        self.enter_fd = ring.as_raw_fd();
        self.enter_flags = 0;
        if flags.contains(&SetupFlag::Disabled) {
            self.gate.call(UringCall::Enable, || ring.submitter().register_enable_rings())?;
        }
        self.fixed_buffers = setup::register_arena(ring, &self.held.arena, &mut self.gate, &mut self.notes);
        // Without it each enter looks the descriptor up; not worth a note.
        if let Ok(index) = self.gate.call(UringCall::RegisterRing, || setup::register_ring(ring)) {
            self.enter_fd = index;
            self.enter_flags = ENTER_REGISTERED_RING;
        }
        self.flags = setup::flag_names(flags).map(String::from).collect();
        for (granted, name) in [
            (self.fixed_files, "fixed-files"),
            (self.fixed_buffers, "fixed-buffers"),
            (self.enter_flags != 0, "registered-ring"),
        ] {
            if granted {
                self.flags.push(name.into());
            }
        }
        Ok(())
    }

    fn published_reads(&self) -> usize {
        self.published.len() - usize::from(self.bell_state == BellState::Published)
    }

    /// Makes entries of at most `count` waiting reads, as far as there is room and the ring is whole; returns how many.
    fn publish(&mut self, count: usize) -> usize {
        if self.state != State::Whole {
            return 0;
        }
        let Held { ring, arena, .. } = &mut *self.held;
        let out = self.in_kernel as usize + self.published.len();
        let room = (self.in_flight_max as usize).saturating_sub(out).min(count);
        let mut queue = ring.submission();
        let mut made = 0;
        while made < room && !queue.is_full() {
            let Some(op) = self.waiting.pop_front() else { break };
            let to = arena.at(op.slot, op.slot_offset);
            let entry = if self.fixed_files {
                read_entry(types::Fixed(op.file.0), to, &op, self.fixed_buffers)
            } else {
                read_entry(types::Fd(self.files.file(op.file).as_raw_fd()), to, &op, self.fixed_buffers)
            };
            // SAFETY: the file is open while `self.files` lives; the bytes from `to` are in the arena (checked by `Slots::take`), whose
            // slot is out until the completion, and the arena is not dropped before that (`Held`).
            if unsafe { queue.push(&entry) }.is_err() {
                // Not reached: the queue was not full, and nobody else fills it.
                self.waiting.push_front(op);
                break;
            }
            self.published.push_back(op.tag);
            made += 1;
        }
        made
    }

    /// Makes entries of all that may start, and enters for each sub-batch but the last, which stays published.
    fn publish_all(&mut self) {
        while self.publish(SUB_BATCH) > 0 && !self.waiting.is_empty() && self.has_room() {
            self.enter(0, 0);
            if !self.published.is_empty() {
                return; // Refused; the next enter tries again.
            }
        }
    }

    fn has_room(&self) -> bool {
        (self.in_kernel as usize + self.published.len()) < self.in_flight_max as usize
    }

    /// Makes an entry of the doorbell's read, unless it is out already.
    fn arm_bell(&mut self) {
        if self.bell_state != BellState::Unarmed || self.state != State::Whole {
            return;
        }
        let to = self.held.bell_page.base();
        let entry = opcode::Read::new(types::Fd(self.bell.fd()), to, 8).build().user_data(BELL_TAG);
        // SAFETY: the descriptor lives as long as `self.bell`; the page is written by this read alone and not dropped before it ends.
        if unsafe { self.held.ring.submission().push(&entry) }.is_ok() {
            self.published.push_back(BELL_TAG);
            self.bell_state = BellState::Published;
        }
    }

    /// Enters the kernel: submits what is published, waits for `min_complete` completions.
    fn enter(&mut self, min_complete: u32, flags: u32) {
        let mut refusals = 0;
        loop {
            let to_submit = if self.state == State::Whole { self.published.len() as u32 } else { 0 };
            self.enters += 1;
            let entered = self.gate.enter(self.enter_fd, to_submit, min_complete, self.enter_flags | flags);
            let taken = if to_submit > 0 { self.note_taken() } else { 0 };
            match entered {
                Ok(_) if taken == to_submit => {
                    self.failures = 0;
                    return;
                }
                // A part was taken, and the kernel did not wait.
                Ok(_) if taken > 0 => {}
                Err(libc::EINTR) => {}
                Ok(_) | Err(libc::EAGAIN | libc::EBUSY) => {
                    // Memory or room in the completion queue comes back as reads complete.
                    let _ = self.gate.enter(self.enter_fd, 0, 0, self.enter_flags | ENTER_GETEVENTS);
                    self.collect();
                    if !self.ready.is_empty() || self.woken {
                        return;
                    }
                    refusals += 1;
                    if refusals > REFUSALS_MAX {
                        return self.give_up(entered.err().unwrap_or(libc::EAGAIN));
                    }
                    thread::sleep((BACK_OFF_MIN * (1 << refusals.min(16))).min(BACK_OFF_MAX));
                }
                Err(errno) => return self.give_up(errno),
            }
        }
    }

    /// Moves the entries that the kernel has taken from `published` to `in_kernel`; returns how many.
    fn note_taken(&mut self) -> u32 {
        let left = self.held.ring.submission().len();
        let taken = self.published.len().saturating_sub(left);
        for tag in self.published.drain(..taken) {
            if tag == BELL_TAG {
                self.bell_state = BellState::InKernel;
            } else {
                self.in_kernel += 1;
            }
        }
        taken as u32
    }

    /// The ring failed: what it did not take fails once, and it is not given anything any more.
    fn give_up(&mut self, errno: i32) {
        for tag in self.published.drain(..) {
            if tag == BELL_TAG {
                self.bell_state = BellState::Unarmed;
            } else if self.slots.give_back(tag) {
                self.ready.push(Completion { tag, result: Err(errno) });
            }
        }
        self.failures += 1;
        self.state = if self.failures > FAILURES_MAX { State::Broken(errno) } else { State::Retiring };
        self.notes.push(format!(
            "io_uring_enter failed: {}; the reads that it did not take failed, and the ring is {}",
            io::Error::from_raw_os_error(errno),
            if self.failures > FAILURES_MAX { "given up; reopen the scheduler" } else { "replaced" }
        ));
        // Bounded: a report is read by people.
        self.notes.truncate(32);
    }

    /// Takes the completions that are visible.
    fn collect(&mut self) {
        for cqe in self.held.ring.completion() {
            let (tag, result) = (cqe.user_data(), cqe.result());
            if tag == BELL_TAG {
                self.bell_state = BellState::Unarmed;
                self.bell.heard();
                self.woken = true;
                // A doorbell that cannot be read would be read again and again, and nobody would be woken by it.
                if result < 0 && ![libc::EINTR, libc::EAGAIN, libc::ECANCELED].contains(&-result) {
                    self.state = State::Broken(-result);
                }
            } else if self.slots.give_back(tag) {
                self.in_kernel -= 1;
                let result = if result >= 0 { Ok(result as u32) } else { Err(-result) };
                self.ready.push(Completion { tag, result });
            }
        }
    }

    /// Puts a new ring in the place of a retiring one that holds no read of ours.
    fn replace(&mut self) {
        if !self.end_bell() {
            self.state = State::Broken(libc::EIO);
            return;
        }
        self.leave_ring();
        let renewed = setup::open(self.slots_max(), &descriptors(&self.files), &mut self.gate)
            .map_err(|refused| self.notes.push(refused.why))
            .and_then(|granted| {
                self.fixed_files = granted.fixed_files;
                self.in_flight_max = granted.in_flight_max;
                self.taskrun_flag = granted.has(SetupFlag::TaskrunFlag);
                self.deferred = granted.has(SetupFlag::DeferTaskrun);
                // Drops the old ring, which gives its registrations back before the new one asks for them.
                self.held.ring = granted.ring;
                self.take_ring(granted.flags).map_err(|e| self.notes.push(setup::describe("io_uring_register", &e)))
            });
        self.state = match renewed {
            Ok(()) => State::Whole,
            Err(()) => State::Broken(libc::EIO),
        };
        self.replaced += 1;
    }

    fn slots_max(&self) -> u32 {
        self.held.arena.slots()
    }

    /// Ends the doorbell's read if the kernel has it; whether it has ended.
    fn end_bell(&mut self) -> bool {
        let deadline = Instant::now() + BELL_END_MAX;
        if self.bell_state == BellState::InKernel {
            self.bell.strike();
        }
        while self.bell_state == BellState::InKernel && Instant::now() < deadline {
            let _ = self.gate.enter(self.enter_fd, 0, 0, self.enter_flags | ENTER_GETEVENTS);
            self.collect();
        }
        self.bell_state != BellState::InKernel
    }

    /// Gives the registered descriptor back; the ring can then be closed.
    fn leave_ring(&mut self) {
        if self.enter_flags != 0 {
            setup::unregister_ring(&self.held.ring, self.enter_fd);
            self.enter_fd = self.held.ring.as_raw_fd();
            self.enter_flags = 0;
        }
    }

    /// Whether a look without waiting has to enter the kernel to see completions.
    fn must_enter_to_look(&mut self) -> bool {
        if self.in_kernel == 0 && self.bell_state != BellState::InKernel {
            return false;
        }
        if self.taskrun_flag { self.held.ring.submission().taskrun() } else { self.deferred }
    }

    fn fail_waiting(&mut self, errno: i32) {
        for op in self.waiting.drain(..) {
            if self.slots.give_back(op.tag) {
                self.ready.push(Completion { tag: op.tag, result: Err(errno) });
            }
        }
    }

    /// Hands out what is ready. An error only if there is nothing else to tell.
    fn hand_out(&mut self, out: &mut Vec<Completion>) -> Result<(), i32> {
        if self.held.ring.completion().overflow() > 0 && self.state == State::Whole {
            self.notes.push("completions overflowed the ring, which cannot happen; please report it".into());
            self.state = State::Broken(libc::EOVERFLOW);
        }
        self.woken = false;
        match self.state {
            State::Broken(errno) => {
                self.fail_waiting(errno);
                if self.ready.is_empty() {
                    return Err(errno);
                }
            }
            State::Whole | State::Retiring => {}
        }
        out.append(&mut self.ready);
        Ok(())
    }
}

fn read_entry(fd: impl Target, to: *mut u8, op: &ReadOp, fixed_buffers: bool) -> squeue::Entry {
    if fixed_buffers { fd.read_fixed(to, op) } else { fd.read(to, op) }.user_data(op.tag)
}

/// A registered file or a descriptor; the crate's own trait for both is sealed.
trait Target {
    fn read(self, to: *mut u8, op: &ReadOp) -> squeue::Entry;
    fn read_fixed(self, to: *mut u8, op: &ReadOp) -> squeue::Entry;
}

macro_rules! target {
    ($($fd:ty),*) => {$(
        impl Target for $fd {
            fn read(self, to: *mut u8, op: &ReadOp) -> squeue::Entry {
                opcode::Read::new(self, to, op.len).offset(op.offset).build()
            }
            fn read_fixed(self, to: *mut u8, op: &ReadOp) -> squeue::Entry {
                opcode::ReadFixed::new(self, to, op.len, 0).offset(op.offset).build()
            }
        }
    )*};
}
target!(types::Fixed, types::Fd);

impl Backend for UringBackend {
    fn alignment(&self, file: FileId) -> u32 {
        self.files.alignment(file)
    }

    fn slot_bytes(&self) -> u32 {
        self.held.arena.slot_bytes()
    }

    fn slots(&self) -> u32 {
        self.slots_max()
    }

    #[inline]
    fn queue(&mut self, op: ReadOp) {
        assert!((op.file.0 as usize) < self.files.len(), "no file {:?}", op.file);
        self.slots.take(&op, &self.held.arena);
        self.waiting.push_back(op);
    }

    fn submit(&mut self) {
        if self.state != State::Whole {
            return; // `reap` replaces the ring or fails the reads.
        }
        self.publish_all();
        if !self.published.is_empty() {
            self.enter(0, 0);
        }
    }

    fn reap(&mut self, wait: Wait, out: &mut Vec<Completion>) -> Result<(), i32> {
        debug_assert_eq!(self.owner, thread::current().id(), "a ring belongs to the thread that built it");
        if self.state == State::Retiring && self.in_kernel == 0 {
            self.replace();
        }
        if matches!(self.state, State::Broken(_)) && self.in_kernel == 0 {
            return self.hand_out(out);
        }
        self.publish_all();
        self.collect();
        let something = !self.ready.is_empty() || self.woken;
        let min_complete = match wait {
            Wait::Poll => 0,
            Wait::Completion => u32::from(!something && (self.in_kernel > 0 || self.published_reads() > 0)),
            Wait::Wake => u32::from(!something),
        };
        if min_complete > 0 {
            self.arm_bell();
        }
        let submits = self.state == State::Whole && !self.published.is_empty();
        if submits || min_complete > 0 || (!something && self.must_enter_to_look()) {
            self.enter(min_complete, ENTER_GETEVENTS);
            self.collect();
        }
        self.hand_out(out)
    }

    #[inline]
    fn slot(&self, slot: u32) -> &[u8] {
        self.slots.assert_home(slot);
        // SAFETY: the slot is not out, so that the kernel does not write to it, and it cannot be queued while `self` is borrowed.
        unsafe { self.held.arena.slot(slot) }
    }

    fn waker(&self) -> Arc<dyn WakeBackend> {
        self.bell.clone()
    }

    fn drain(&mut self, timeout: Duration) -> usize {
        let deadline = Instant::now() + timeout;
        self.drained = true;
        // From here on nothing is submitted: entries still published stay in a queue that the kernel is never told to look at.
        self.state = State::Broken(libc::ESHUTDOWN);
        let published = self.published.drain(..).filter(|&tag| tag != BELL_TAG);
        for tag in published.chain(self.waiting.drain(..).map(|op| op.tag)) {
            self.slots.give_back(tag);
        }
        if self.bell_state == BellState::Published {
            self.bell_state = BellState::Unarmed;
        }
        loop {
            self.collect();
            self.ready.clear();
            if self.in_kernel == 0 || Instant::now() >= deadline {
                return self.in_kernel as usize;
            }
            self.enters += 1;
            let _ = self.gate.enter(self.enter_fd, 0, 0, self.enter_flags | ENTER_GETEVENTS);
            thread::sleep(BACK_OFF_MIN);
        }
    }

    fn report(&self) -> BackendReport {
        let mut notes = self.files.notes().to_vec();
        notes.extend(self.notes.iter().cloned());
        if self.slots.unknown_tags() > 0 {
            notes.push(format!("{} completions belonged to no read; please report it", self.slots.unknown_tags()));
        }
        if self.replaced > 0 {
            notes.push(format!("the ring was replaced {} times", self.replaced));
        }
        BackendReport {
            backend: "io-uring",
            direct: self.files.all_direct(),
            flags: self.flags.clone(),
            notes,
            enters: self.enters,
        }
    }
}

impl Drop for UringBackend {
    fn drop(&mut self) {
        if self.process.is_forked_child() {
            // A child of fork(2): the ring is the parent's, and its pages are not mapped here. `held` is left as it is.
            return;
        }
        let here = self.owner == thread::current().id();
        if here {
            self.drain(if self.drained { Duration::ZERO } else { DROP_DRAIN_MAX });
            self.end_bell();
            self.leave_ring();
        }
        if self.in_kernel > 0 {
            return; // Leaked: the kernel may still write to the arena.
        }
        if self.bell_state != BellState::InKernel {
            // SAFETY: dropped once, here; the kernel has ended the only read into it.
            unsafe { ManuallyDrop::drop(&mut self.held.bell_page) };
        }
        // SAFETY: dropped once, here, and not used again; the kernel holds no read into the arena, and the ring, whose registration
        // pins it, is dropped before it.
        unsafe { ManuallyDrop::drop(&mut self.held) };
    }
}
