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
//! - The actor announces sleep only with room for more reads in flight, and no plan that it could take in.
//! - A plan is held until all that the actor wants of it has been started. Plans that cannot be taken in yet wait in a list for each
//!   band, linked through the actor's notes on plans, so that one that was read out of turn leaves from the middle.
//! - Each band has wants of its own: a flood in one keeps none of the others from being taken in and sorted.
//! - After the constructor nothing here allocates: the slab of wants bounds what is taken in, the notes have a place for every plan.
//!
//! Raised plans come first, and of each only the groups that are wanted sooner: those not taken in yet are taken in with the better
//! rank, wants that wait get it, and what has been started stays as it is. When such a plan's turn comes, the rest of it is taken in.
//!
//! Failures: a read that was refused with `EAGAIN` is repeated after a pause that grows; nothing else waits for it. An actor whose reads
//! fail one after the other, in more places than one bad spot explains, ends service: its disk is gone.

mod plans;

use crate::batch::{Backlog, PAGE_BYTES, Pages, Rank, Wanted};
use crate::core::Core;
use crate::io::{Backend, Completion, ReadOp, Wait};
use crate::limits::Resolved;
use crate::plan::{Band, PLAN_GROUPS_MAX, URGENT_BAND};
use crate::sync::{Arc, Ordering, thread};
use engram_store::FileId;
use std::collections::HashMap;
use std::time::Duration;

/// Wants of decode, and of plans that were raised, that are taken in; more plans wait.
const WANTS_MAX: usize = 16_384;

/// Wants of each other band that are taken in and sorted: some times the reads in flight.
const SORTED_WANTS: usize = 2048;

/// Pause before the first repeat of a read that was refused with `EAGAIN`; it doubles up to the other.
const PAUSE_MIN_NS: u64 = 20_000;
const PAUSE_MAX_NS: u64 = 1_000_000;

/// The longest nap with a read paused: the first with nothing else in flight, the second while other reads may complete.
const NAP_ALONE_MAX_NS: u64 = 250_000;
const NAP_MAX_NS: u64 = 20_000;

/// End of a list.
const NIL: u32 = u32::MAX;

/// Lists of plans: those that wait, one for each band, and those that are taken in and not started whole.
const LISTS: usize = Band::ALL.len() + 1;
const TAKEN_IN: u8 = Band::ALL.len() as u8;
/// In no list: not (or no longer) the actor's, or raised before it came through its own band.
const UNLISTED: u8 = u8::MAX;

/// What the actor knows of a plan that it holds.
#[derive(Clone, Copy, Debug)]
struct PlanNote {
    /// Groups whose wants were taken in.
    taken: u64,
    /// Its wants in the backlog.
    wants: u32,
    list: u8,
    previous: u32,
    next: u32,
}

const NO_NOTE: PlanNote = PlanNote { taken: 0, wants: NIL, list: UNLISTED, previous: NIL, next: NIL };

/// First and last of a list of plans.
#[derive(Clone, Copy, Debug)]
struct PlanList {
    first: u32,
    last: u32,
}

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
    /// The band whose room it takes.
    account: Band,
    /// Next want of the same read, or next free want.
    next: u32,
    /// Its group's place in the plan, and its neighbours among the plan's wants in the backlog; for a want that was not started yet.
    bit: u8,
    plan: u32,
    plan_previous: u32,
    plan_next: u32,
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
    /// It counts among those of bulk and speculative rows.
    bulk: bool,
    live: bool,
}

/// Reads that failed one after the other, without one that did not.
#[derive(Debug, Default)]
struct FailureRun {
    /// Failures that one bad spot does not explain.
    count: u32,
    /// Where that spot would be: what the last failures have in common.
    spot: Option<Pages>,
}

