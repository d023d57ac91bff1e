//! The pread pool: threads that each read into one slot at a time.
//!
//! Why: it needs nothing of the kernel but `pread`, so that it is what remains where io_uring is refused (seccomp, sysctl, old or other
//! systems). It costs about four times the CPU of the ring and reaches 0.7 of the device's rate.
//!
//! Invariants:
//! - A worker writes only to the slot of the job it took, between taking it and posting its completion.
//! - A panic in a reader becomes the completion `EIO` of that read; the worker lives on.
//! - Workers own the arena together with the backend: a read that never ends keeps its buffer alive, whatever is dropped.

use super::wake::Sleeper;
use super::{
    Arena, Backend, BackendOptions, BackendReport, Completion, FileSet, ReadAt, ReadOp, SpawnThread, Wait, WakeBackend,
    arena::PAGE_BYTES, slots::Slots,
};
use crate::StartError;
use crate::sync::process::Process;
use crate::sync::{Arc, AtomicU64, Condvar, Mutex, Ordering, thread};
use engram_store::FileId;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// Threads of the pool unless told otherwise; beyond about 32 the device gains nothing.
const THREADS_DEFAULT: u32 = 32;

/// See the module.
pub struct PreadBackend {
    files: Arc<FileSet>,
    shared: Arc<Shared>,
    workers: Vec<thread::JoinHandle<()>>,
    slots: Slots,
    queued: Vec<ReadOp>,
    notes: Vec<String>,
    /// The process that has the workers: a child of `fork(2)` has none.
    process: Process,
    /// Whether somebody has waited for the end already; dropping then does not wait again.
    drained: bool,
}

struct Shared {
    arena: Arena,
    reader: Arc<dyn ReadAt>,
    jobs: Mutex<Jobs>,
    job_there: Condvar,
    done: Arc<Sleeper<Vec<Completion>>>,
    reads: AtomicU64,
}

#[derive(Default)]
struct Jobs {
    queue: VecDeque<ReadOp>,
    closed: bool,
}

impl PreadBackend {
    /// Starts the pool. `reader` does the reads, and is the file set itself but in tests.
    ///
    /// # Errors
    /// [`StartError::Memory`] for the buffers; [`StartError::Spawn`] for a thread, after joining those that were started.
    pub fn new(
        files: Arc<FileSet>,
        reader: Arc<dyn ReadAt>,
        options: &BackendOptions,
        spawner: &dyn SpawnThread,
        notes: Vec<String>,
    ) -> Result<Self, StartError> {
        let arena = Arena::reserve(options.slots, options.slot_bytes)?;
        let wanted = if options.pread_threads == 0 { THREADS_DEFAULT } else { options.pread_threads };
        let threads = wanted.min(options.slots);
        let slots = options.slots as usize;
        let shared = Arc::new(Shared {
            arena,
            reader,
            jobs: Mutex::new(Jobs { queue: VecDeque::with_capacity(slots), closed: false }),
            job_there: Condvar::new(),
            done: Arc::new(Sleeper::new(Vec::with_capacity(slots))),
            reads: AtomicU64::new(0),
        });
        let process = Process::current().map_err(|source| StartError::Memory { bytes: PAGE_BYTES.into(), source })?;
        let mut backend = Self {
            files,
            slots: Slots::new(options.slots),
            queued: Vec::with_capacity(slots),
            workers: Vec::with_capacity(threads as usize),
            shared,
            notes,
            process,
            drained: false,
        };
        for i in 0..threads {
            let name = format!("engram-pread-{i}");
            let shared = backend.shared.clone();
            let body = Box::new(move || shared.work());
            // On failure `backend` is dropped, which closes the queue and joins the workers there are.
            let worker = spawner.spawn(name.clone(), body).map_err(|source| StartError::Spawn { name, source })?;
            backend.workers.push(worker);
        }
        Ok(backend)
    }

    /// Touches the arena from the calling thread, if no read was ever queued.
    pub(crate) fn touch(&mut self) {
        // Workers hold the arena too, so there is no `&mut` of it; they use it only for a job.
        let arena = &self.shared.arena;
        if self.slots.out() == 0 {
            for slot in 0..arena.slots() {
                // SAFETY: no read is out, so that no worker uses the arena, and the caller holds the backend by `&mut`.
                unsafe { arena.slot_mut(slot, 0, arena.slot_bytes()).fill(0) };
            }
        }
    }

    fn close(&self) {
        let mut jobs = self.shared.lock_jobs();
        jobs.closed = true;
        jobs.queue.clear();
        drop(jobs);
        self.shared.job_there.notify_all();
    }
}

