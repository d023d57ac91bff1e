//! I/O actor: turns plans into reads, and what was read into deposits.
//!
//! A struct with two steps and no thread of its own: [`IoActor::select`] finds out what there is to do and is the only one that waits;
//! [`IoActor::apply`] does it and never waits. Threads, tests and simulations drive it alike.
//!
//! Invariants:
//! - A buffer slot has one read; it is free, or with the backend, or being deposited from. Tags carry the slot's generation, so a
//!   completion is never taken for another read's.
//! - Every want is deposited exactly once, with its bytes or as a failure; only a close drops wants, as nobody waits for them then.
//! - A want fails only by a read of its own pages: wants of a larger read that failed are read once more, each alone.
//! - The actor announces sleep only with nothing in flight and nothing wanted.
//! - After the constructor nothing here allocates: the slab of wants bounds what is taken in, plans wait in their queue.

use crate::batch::{Backlog, PAGE_BYTES, Pages, Rank, Wanted};
use crate::core::Core;
use crate::io::{Backend, Completion, ReadOp, Wait};
use crate::limits::Resolved;
use crate::plan::{PLAN_GROUPS_MAX, PlanClass};
use crate::sync::{Arc, Ordering};
use engram_store::{Extent, FileId};
use std::collections::HashMap;

/// Wants taken in at a time; more plans wait in their queue.
const WANTS_MAX: usize = 16_384;

/// Wants of prompts and bulk work that are taken in, sorted, and waiting: some times the reads in flight.
const SORTED_WANTS: usize = 2048;

/// End of a list of wants.
const NIL: u32 = u32::MAX;

/// An extent of a row that a group needs.
#[derive(Clone, Copy, Debug)]
struct Want {
    group: u32,
    table: u16,
    head: u16,
    /// Bytes of the row before this extent.
    row_offset: u32,
    row: u64,
    rank: Rank,
    offset: u64,
    len: u32,
    /// It was part of a larger read that failed.
    alone: bool,
    /// Next want of the same read, or next free want.
    next: u32,
}

/// A buffer slot and the read that uses it.
#[derive(Clone, Copy, Debug)]
struct Read {
    generation: u32,
    pages: Pages,
    /// Bytes in place, from the start of the pages. What is asked for again is not in place until it comes again.
    done: u32,
    /// The most that ever was in place; a completion that does not go beyond is no progress.
    reached: u32,
    /// Completions without progress.
    attempts: u32,
    wants: u32,
    live: bool,
}

/// See the module text.
pub(crate) struct IoActor {
    core: Arc<Core>,
    index: usize,
    backend: Box<dyn Backend>,
    /// Extents that one plan can bring.
    plan_wants_max: usize,
    wants: Vec<Want>,
    free_want: u32,
    free_wants: usize,
    backlog: Backlog,
    reads: Vec<Read>,
    free_reads: Vec<u32>,
    /// Pages in flight and the slot of their read: a second wish joins it.
    pages: HashMap<(FileId, u64), u32, ahash::RandomState>,
    plans: Vec<(u32, PlanClass)>,
    completions: Vec<Completion>,
}

/// What [`IoActor::select`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Selected {
    /// Plans or completions, or nothing yet.
    Work,
    /// The queue is closed and empty, and nothing is in flight.
    Stop,
}

impl IoActor {
    pub(crate) fn new(core: Arc<Core>, index: usize, backend: Box<dyn Backend>) -> Self {
        let parts = core.tables.iter().map(|t| t.parts().len()).max().unwrap_or(1);
        let plan_wants_max = PLAN_GROUPS_MAX * core.geometry.heads * parts;
        let wants_max = WANTS_MAX.max(4 * plan_wants_max) + SORTED_WANTS;
        let rank = Rank::new(0, 0, 0);
        let (group, table, head, row_offset, row, offset, len, alone) = (0, 0, 0, 0, 0, 0, 0, false);
        let want = Want { group, table, head, row_offset, row, rank, offset, len, alone, next: NIL };
        let wants = (0..wants_max as u32).map(|i| Want { next: i + 1, ..want }).collect::<Vec<_>>();
        let slots = backend.slots().min(core.limits.slots());
        let slot_bytes = backend.slot_bytes();
        let pages = Pages { file: FileId(0), offset: 0, len: 0 };
        let read = Read { generation: 0, pages, done: 0, reached: 0, attempts: 0, wants: NIL, live: false };
        let pages_max = slots as usize * (slot_bytes as usize / PAGE_BYTES as usize);
        Self {
            index,
            plan_wants_max,
            free_want: 0,
            free_wants: wants.len(),
            backlog: Backlog::new(wants.len(), slot_bytes),
            wants,
            reads: vec![read; slots as usize],
            free_reads: (0..slots).rev().collect(),
            pages: HashMap::with_capacity_and_hasher(2 * pages_max, ahash::RandomState::new()),
            plans: Vec::with_capacity(wants_max),
            completions: Vec::with_capacity(2 * slots as usize),
            core,
            backend,
        }
    }

