//! A disk in memory with a clock of its own: deterministic reads, latencies, reordering and faults, without threads.
//!
//! Why: the scheduler's walks, simulations and failure tests need every order of completions and every error, at will and again. One
//! [`SimulatedDisk`] serves any number of [`SimulatedBackend`]s (one per actor) in any number of disks per process; the handle adds
//! faults while they run and tells what was read.
//!
//! Invariants:
//! - What happens depends on the seed, the content and the order of calls, never on real time.
//! - Bytes are written to the slot when the read *completes*; until then a debug build's poison shows whoever looks too early.
//! - The virtual clock only moves in `reap`: to the next completion (`Wait::Completion`), or by one microsecond (`Wait::Poll`).

use super::wake::Sleeper;
use super::{Arena, Backend, BackendReport, Completion, ReadOp, Wait, WakeBackend, slots::Slots};
use crate::sync::{Arc, AtomicBool, Mutex, MutexGuard, Ordering};
use engram_store::FileId;
use std::ops::Range;
use std::time::Duration;

/// A fault, until it has struck `times` times. The first fault that fits a read decides; faults strike when a read is started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SimulatedFault {
    /// Reads that touch the range fail with this error number (`EIO`; `EAGAIN` or `EINTR` for a burst of them).
    Fail {
        /// The file.
        file: FileId,
        /// Bytes of the file.
        range: Range<u64>,
        /// The error number.
        errno: i32,
        /// How often; `u32::MAX`: always.
        times: u32,
    },
    /// Reads that touch the range give at most `bytes` bytes.
    Short {
        /// The file.
        file: FileId,
        /// Bytes of the file.
        range: Range<u64>,
        /// Bytes given.
        bytes: u32,
        /// How often; `u32::MAX`: always.
        times: u32,
    },
    /// Reads that touch the range do not complete before [`SimulatedDisk::release`].
    Stall {
        /// The file.
        file: FileId,
        /// Bytes of the file.
        range: Range<u64>,
        /// How often; `u32::MAX`: always.
        times: u32,
    },
    /// The next reads of any file fail with this error number.
    Burst {
        /// The error number.
        errno: i32,
        /// How many reads.
        times: u32,
    },
    /// After `reads` more reads were started, `reap` fails with this error number for good.
    Break {
        /// The error number.
        errno: i32,
        /// Reads that still pass.
        reads: u32,
    },
    /// After `reads` more reads were started, starting one panics, once.
    Panic {
        /// Reads that still pass.
        reads: u32,
    },
}

impl SimulatedFault {
    /// Whether it decides the fate of this read.
    fn fits(&self, op: &ReadOp) -> bool {
        match self {
            Self::Fail { file, range, times, .. }
            | Self::Short { file, range, times, .. }
            | Self::Stall { file, range, times } => {
                let touches = range.start < op.offset + u64::from(op.len) && op.offset < range.end;
                *times > 0 && *file == op.file && touches
            }
            Self::Burst { times, .. } => *times > 0,
            Self::Break { .. } | Self::Panic { .. } => false,
        }
    }

    /// Counts one strike.
    fn strike(&mut self) {
        if let Self::Fail { times, .. }
        | Self::Short { times, .. }
        | Self::Stall { times, .. }
        | Self::Burst { times, .. } = self
            && *times != u32::MAX
        {
            *times -= 1;
        }
    }
}

/// A read that was started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoggedRead {
    /// Which backend of the disk, in the order of their making.
    pub backend: u32,
    /// The read.
    pub op: ReadOp,
    /// Virtual time of its start.
    pub at_us: u64,
}

type Content = Box<dyn FnMut(FileId, u64, &mut [u8]) + Send>;

/// A disk and its clock; a clone is another handle on the same disk.
#[derive(Clone)]
pub struct SimulatedDisk {
    state: Arc<Mutex<Disk>>,
    /// Whether a sleep with nothing to come really waits.
    blocking: Arc<AtomicBool>,
}