impl FailureRun {
    /// Counts a failed read; returns how many there are that are not the same spot's.
    fn failed(&mut self, pages: Pages) -> u32 {
        self.spot = match self.spot {
            Some(spot) if spot.file == pages.file && spot.offset < pages.end() && pages.offset < spot.end() => {
                let offset = spot.offset.max(pages.offset);
                Some(Pages { offset, len: (spot.end().min(pages.end()) - offset) as u32, ..spot })
            }
            _ => {
                self.count += 1;
                Some(pages)
            }
        };
        self.count
    }
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
    /// Wants that each band may still take in.
    room: [usize; Band::ALL.len()],
    backlog: Backlog,
    reads: Vec<Read>,
    free_reads: Vec<u32>,
    /// Reads of bulk and speculative rows in flight.
    bulk_in_flight: usize,
    /// Slots of reads that are to be repeated, and when. They count as in flight.
    paused: Vec<(u32, u64)>,
    failures: FailureRun,
    /// Pages in flight and the slot of their read: a second wish joins it.
    pages: HashMap<(FileId, u64), u32, ahash::RandomState>,
    /// By plan.
    notes: Box<[PlanNote]>,
    lists: [PlanList; LISTS],
    /// Raised plans that `select` found.
    raised: Vec<u32>,
    /// Of these, the first ones wait for room.
    raised_waiting: usize,
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
        let mut room = [SORTED_WANTS.max(2 * plan_wants_max); Band::ALL.len()];
        room[Band::Decode as usize] = WANTS_MAX.max(4 * plan_wants_max);
        let wants_max = room.iter().sum::<usize>();
        let want = Want {
            group: 0,
            table: 0,
            head: 0,
            row_offset: 0,
            row: 0,
            rank: Rank::new(0, 0, 0),
            offset: 0,
            len: 0,
            alone: false,
            account: Band::Decode,
            next: NIL,
            bit: 0,
            plan: NIL,
            plan_previous: NIL,
            plan_next: NIL,
        };
        let wants = (0..wants_max as u32).map(|i| Want { next: i + 1, ..want }).collect::<Vec<_>>();
        let slots = backend.slots().min(core.limits.slots());
        let slot_bytes = backend.slot_bytes();
        let pages = Pages { file: FileId(0), offset: 0, len: 0 };
        let read =
            Read { generation: 0, pages, done: 0, reached: 0, attempts: 0, wants: NIL, bulk: false, live: false };
        let pages_max = slots as usize * (slot_bytes as usize / PAGE_BYTES as usize);
        Self {
            index,
            plan_wants_max,
            free_want: 0,
            raised: Vec::with_capacity(core.limits.plans() as usize),
            raised_waiting: 0,
            room,
            backlog: Backlog::new(wants.len(), slot_bytes, core.limits.ageing_ns),
            wants,
            reads: vec![read; slots as usize],
            free_reads: (0..slots).rev().collect(),
            pages: HashMap::with_capacity_and_hasher(2 * pages_max, ahash::RandomState::new()),
            bulk_in_flight: 0,
            paused: Vec::with_capacity(slots as usize),
            failures: FailureRun::default(),
            notes: vec![NO_NOTE; core.limits.plans() as usize].into(),
            lists: [PlanList { first: NIL, last: NIL }; LISTS],
            completions: Vec::with_capacity(2 * slots as usize),
            core,
            backend,
        }
    }

    /// Reads in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.reads.len() - self.free_reads.len()
    }

    /// Bytes of an actor's own tables for each plan.
    pub(crate) const PLAN_BYTES: usize = size_of::<PlanNote>();

    /// Bytes of an actor's own tables, beside its read buffers and [`Self::PLAN_BYTES`].
    pub(crate) fn bookkeeping_bytes(limits: &Resolved) -> u64 {
        let wants = WANTS_MAX + (Band::ALL.len() - 1) * SORTED_WANTS; // more only for unusual geometries
        let pages = limits.slots() as usize * (limits.slot_bytes as usize / PAGE_BYTES as usize);
        (wants * (size_of::<Want>() + Backlog::WANT_BYTES) + pages * 64) as u64
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
        self.repeat_paused();
        let in_flight = self.in_flight();
        let may_sleep = may_wait && !self.can_take_in_raised() && !self.can_take_in() && self.paused.is_empty();
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
        if may_wait {
            self.nap();
        }
        Ok(Selected::Work)
    }

    /// With reads paused there is nothing to be woken by when a pause ends: the actor naps, for less than a pause, instead of spinning.
    fn nap(&self) {
        let Some(due_ns) = self.paused.iter().map(|p| p.1).min() else { return };
        if !self.completions.is_empty() || self.can_take_in_raised() || self.can_take_in() {
            return;
        }
        let nap_max_ns = if self.paused.len() == self.in_flight() { NAP_ALONE_MAX_NS } else { NAP_MAX_NS };
        thread::sleep(Duration::from_nanos(due_ns.saturating_sub(self.core.now_ns()).min(nap_max_ns)));
    }

    /// Queues the reads whose pause has ended.
    fn repeat_paused(&mut self) {
        if self.paused.is_empty() {
            return;
        }
        let now_ns = self.core.now_ns();
        for at in (0..self.paused.len()).rev() {
            if self.paused[at].1 <= now_ns {
                let (slot, _) = self.paused.swap_remove(at);
                self.resume(slot);
            }
        }
    }

    /// Reads that may be in flight now: fewer while somebody waits for each token.
    fn in_flight_max(&self) -> usize {
        let limits = &self.core.limits;
        let interactive = self.core.interactive_live.load(Ordering::Relaxed) > 0;
        let max = if interactive { limits.in_flight_interactive } else { limits.in_flight_bulk };
        self.reads.len().min(max as usize)
    }

    /// After a close nobody waits for what has not been read: plans, wants and repeats are dropped, reads in flight are waited for.
    fn discard(&mut self) {
        let core = Arc::clone(&self.core);
        for band in 0..=URGENT_BAND {
            while let Some(plan) = core.doors[self.index].queue.pop(band) {
                core.plans.done(plan);
            }
        }
        for plan in self.raised.drain(..) {
            core.plans.done(plan);
        }
        self.raised_waiting = 0;
        for list in 0..LISTS {
            while self.lists[list].first != NIL {
                let plan = self.lists[list].first;
                self.unlist(plan);
                core.plans.done(plan);
            }
        }
        self.backlog.clear();
        while let Some((slot, _)) = self.paused.pop() {
            self.free_read(slot);
        }
    }

    /// Does what [`IoActor::select`] found: deposits what has arrived, takes plans in, starts reads.
    pub(crate) fn apply(&mut self) {
        let mut completions = std::mem::take(&mut self.completions);
        for completion in completions.drain(..) {
            self.complete(completion);
        }
        self.completions = completions;
        self.take_in_all_raised(true);
        for band in Band::ALL {
            while let Some(plan) = self.next_plan(band) {
                self.unlist(plan);
                self.list(plan, TAKEN_IN);
                let groups = self.core.plans.share(plan, self.index) & !self.notes[plan as usize].taken;
                self.take_in(plan, groups, self.core.plans.urgency(plan), band);
                self.release_if_started(plan);
            }
        }
        self.start_reads();
        if !self.raised.is_empty() {
            // A plan that has been started is given back, whoever still waits for room. Nothing new: it would not be started before
            // something else happens.
            self.take_in_all_raised(false);
        }
    }

    /// Starts reads up to the limit of reads in flight.
    fn start_reads(&mut self) {
        let in_flight_max = self.in_flight_max();
        let mut queued = false;
        let now_ns = self.core.now_ns();
        while self.in_flight() < in_flight_max {
            let bulk = self.bulk_in_flight < self.bulk_in_flight_max();
            let Some(first) = self.backlog.pop(now_ns, bulk) else { break };
            self.leave_plan(first.want);
            if self.core.is_abandoned(self.wants[first.want as usize].group) {
                self.deposit(first.want);
                continue;
            }
            if self.join_read(&first) {
                continue;
            }
            let slot = self.free_reads.pop().expect("fewer in flight than slots");
            let Self { backend, wants: slab, backlog, core, .. } = self;
            let align = |file| u64::from(backend.alignment(file)).max(PAGE_BYTES);
            let (mut wants, mut abandoned) = (first.want, NIL);
            slab[first.want as usize].next = NIL;
            let mut count = u64::from(!first.alone); // counted before, those
            let pages = backlog.extend(&first, align, |wanted| {
                let want = &mut slab[wanted.want as usize];
                let needed = !core.is_abandoned(want.group);
                let list = if needed { &mut wants } else { &mut abandoned };
                want.next = std::mem::replace(list, wanted.want);
                count += u64::from(needed && !wanted.alone);
                needed
            });
            self.core.counters.extents.add(count);
            for page in pages.pages() {
                self.pages.insert((pages.file, page), slot);
            }
            let bulk = first.rank.is_bulk();
            self.bulk_in_flight += usize::from(bulk);
            let read = &mut self.reads[slot as usize];
            let generation = read.generation;
            *read = Read { generation, pages, done: 0, reached: 0, attempts: 0, wants, bulk, live: true };
            let mut at = wants;
            while at != NIL {
                self.leave_plan(at);
                at = self.wants[at as usize].next;
            }
            while abandoned != NIL {
                let next = self.wants[abandoned as usize].next;
                self.leave_plan(abandoned);
                self.deposit(abandoned);
                abandoned = next;
            }
            self.queue_rest(slot);
            queued = true;
        }
        if queued {
            self.backend.submit();
        }
    }

    /// Reads of bulk and speculative rows that may be in flight now.
    fn bulk_in_flight_max(&self) -> usize {
        let interactive = self.core.interactive_live.load(Ordering::Relaxed) > 0;
        if interactive { self.core.limits.in_flight_bulk_shared as usize } else { usize::MAX }
    }

    /// Frees a want and makes its deposit.
    fn deposit(&mut self, want: u32) {
        let Want { group, account, .. } = self.wants[want as usize];
        self.wants[want as usize].next = self.free_want;
        self.free_want = want;
        self.room[account as usize] += 1;
        self.core.deposit_group(group);
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
        if errno == libc::EAGAIN {
            let pause_ns = (PAUSE_MIN_NS << (read.attempts - 1).min(16)).min(PAUSE_MAX_NS);
            self.core.counters.read_pauses.add(1);
            self.paused.push((slot, self.core.now_ns() + pause_ns));
            return;
        }
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
        let (mut arrived, mut failed) = (false, false);
        let mut at = read.wants;
        while at != NIL {
            let Self { core, backend, wants, backlog, .. } = self;
            let want = wants[at as usize];
            let begin = (want.offset - read.pages.offset) as usize;
            let end = begin + want.len as usize;
            let Want { rank, offset, len, .. } = want;
            let (stamp_ns, file) = (core.now_ns(), read.pages.file);
            let wanted = Wanted { rank, stamp_ns, file, offset, len, want: at, alone: true };
            if end <= read.done as usize {
                let bytes = &backend.slot(slot)[begin..end];
                core.fill_group(want.group, want.table.into(), want.head.into(), want.row_offset as usize, bytes);
                arrived = true;
                self.deposit(at);
            } else if own_pages(&**backend, &wanted) != read.pages {
                wants[at as usize].alone = true;
                core.counters.retries.add(1);
                backlog.push(wanted);
            } else {
                failed = true;
                core.counters.reads_failed.add(1);
                core.groups[want.group as usize].key().failure.set(want.table.into(), want.row, file, errno);
                self.deposit(at);
            }
            at = want.next;
        }
        self.free_read(slot);
        if arrived {
            self.failures = FailureRun::default();
        } else if failed {
            self.count_failure(read.pages, errno);
        }
    }

    /// A read has failed for good. Too many in a row end service.
    fn count_failure(&mut self, pages: Pages, errno: i32) {
        if self.failures.failed(pages) < self.core.limits.read_failures || self.core.check_open().is_err() {
            return;
        }
        let (path, count) = (self.core.files[pages.file.0 as usize].path.display(), self.failures.count);
        let why = match errno {
            0 => "it ends before them".to_owned(),
            errno => format!("{} (errno {errno})", std::io::Error::from_raw_os_error(errno)),
        };
        let (index, at) = (self.index, pages.offset);
        self.core.fail(format!(
            "I/O actor {index}: {count} reads failed one after the other, the last at byte {at} of {path}: {why}; check the disk and the \
             kernel's log, or restore the file, then reopen the scheduler"
        ));
    }

    /// A slot's read has ended, or is not wanted any more.
    fn free_read(&mut self, slot: u32) {
        let read = self.reads[slot as usize];
        for page in read.pages.pages() {
            if self.pages.get(&(read.pages.file, page)) == Some(&slot) {
                self.pages.remove(&(read.pages.file, page));
            }
        }
        self.bulk_in_flight -= usize::from(read.bulk);
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