    /// Reads in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.reads.len() - self.free_reads.len()
    }

    /// Bytes of an actor's own tables, beside its read buffers.
    pub(crate) fn bookkeeping_bytes(limits: &Resolved) -> u64 {
        let wants = WANTS_MAX + SORTED_WANTS; // more only for unusual geometries
        let pages = limits.slots() as usize * (limits.slot_bytes as usize / PAGE_BYTES as usize);
        (wants * (size_of::<Want>() + size_of::<Wanted>() + size_of::<(u32, PlanClass)>()) + pages * 64) as u64
    }

    pub(crate) fn backend(&mut self) -> &mut dyn Backend {
        &mut *self.backend
    }

    /// Finds out what there is to do; waits for it if `may_wait` and there is nothing.
    ///
    /// # Errors
    /// The OS error of a broken I/O path.
    pub(crate) fn select(&mut self, may_wait: bool) -> Result<Selected, i32> {
        if self.core.doors[self.index].queue.is_closed() {
            self.discard();
        } else {
            self.take_plans();
        }
        let in_flight = self.in_flight();
        let may_sleep = may_wait && self.plans.is_empty();
        let queue = &self.core.doors[self.index].queue;
        if may_sleep && in_flight == 0 && queue.is_closed() && queue.is_empty() {
            return Ok(Selected::Stop);
        }
        // Asleep only where a new plan could start at once: at the limit of reads in flight it would have to wait for one anyway.
        let announces = may_sleep && in_flight < self.in_flight_max();
        if announces {
            queue.bell().announce();
        }
        let news = announces && (!queue.is_empty() || (in_flight == 0 && queue.is_closed()));
        let wait = match in_flight {
            _ if !may_sleep || news => Wait::Poll,
            0 => Wait::Wake,
            _ => Wait::Completion,
        };
        let reaped =
            if in_flight == 0 && wait == Wait::Poll { Ok(()) } else { self.backend.reap(wait, &mut self.completions) };
        if announces {
            self.core.doors[self.index].queue.bell().retract();
        }
        reaped?;
        Ok(Selected::Work)
    }

    /// Reads that may be in flight now: fewer while somebody waits for each token.
    fn in_flight_max(&self) -> usize {
        let limits = &self.core.limits;
        let interactive = self.core.interactive_live.load(Ordering::Relaxed) > 0;
        let max = if interactive { limits.in_flight_interactive } else { limits.in_flight_bulk };
        self.reads.len().min(max as usize)
    }

    /// After a close nobody waits for what has not been read: plans and wants are dropped, reads in flight are waited for.
    fn discard(&mut self) {
        let core = &self.core;
        for class in PlanClass::ALL {
            while let Some(plan) = core.doors[self.index].queue.pop(class as usize) {
                core.plans.done(plan);
            }
        }
        self.backlog.clear();
    }

    /// Takes plans out of the bands, the most urgent first: decode's as long as there is room, others only as far as it takes to keep
    /// the device busy and to sort well, so that a flood neither fills the slab nor holds up what has arrived.
    fn take_plans(&mut self) {
        let queue = &self.core.doors[self.index].queue;
        let mut room = self.free_wants;
        for class in PlanClass::ALL {
            let keep = if class <= PlanClass::DecodePrefetch { 0 } else { self.wants.len().saturating_sub(SORTED_WANTS) };
            while room >= self.plan_wants_max.max(keep) {
                let Some(plan) = queue.pop(class as usize) else { break };
                room -= self.plan_wants_max;
                self.plans.push((plan, class));
            }
        }
    }

    /// Does what [`IoActor::select`] found: deposits what has arrived, takes plans in, starts reads.
    pub(crate) fn apply(&mut self) {
        let mut completions = std::mem::take(&mut self.completions);
        for completion in completions.drain(..) {
            self.complete(completion);
        }
        self.completions = completions;
        let mut plans = std::mem::take(&mut self.plans);
        for (plan, class) in plans.drain(..) {
            self.take_in(plan, class);
        }
        self.plans = plans;
        self.start_reads();
    }

    fn take_in(&mut self, plan: u32, class: PlanClass) {
        let Self { core, index, wants, backlog, .. } = self;
        let stamp_ns = core.plans.stamp_ns(plan);
        for group in core.plans.groups(plan, *index) {
            let (table, rows) = core.group_rows(group);
            let rank = Rank::new(class as u8, stamp_ns, table as u16);
            for (head, row) in rows {
                let mut row_offset = 0;
                for part in 0..core.tables[table].parts().len() {
                    let Extent { file, offset, len } = core.tables[table].extent(part, row);
                    if core.placement.actor_of(file) == *index {
                        let want = self.free_want;
                        let slot = &mut wants[want as usize];
                        self.free_want = slot.next;
                        self.free_wants -= 1;
                        let (table, head) = (table as u16, head as u16);
                        *slot =
                            Want { group, table, head, row_offset, row, rank, offset, len, alone: false, next: NIL };
                        backlog.push(Wanted { rank, file, offset, len, want, alone: false });
                    }
                    row_offset += len;
                }
            }
        }
        core.plans.done(plan);
    }

    /// Starts reads up to the limit of reads in flight.
    fn start_reads(&mut self) {
        let in_flight_max = self.in_flight_max();
        let mut queued = false;
        while self.in_flight() < in_flight_max {
            let Some(first) = self.backlog.pop() else { break };
            if self.join_read(&first) {
                continue;
            }
            let slot = self.free_reads.pop().expect("fewer in flight than slots");
            let mut wants = NIL;
            let (backend, slab) = (&self.backend, &mut self.wants);
            let align = |file| u64::from(backend.alignment(file)).max(PAGE_BYTES);
            let mut count = 0;
            let pages = self.backlog.extend(&first, align, |wanted| {
                slab[wanted.want as usize].next = wants;
                wants = wanted.want;
                count += u64::from(!wanted.alone); // counted before, those
            });
            self.core.counters.extents.add(count);
            for page in pages.pages() {
                self.pages.insert((pages.file, page), slot);
            }
            let read = &mut self.reads[slot as usize];
            *read = Read { generation: read.generation, pages, done: 0, reached: 0, attempts: 0, wants, live: true };
            self.queue_rest(slot);
            queued = true;
        }
        if queued {
            self.backend.submit();
        }
    }

    /// Joins a want to a read in flight that covers it.
    fn join_read(&mut self, wanted: &Wanted) -> bool {
        let Some(&slot) = self.pages.get(&(wanted.file, wanted.offset / PAGE_BYTES)) else { return false };
        let own = own_pages(&*self.backend, wanted);
        let read = &mut self.reads[slot as usize];
        if !read.pages.covers(wanted) || (wanted.alone && read.pages != own) {
            return false;
        }
        self.wants[wanted.want as usize].next = read.wants;
        read.wants = wanted.want;
        self.core.counters.page_joins.add(1);
        true
    }

    /// Queues what a slot's read still lacks, from the last place where a read may begin: the bytes behind it are the backend's again.
    fn queue_rest(&mut self, slot: u32) {
        let read = &mut self.reads[slot as usize];
        read.generation = read.generation.wrapping_add(1);
        let align = (self.backend.alignment(read.pages.file)).max(1);
        read.done &= !(align - 1);
        let slot_offset = read.done;
        let op = ReadOp {
            tag: u64::from(read.generation) << 32 | u64::from(slot),
            file: read.pages.file,
            offset: read.pages.offset + u64::from(slot_offset),
            len: read.pages.len - slot_offset,
            slot,
            slot_offset,
        };
        self.backend.queue(op);
        let depth = (self.reads.len() - self.free_reads.len()) as u64;
        let counters = &self.core.counters;
        counters.reads.add(1);
        counters.read_bytes.add(u64::from(op.len));
        counters.depth_sum.add(depth);
    }

    /// The end of a read of the device: deposits, resumes, repeats or fails.
    fn complete(&mut self, completion: Completion) {
        let (slot, generation) = (completion.tag as u32, (completion.tag >> 32) as u32);
        let Some(read) = self.reads.get(slot as usize).copied().filter(|r| r.live && r.generation == generation) else {
            self.core.counters.completions_unknown.add(1);
            return;
        };
        let needed = self.wants_of(read.wants).map(|w| w.offset + u64::from(w.len)).max().unwrap_or(0);
        let needed = (needed - read.pages.offset) as u32;
        let retries = self.core.limits.retries;
        let read = &mut self.reads[slot as usize];
        let (errno, progress) = match completion.result {
            Ok(bytes) => {
                read.done += bytes;
                let progress = read.done > read.reached;
                read.reached = read.reached.max(read.done);
                if read.done >= needed || bytes == 0 {
                    return self.finish(slot, 0); // all there, or the file ends here
                }
                (0, progress)
            }
            Err(errno) if errno != libc::EINTR && errno != libc::EAGAIN => return self.finish(slot, errno),
            Err(errno) => (errno, false),
        };
        // Progress ends by itself. Without it: also at the end of a file, where a read begins again before the bytes that it has.
        if !progress {
            if read.attempts == retries {
                return self.finish(slot, errno);
            }
            read.attempts += 1;
        }
        self.core.counters.retries.add(1);
        self.resume(slot);
    }

    fn resume(&mut self, slot: u32) {
        self.queue_rest(slot);
        self.backend.submit();
    }

    fn wants_of(&self, first: u32) -> impl Iterator<Item = &Want> {
        let mut at = first;
        std::iter::from_fn(move || {
            let want = self.wants.get(at as usize)?;
            at = want.next;
            Some(want)
        })
    }

    /// Deposits the wants of a slot's read and frees the slot. Wants beyond the bytes in place fail with `errno` (0: end of file), if
    /// the read was theirs alone; else it may have failed by pages that they do not need, and they are read again by themselves.
    fn finish(&mut self, slot: u32, errno: i32) {
        let read = self.reads[slot as usize];
        let Self { core, backend, wants, backlog, .. } = self;
        let mut at = read.wants;
        while at != NIL {
            let want = wants[at as usize];
            let begin = (want.offset - read.pages.offset) as usize;
            let end = begin + want.len as usize;
            let Want { rank, offset, len, .. } = want;
            let wanted = Wanted { rank, file: read.pages.file, offset, len, want: at, alone: true };
            if end > read.done as usize && own_pages(&**backend, &wanted) != read.pages {
                wants[at as usize].alone = true;
                core.counters.retries.add(1);
                backlog.push(wanted);
                at = want.next;
                continue;
            }
            if end <= read.done as usize {
                let bytes = &backend.slot(slot)[begin..end];
                core.fill_group(want.group, want.table.into(), want.head.into(), want.row_offset as usize, bytes);
            } else {
                core.counters.reads_failed.add(1);
                core.groups[want.group as usize].key().failure.set(want.table.into(), want.row, read.pages.file, errno);
            }
            wants[at as usize].next = self.free_want;
            self.free_want = at;
            self.free_wants += 1;
            core.deposit_group(want.group);
            at = want.next;
        }
        for page in read.pages.pages() {
            if self.pages.get(&(read.pages.file, page)) == Some(&slot) {
                self.pages.remove(&(read.pages.file, page));
            }
        }
        self.reads[slot as usize].live = false;
        self.free_reads.push(slot);
    }

    /// Drives the actor on the calling thread until its queue is closed and empty.
    ///
    /// # Errors
    /// The OS error of a broken I/O path.
    pub(crate) fn run(&mut self) -> Result<(), i32> {
        while self.select(true)? != Selected::Stop {
            self.apply();
        }
        Ok(())
    }
}

/// What is read for a want if nothing is merged with it.
fn own_pages(backend: &dyn Backend, wanted: &Wanted) -> Pages {
    Pages::around(wanted, u64::from(backend.alignment(wanted.file)).max(PAGE_BYTES))
}