struct Disk {
    lens: Vec<u64>,
    content: Content,
    random: SplitMix,
    latency_us: Range<u64>,
    alignment: u32,
    now_us: u64,
    faults: Vec<SimulatedFault>,
    /// Grows with every release; a stalled read remembers the value it waits to be exceeded.
    releases: u64,
    broken: Option<i32>,
    log: Option<Vec<LoggedRead>>,
    sleepers: Vec<Arc<Sleeper<()>>>,
}

/// SplitMix64: enough randomness for latencies, and the same everywhere.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn within(&mut self, range: &Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start).max(1)
    }
}

impl SimulatedDisk {
    /// A disk with these files. Reads take 80 to 120 virtual microseconds, any offset will do, and every read is logged.
    pub fn new(seed: u64, images: Vec<Vec<u8>>) -> Self {
        let lens = images.iter().map(|image| image.len() as u64).collect();
        Self::with_content(seed, lens, move |file, offset, to| {
            let from = offset as usize;
            to.copy_from_slice(&images[file.0 as usize][from..from + to.len()]);
        })
    }

    /// A disk with files of these lengths, whose bytes `content(file, offset, to)` gives; it is never asked beyond a file's end.
    pub fn with_content(
        seed: u64,
        lens: Vec<u64>,
        content: impl FnMut(FileId, u64, &mut [u8]) + Send + 'static,
    ) -> Self {
        Self {
            state: Arc::new(Mutex::new(Disk {
                lens,
                content: Box::new(content),
                random: SplitMix(seed),
                latency_us: 80..121,
                alignment: 1,
                now_us: 0,
                faults: Vec::new(),
                releases: 0,
                broken: None,
                log: Some(Vec::new()),
                sleepers: Vec::new(),
            })),
            blocking: Arc::new(AtomicBool::new(true)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Disk> {
        // A panic under the lock is one that a test asked for (`SimulatedFault::Panic`, or its content closure).
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A backend on this disk.
    ///
    /// # Panics
    /// If there are no slots, or `slot_bytes` is not a multiple of 4096.
    pub fn backend(&self, slots: u32, slot_bytes: u32) -> SimulatedBackend {
        let arena = match Arena::reserve(slots, slot_bytes) {
            Ok(arena) => arena,
            Err(e) => panic!("{e}"),
        };
        let sleeper = Arc::new(Sleeper::new(()));
        let mut disk = self.lock();
        disk.sleepers.push(sleeper.clone());
        let index = disk.sleepers.len() as u32 - 1;
        drop(disk);
        SimulatedBackend {
            disk: self.clone(),
            index,
            arena,
            slots: Slots::new(slots),
            queued: Vec::with_capacity(slots as usize),
            flying: Vec::with_capacity(slots as usize),
            order: 0,
            sleeper,
            reaps: 0,
        }
    }

    /// Sets how long reads take, in virtual microseconds: the wider the range, the more they overtake each other.
    pub fn set_latency_us(&self, latency_us: Range<u64>) {
        self.lock().latency_us = latency_us;
    }

    /// Sets the alignment that backends ask for; a read that breaks it fails with `EINVAL`, as on a real disk.
    pub fn set_alignment(&self, alignment: u32) {
        self.lock().alignment = alignment;
    }

    /// Whether `Wait::Wake`, and `Wait::Completion` with nothing but stalled reads, really wait for a wake or a release (the default),
    /// or return at once with nothing, as a simulation that drives all actors from one thread needs.
    pub fn set_blocking(&self, blocking: bool) {
        // Relaxed: set before the backends run; it guards no other memory.
        self.blocking.store(blocking, Ordering::Relaxed);
    }

    /// Shortens (or lengthens) a file under its readers.
    pub fn set_len(&self, file: FileId, len: u64) {
        self.lock().lens[file.0 as usize] = len;
    }

    /// Adds a fault.
    pub fn add_fault(&self, fault: SimulatedFault) {
        self.lock().faults.push(fault);
    }

    /// Takes all faults back, and repairs what broke; stalled reads stay stalled.
    pub fn clear_faults(&self) {
        let mut disk = self.lock();
        disk.faults.clear();
        disk.broken = None;
    }

    /// Lets the reads that are stalled now complete.
    pub fn release(&self) {
        let mut disk = self.lock();
        disk.releases += 1;
        let sleepers = disk.sleepers.clone();
        drop(disk);
        sleepers.iter().for_each(|sleeper| sleeper.wake());
    }

    /// The virtual clock.
    pub fn now_us(&self) -> u64 {
        self.lock().now_us
    }

    /// Whether reads are logged (they are, unless told otherwise).
    pub fn set_logging(&self, logging: bool) {
        let mut disk = self.lock();
        disk.log = logging.then(|| disk.log.take().unwrap_or_default());
    }

    /// Takes the log of the reads started since the last call.
    pub fn take_log(&self) -> Vec<LoggedRead> {
        self.lock().log.as_mut().map(std::mem::take).unwrap_or_default()
    }
}

/// What is to become of a read.
#[derive(Clone, Copy)]
enum Fate {
    Read { bytes_max: u32 },
    Fail(i32),
}

impl Disk {
    /// Starts a read: its fate, and the release it waits for, if any.
    fn start(&mut self, backend: u32, op: &ReadOp) -> (Fate, Option<u64>) {
        let at_us = self.now_us;
        if let Some(log) = &mut self.log {
            log.push(LoggedRead { backend, op: *op, at_us });
        }
        let wide = u64::from(self.alignment);
        if [op.offset, u64::from(op.len), u64::from(op.slot_offset)].iter().any(|n| n % wide != 0) {
            return (Fate::Fail(libc::EINVAL), None);
        }
        for fault in &mut self.faults {
            match fault {
                SimulatedFault::Break { errno, reads: 0 } => self.broken = Some(*errno),
                SimulatedFault::Break { reads, .. } => *reads -= 1,
                SimulatedFault::Panic { reads } if *reads == u32::MAX => {}
                SimulatedFault::Panic { reads: reads @ 0 } => {
                    *reads = u32::MAX;
                    panic!("the simulated disk was told to panic");
                }
                SimulatedFault::Panic { reads } => *reads -= 1,
                _ => {}
            }
        }
        let Some(fault) = self.faults.iter_mut().find(|fault| fault.fits(op)) else {
            return (Fate::Read { bytes_max: u32::MAX }, None);
        };
        fault.strike();
        match fault {
            SimulatedFault::Fail { errno, .. } | SimulatedFault::Burst { errno, .. } => (Fate::Fail(*errno), None),
            SimulatedFault::Short { bytes, .. } => (Fate::Read { bytes_max: *bytes }, None),
            _ => (Fate::Read { bytes_max: u32::MAX }, Some(self.releases)),
        }
    }
}

struct Flying {
    op: ReadOp,
    fate: Fate,
    due_us: u64,
    /// Reads due at once complete in the order of their start.
    order: u64,
    stalled_at: Option<u64>,
}

/// A backend on a [`SimulatedDisk`].
pub struct SimulatedBackend {
    disk: SimulatedDisk,
    index: u32,
    arena: Arena,
    slots: Slots,
    queued: Vec<ReadOp>,
    flying: Vec<Flying>,
    order: u64,
    sleeper: Arc<Sleeper<()>>,
    reaps: u64,
}

impl SimulatedBackend {
    /// Completes what is due, in order of time; reads in flight and not stalled stay sorted out by `due_us`.
    fn complete(&mut self, disk: &mut Disk, out: &mut Vec<Completion>) {
        loop {
            let due =
                |f: &Flying| f.stalled_at.is_none_or(|release| disk.releases > release) && f.due_us <= disk.now_us;
            let next = (0..self.flying.len())
                .filter(|&i| due(&self.flying[i]))
                .min_by_key(|&i| (self.flying[i].due_us, self.flying[i].order));
            let Some(next) = next else { return };
            let Flying { op, fate, .. } = self.flying.swap_remove(next);
            let result = match fate {
                Fate::Fail(errno) => Err(errno),
                Fate::Read { bytes_max } => {
                    let left = disk.lens[op.file.0 as usize].saturating_sub(op.offset);
                    let bytes = u64::from(op.len.min(bytes_max)).min(left) as u32;
                    // SAFETY: the slot is out for this read, and `&mut self` says that nobody looks at it.
                    let to = unsafe { self.arena.slot_mut(op.slot, op.slot_offset, bytes) };
                    if bytes > 0 {
                        (disk.content)(op.file, op.offset, to);
                    }
                    Ok(bytes)
                }
            };
            if self.slots.give_back(op.tag) {
                out.push(Completion { tag: op.tag, result });
            }
        }
    }

    /// When the next read of this backend is due, if there is one that is not stalled.
    fn next_due_us(&self, disk: &Disk) -> Option<u64> {
        let moving = |f: &&Flying| f.stalled_at.is_none_or(|release| disk.releases > release);
        self.flying.iter().filter(moving).map(|f| f.due_us).min()
    }
}

impl Backend for SimulatedBackend {
    fn alignment(&self, _file: FileId) -> u32 {
        self.disk.lock().alignment
    }

    fn slot_bytes(&self) -> u32 {
        self.arena.slot_bytes()
    }

    fn slots(&self) -> u32 {
        self.arena.slots()
    }

    fn queue(&mut self, op: ReadOp) {
        assert!((op.file.0 as usize) < self.disk.lock().lens.len(), "no file {:?}", op.file);
        self.slots.take(&op, &self.arena);
        self.queued.push(op);
    }

    fn submit(&mut self) {
        let handle = self.disk.clone();
        let mut disk = handle.lock();
        // One by one: if starting a read panics, it and those behind it have not been started, and `drain` gives them up.
        self.queued.reverse();
        while let Some(&op) = self.queued.last() {
            let (fate, stalled_at) = disk.start(self.index, &op);
            self.queued.pop();
            let latency_us = disk.latency_us.clone();
            let due_us = disk.now_us + disk.random.within(&latency_us);
            self.order += 1;
            self.flying.push(Flying { op, fate, due_us, order: self.order, stalled_at });
        }
    }

    fn reap(&mut self, wait: Wait, out: &mut Vec<Completion>) -> Result<(), i32> {
        self.submit();
        self.reaps += 1;
        let handle = self.disk.clone();
        let before = out.len();
        loop {
            let mut disk = handle.lock();
            if let Some(errno) = disk.broken {
                return Err(errno);
            }
            match (wait, self.next_due_us(&disk)) {
                (Wait::Poll, _) => disk.now_us += 1,
                (Wait::Completion | Wait::Wake, Some(due_us)) => disk.now_us = disk.now_us.max(due_us),
                (Wait::Completion | Wait::Wake, None) => {}
            }
            self.complete(&mut disk, out);
            drop(disk);
            let idle = match wait {
                Wait::Poll => false,
                Wait::Completion => !self.flying.is_empty(),
                Wait::Wake => true,
            };
            // Relaxed: see `set_blocking`.
            if out.len() > before || !idle || !handle.blocking.load(Ordering::Relaxed) {
                return Ok(());
            }
            drop(self.sleeper.sleep_until(self.sleeper.lock(), None, |()| false));
            if self.next_due_us(&handle.lock()).is_none() {
                return Ok(());
            }
        }
    }

    fn slot(&self, slot: u32) -> &[u8] {
        self.slots.assert_home(slot);
        // SAFETY: only `complete` writes, which takes `&mut self`.
        unsafe { self.arena.slot(slot) }
    }

    fn waker(&self) -> Arc<dyn WakeBackend> {
        self.sleeper.clone()
    }

    /// Lets virtual time run until only stalled reads are left; `timeout` is not waited for.
    fn drain(&mut self, _timeout: Duration) -> usize {
        for op in self.queued.drain(..) {
            self.slots.give_back(op.tag);
        }
        let handle = self.disk.clone();
        let mut disk = handle.lock();
        while let Some(due_us) = self.next_due_us(&disk) {
            disk.now_us = disk.now_us.max(due_us);
            self.complete(&mut disk, &mut Vec::new());
        }
        self.slots.out() as usize
    }

    fn report(&self) -> BackendReport {
        BackendReport {
            backend: "simulated",
            direct: false,
            flags: vec!["virtual-time".into()],
            notes: Vec::new(),
            enters: self.reaps,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(slot: u32, offset: u64) -> ReadOp {
        ReadOp { tag: 1 << 32 | u64::from(slot), file: FileId(0), offset, len: 4096, slot, slot_offset: 0 }
    }

    fn run(seed: u64) -> (Vec<Completion>, u64) {
        let disk = SimulatedDisk::new(seed, vec![vec![9; 1 << 16]]);
        disk.add_fault(SimulatedFault::Fail { file: FileId(0), range: 4096..8192, errno: libc::EIO, times: 1 });
        let mut backend = disk.backend(16, 4096);
        let mut out = Vec::new();
        for slot in 0..16 {
            backend.queue(op(slot, u64::from(slot) * 4096));
        }
        while out.len() < 16 {
            backend.reap(Wait::Completion, &mut out).unwrap();
        }
        (out, disk.now_us())
    }

    #[test]
    fn the_seed_decides_everything() {
        assert_eq!(run(1), run(1));
        assert_ne!(run(1).0, run(2).0, "another order");
        let (out, now_us) = run(3);
        assert_eq!(out.iter().filter(|c| c.result == Err(libc::EIO)).count(), 1);
        assert!((80..121).contains(&now_us));
        assert!(!out.is_sorted_by_key(|c| c.tag), "reads overtake each other");
    }

    #[test]
    fn faults_strike_as_often_as_told() {
        let disk = SimulatedDisk::new(1, vec![vec![9; 1 << 16]]);
        let mut backend = disk.backend(1, 4096);
        let mut read = |offset| {
            let mut out = Vec::new();
            backend.queue(op(0, offset));
            backend.reap(Wait::Completion, &mut out).unwrap();
            out[0].result
        };
        disk.add_fault(SimulatedFault::Burst { errno: libc::EAGAIN, times: 2 });
        assert_eq!([read(0), read(0), read(0)], [Err(libc::EAGAIN), Err(libc::EAGAIN), Ok(4096)]);
        disk.add_fault(SimulatedFault::Short { file: FileId(0), range: 5000..5001, bytes: 512, times: u32::MAX });
        assert_eq!([read(0), read(4096), read(4096)], [Ok(4096), Ok(512), Ok(512)]);
        disk.clear_faults();
        assert_eq!([read(4096), read((1 << 16) - 100), read(1 << 20)], [Ok(4096), Ok(100), Ok(0)]);
        disk.set_alignment(512);
        assert_eq!([read(512), read(100)], [Ok(4096), Err(libc::EINVAL)]);
        assert_eq!(disk.take_log().len(), 11);
    }

    #[test]
    fn a_stalled_read_waits_for_release_and_breaks_are_for_good() {
        let disk = SimulatedDisk::new(1, vec![vec![9; 1 << 16]]);
        disk.set_blocking(false);
        disk.add_fault(SimulatedFault::Stall { file: FileId(0), range: 0..1, times: 1 });
        let mut backend = disk.backend(2, 4096);
        let mut out = Vec::new();
        backend.queue(op(0, 0));
        backend.queue(op(1, 4096));
        backend.reap(Wait::Completion, &mut out).unwrap();
        assert_eq!(out.len(), 1);
        backend.reap(Wait::Completion, &mut out).unwrap();
        assert_eq!((out.len(), backend.drain(Duration::ZERO)), (1, 1));
        disk.release();
        backend.reap(Wait::Completion, &mut out).unwrap();
        assert_eq!(out.len(), 2);
        disk.add_fault(SimulatedFault::Break { errno: libc::ENODEV, reads: 0 });
        backend.queue(op(0, 0));
        assert_eq!(backend.reap(Wait::Completion, &mut out), Err(libc::ENODEV));
        assert_eq!(backend.reap(Wait::Poll, &mut out), Err(libc::ENODEV));
    }
}