impl Shared {
    fn lock_jobs(&self) -> crate::sync::MutexGuard<'_, Jobs> {
        // Nothing under this lock can panic half-way: pushes and pops within capacity.
        self.jobs.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The life of a worker.
    fn work(&self) {
        while let Some(op) = self.next_job() {
            let result = catch_unwind(AssertUnwindSafe(|| {
                // SAFETY: the slot is out for this read, which this worker alone took: nobody else uses its bytes until the
                // completion is posted below.
                let buffer = unsafe { self.arena.slot_mut(op.slot, op.slot_offset, op.len) };
                self.reader.read_at(op.file, buffer, op.offset)
            }));
            let result = match result {
                Ok(Ok(bytes)) => Ok(bytes as u32),
                Ok(Err(e)) => Err(e.raw_os_error().unwrap_or(libc::EIO)),
                Err(_panic) => Err(libc::EIO),
            };
            self.reads.fetch_add(1, Ordering::Relaxed);
            self.done.change(|done| done.push(Completion { tag: op.tag, result }));
        }
    }

    fn next_job(&self) -> Option<ReadOp> {
        let mut jobs = self.lock_jobs();
        loop {
            if jobs.closed {
                return None;
            }
            if let Some(op) = jobs.queue.pop_front() {
                return Some(op);
            }
            jobs = self.job_there.wait(jobs).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }
}

impl Backend for PreadBackend {
    fn alignment(&self, file: FileId) -> u32 {
        self.files.alignment(file)
    }

    fn slot_bytes(&self) -> u32 {
        self.shared.arena.slot_bytes()
    }

    fn slots(&self) -> u32 {
        self.shared.arena.slots()
    }

    fn queue(&mut self, op: ReadOp) {
        assert!((op.file.0 as usize) < self.files.len(), "no file {:?}", op.file);
        self.slots.take(&op, &self.shared.arena);
        self.queued.push(op);
    }

    fn submit(&mut self) {
        if self.queued.is_empty() {
            return;
        }
        let wake = self.queued.len().min(self.workers.len());
        self.shared.lock_jobs().queue.extend(self.queued.drain(..));
        for _ in 0..wake {
            self.shared.job_there.notify_one();
        }
    }

    fn reap(&mut self, wait: Wait, out: &mut Vec<Completion>) -> Result<(), i32> {
        self.submit();
        let done = &self.shared.done;
        let mut guard = done.lock();
        let nothing_out = self.slots.out() == 0;
        match wait {
            Wait::Poll => {}
            Wait::Completion if nothing_out => {}
            Wait::Completion | Wait::Wake => guard = done.sleep_until(guard, None, |done| !done.is_empty()),
        }
        for completion in guard.state.drain(..) {
            if self.slots.give_back(completion.tag) {
                out.push(completion);
            }
        }
        Ok(())
    }

    fn slot(&self, slot: u32) -> &[u8] {
        self.slots.assert_home(slot);
        // SAFETY: the slot is not out, so no worker writes to it, and it cannot be queued while `self` is borrowed.
        unsafe { self.shared.arena.slot(slot) }
    }

    fn waker(&self) -> Arc<dyn WakeBackend> {
        self.shared.done.clone()
    }

    fn drain(&mut self, timeout: Duration) -> usize {
        let deadline = Instant::now() + timeout;
        self.drained = true;
        for op in self.queued.drain(..) {
            self.slots.give_back(op.tag);
        }
        for op in std::mem::take(&mut self.shared.lock_jobs().queue) {
            self.slots.give_back(op.tag);
        }
        while self.slots.out() > 0 {
            let guard = self.shared.done.lock();
            let mut guard = self.shared.done.sleep_until(guard, Some(deadline), |done| !done.is_empty());
            for completion in guard.state.drain(..) {
                self.slots.give_back(completion.tag);
            }
            if Instant::now() >= deadline {
                break;
            }
        }
        self.slots.out() as usize
    }

    fn report(&self) -> BackendReport {
        let mut notes = self.files.notes().to_vec();
        notes.extend(self.notes.iter().cloned());
        BackendReport {
            backend: "pread",
            direct: self.files.all_direct(),
            flags: vec![format!("threads-{}", self.workers.len())],
            notes,
            // Each read is a call of its own.
            enters: self.shared.reads.load(Ordering::Relaxed),
        }
    }
}

impl Drop for PreadBackend {
    fn drop(&mut self) {
        if self.process.is_forked_child() {
            // A child of fork(2): the workers do not exist here, and their locks may be held for ever.
            self.workers.drain(..).for_each(std::mem::forget);
            std::mem::forget(self.shared.clone());
            return;
        }
        let stuck = self.drain(if self.drained { Duration::ZERO } else { super::DROP_DRAIN_MAX }) > 0;
        self.close();
        for worker in self.workers.drain(..) {
            // A worker that is stuck in a read is left alone: it owns its share of the arena and ends by itself.
            if !stuck || worker.is_finished() {
                let _ = worker.join();
            }
        }
    }
}
