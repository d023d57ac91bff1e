//! A memory map, for comparison only.
//!
//! Why: it is what many readers do, and the benchmark wants it as an arm. **It can die**: a page of a file that was truncated, or whose
//! network file system went away, raises SIGBUS, which no code here can turn into an error. Lengths are checked against `fstat` before
//! each copy, which makes that rare and cannot make it impossible. It is never the default.
//!
//! Invariants: a copy happens in `submit`, on the actor's thread; completions wait in a list until reaped.

use super::wake::Sleeper;
use super::{Arena, Backend, BackendReport, Completion, FileSet, ReadOp, Wait, WakeBackend, slots::Slots};
use crate::StartError;
use crate::sync::Arc;
use engram_store::FileId;
use memmap2::Mmap;
use std::time::Duration;

/// See the module.
pub struct MmapBackend {
    files: Arc<FileSet>,
    /// `None` for an empty file.
    maps: Box<[Option<Mmap>]>,
    arena: Arena,
    slots: Slots,
    queued: Vec<ReadOp>,
    done: Vec<Completion>,
    sleeper: Arc<Sleeper<()>>,
}

impl MmapBackend {
    /// Maps every file, without read-ahead.
    ///
    /// # Errors
    /// [`StartError::Open`] if a file cannot be mapped, [`StartError::Memory`] for the buffers.
    pub fn new(files: Arc<FileSet>, slots: u32, slot_bytes: u32) -> Result<Self, StartError> {
        let arena = Arena::reserve(slots, slot_bytes)?;
        let maps = (0..files.len() as u32)
            .map(|i| {
                let id = FileId(i);
                let fail = |source| StartError::Open { path: files.path(id).into(), source };
                let file = files.file(id);
                if file.metadata().map_err(fail)?.len() == 0 {
                    return Ok(None);
                }
                // SAFETY: the map is only ever copied from, byte by byte, so that a file changed by others shows other bytes and
                // no broken invariant; a file truncated by others is the SIGBUS that the module warns of.
                let map = unsafe { Mmap::map(file) }.map_err(fail)?;
                map.advise(memmap2::Advice::Random).map_err(fail)?;
                Ok(Some(map))
            })
            .collect::<Result<_, StartError>>()?;
        Ok(Self {
            files,
            maps,
            arena,
            slots: Slots::new(slots),
            queued: Vec::with_capacity(slots as usize),
            done: Vec::with_capacity(slots as usize),
            sleeper: Arc::default(),
        })
    }

    fn copy(&self, op: &ReadOp) -> Result<u32, i32> {
        let len_now = self.files.file(op.file).metadata().map_err(|e| e.raw_os_error().unwrap_or(libc::EIO))?.len();
        let map: &[u8] = self.maps[op.file.0 as usize].as_deref().unwrap_or_default();
        let end = len_now.min(map.len() as u64);
        let bytes = u64::from(op.len).min(end.saturating_sub(op.offset)) as u32;
        if bytes > 0 {
            let from = op.offset as usize;
            // SAFETY: the slot is out for this read, and this thread alone uses the arena.
            let to = unsafe { self.arena.slot_mut(op.slot, op.slot_offset, bytes) };
            to.copy_from_slice(&map[from..from + bytes as usize]);
        }
        Ok(bytes)
    }
}

impl Backend for MmapBackend {
    fn alignment(&self, _file: FileId) -> u32 {
        1
    }

    fn slot_bytes(&self) -> u32 {
        self.arena.slot_bytes()
    }

    fn slots(&self) -> u32 {
        self.arena.slots()
    }

    fn queue(&mut self, op: ReadOp) {
        assert!((op.file.0 as usize) < self.files.len(), "no file {:?}", op.file);
        self.slots.take(&op, &self.arena);
        self.queued.push(op);
    }

    fn submit(&mut self) {
        let mut queued = std::mem::take(&mut self.queued);
        for op in queued.drain(..) {
            let result = self.copy(&op);
            self.done.push(Completion { tag: op.tag, result });
        }
        self.queued = queued;
    }

    fn reap(&mut self, wait: Wait, out: &mut Vec<Completion>) -> Result<(), i32> {
        self.submit();
        if wait == Wait::Wake && self.done.is_empty() {
            drop(self.sleeper.sleep_until(self.sleeper.lock(), None, |()| false));
        }
        for completion in self.done.drain(..) {
            if self.slots.give_back(completion.tag) {
                out.push(completion);
            }
        }
        Ok(())
    }

    fn slot(&self, slot: u32) -> &[u8] {
        self.slots.assert_home(slot);
        // SAFETY: only `copy` writes, which takes `&mut self` through `submit`.
        unsafe { self.arena.slot(slot) }
    }

    fn waker(&self) -> Arc<dyn WakeBackend> {
        self.sleeper.clone()
    }

    fn drain(&mut self, _timeout: Duration) -> usize {
        for tag in self.queued.drain(..).map(|op| op.tag).chain(self.done.drain(..).map(|c| c.tag)) {
            self.slots.give_back(tag);
        }
        self.slots.out() as usize
    }

    fn report(&self) -> BackendReport {
        let mut notes = self.files.notes().to_vec();
        notes.push("a memory map: a table truncated while it is open kills the process with SIGBUS".into());
        BackendReport { backend: "mmap", direct: false, flags: vec!["madvise-random".into()], notes, enters: 0 }
    }
}
