//! Batch: orders, dedupes and merges what an I/O actor wants to read. Pure: no atomics, no I/O, no clock.
//!
//! Wants (extents of rows) come in any order and leave as reads: whole pages, at most `read_bytes_max` long, the most urgent first and
//! within one urgency by file and offset. Wants of the same page share a read; neighbours are merged as long as the device is not
//! kept busy with bytes that nobody wants: a run of n wanted pages that spans S bytes is worth one read if S <= n x (bandwidth /
//! IOPS), which for the devices measured (0.55-0.8 GB/s, 95 k reads/s) means adjacent pages or one page of gap (DESIGN section 7).
//!
//! There is a heap for each class, of indices into one table of wants, and each want knows its place: its rank can be changed, and it can
//! leave, in O(log n), without stale entries to skip or to grow by. Ageing: while there are higher classes, a want that was planned
//! longer ago than `ageing_ns` and is the first of its class gets one read in eight at most.

use crate::plan::{CLASSES, PlanClass};
use engram_store::FileId;

/// Reads are cut at pages.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// Pages that a merge may skip.
const GAP_PAGES_MAX: u64 = 1;

/// Of so many reads that are started one may be of an aged want.
const AGED_ONE_IN: u32 = 8;

/// Not in the backlog.
const NIL: u32 = u32::MAX;

/// How urgent a want is: class, then deadline bucket, then layer. Less is sooner.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Rank(u64);

/// Width of a deadline bucket.
const BUCKET_NS: u64 = 250_000;

impl Rank {
    /// Deadlines count by buckets of 250 us; in a bucket `table` puts earlier layers first.
    pub(crate) fn new(class: u8, deadline_ns: u64, table: u16) -> Self {
        debug_assert!((class as usize) < CLASSES);
        let bucket = (deadline_ns / BUCKET_NS).min((1 << 40) - 1);
        Self(u64::from(class) << 56 | bucket << 16 | u64::from(table))
    }

    fn class(self) -> usize {
        (self.0 >> 56) as usize
    }

    /// Whether it shares the device with interactive requests by a limit of its own.
    pub(crate) fn is_bulk(self) -> bool {
        self.class() >= PlanClass::Speculative as usize
    }
}

/// A wanted extent, by its index in the actor's slab.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    pub(crate) rank: Rank,
    /// When it was planned.
    pub(crate) stamp_ns: u64,
    pub(crate) file: FileId,
    pub(crate) offset: u64,
    pub(crate) len: u32,
    pub(crate) want: u32,
    /// To be read with no other pages than its own.
    pub(crate) alone: bool,
}

impl Wanted {
    /// The order of reads.
    fn key(&self) -> (Rank, FileId, u64) {
        (self.rank, self.file, self.offset)
    }
}

/// Pages of a file, as an aligned byte range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pages {
    pub(crate) file: FileId,
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

impl Pages {
    /// The pages that hold an extent, aligned to `align` (a power of two, at least a page).
    pub(crate) fn around(wanted: &Wanted, align: u64) -> Self {
        let offset = wanted.offset & !(align - 1);
        let end = (wanted.offset + u64::from(wanted.len)).next_multiple_of(align);
        Self { file: wanted.file, offset, len: (end - offset) as u32 }
    }

    /// One past the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.offset + u64::from(self.len)
    }

    /// Whether the extent lies inside.
    pub(crate) fn covers(&self, wanted: &Wanted) -> bool {
        self.file == wanted.file && self.offset <= wanted.offset && wanted.offset + u64::from(wanted.len) <= self.end()
    }

    /// The range with `other`'s pages added, if one read of at most `read_bytes_max` is better than two.
    fn merged(&self, other: &Self, read_bytes_max: u32) -> Option<Self> {
        let near = other.file == self.file
            && other.offset >= self.offset
            && other.offset <= self.end() + GAP_PAGES_MAX * PAGE_BYTES;
        let len = other.end().max(self.end()).checked_sub(self.offset)?;
        (near && len <= u64::from(read_bytes_max)).then_some(Self { len: len as u32, ..*self })
    }

    /// Page numbers inside.
    pub(crate) fn pages(&self) -> impl Iterator<Item = u64> + use<> {
        self.offset / PAGE_BYTES..self.end() / PAGE_BYTES
    }
}

/// Everything wanted and not being read.
#[derive(Debug)]
pub(crate) struct Backlog {
    /// By want.
    wanted: Box<[Wanted]>,
    /// By want: its place in the heap of its class.
    places: Box<[u32]>,
    /// Binary heaps of wants, the least key first.
    heaps: [Vec<u32>; CLASSES],
    read_bytes_max: u32,
    ageing_ns: u64,
    /// Reads started since the last one of an aged want, that one included.
    since_aged: u32,
}

impl Backlog {
    /// Bytes for one want.
    pub(crate) const WANT_BYTES: usize = size_of::<Wanted>() + 4 + 4 * CLASSES;

    /// Room for the wants `0..capacity`.
    pub(crate) fn new(capacity: usize, read_bytes_max: u32, ageing_ns: u64) -> Self {
        let (rank, file) = (Rank::new(0, 0, 0), FileId(0));
        let nothing = Wanted { rank, stamp_ns: 0, file, offset: 0, len: 0, want: 0, alone: false };
        Self {
            wanted: vec![nothing; capacity].into(),
            places: vec![NIL; capacity].into(),
            heaps: std::array::from_fn(|_| Vec::with_capacity(capacity)),
            read_bytes_max,
            ageing_ns,
            since_aged: 0,
        }
    }

    pub(crate) fn push(&mut self, wanted: Wanted) {
        debug_assert_eq!(self.places[wanted.want as usize], NIL, "a want is there once");
        self.wanted[wanted.want as usize] = wanted;
        let heap = &mut self.heaps[wanted.rank.class()];
        heap.push(wanted.want);
        let place = heap.len() - 1;
        self.sift_up(wanted.rank.class(), place);
    }

    /// Changes the rank of a want that is here.
    pub(crate) fn rerank(&mut self, want: u32, rank: Rank) {
        let wanted = self.take(want);
        self.push(Wanted { rank, ..wanted });
    }

    /// The want to be read next; those of bulk rank are passed over unless `bulk`. The caller joins it to a read in flight, gives it up,
    /// or begins a read with [`Backlog::extend`].
    pub(crate) fn pop(&mut self, now_ns: u64, bulk: bool) -> Option<Wanted> {
        let classes = if bulk { CLASSES } else { PlanClass::Speculative as usize };
        let first = |class: usize| self.heaps[class].first().map(|&want| self.wanted[want as usize]);
        let top = (0..classes).find_map(first)?;
        let mut next = top;
        if self.since_aged >= AGED_ONE_IN {
            let lower = (top.rank.class() + 1..classes).filter_map(first);
            let aged = lower.filter(|w| now_ns.saturating_sub(w.stamp_ns) > self.ageing_ns).min_by_key(|w| w.stamp_ns);
            if let Some(aged) = aged {
                next = aged;
                self.since_aged = 0;
            }
        }
        Some(self.take(next.want))
    }

    pub(crate) fn clear(&mut self) {
        self.heaps.iter_mut().flat_map(|heap| heap.drain(..)).for_each(|want| self.places[want as usize] = NIL);
    }

    /// Grows a read that begins with `first`, as far as merging pays, over the wants of its class that follow; they leave the backlog and
    /// go to `take`, which says whether they need to be read at all.
    pub(crate) fn extend(
        &mut self,
        first: &Wanted,
        align: impl Fn(FileId) -> u64,
        mut take: impl FnMut(Wanted) -> bool,
    ) -> Pages {
        self.since_aged = self.since_aged.saturating_add(1);
        let mut pages = Pages::around(first, align(first.file));
        while let Some(&next) = self.heaps[first.rank.class()].first() {
            let next = self.wanted[next as usize];
            let own = Pages::around(&next, align(next.file));
            let Some(merged) = pages.merged(&own, self.read_bytes_max) else { break };
            if (first.alone || next.alone) && !(pages == own && merged == own) {
                break;
            }
            self.take(next.want);
            if take(next) {
                pages = merged;
            }
        }
        pages
    }

    /// Takes a want out, wherever it is.
    fn take(&mut self, want: u32) -> Wanted {
        let wanted = self.wanted[want as usize];
        let class = wanted.rank.class();
        let place = std::mem::replace(&mut self.places[want as usize], NIL) as usize;
        let heap = &mut self.heaps[class];
        heap.swap_remove(place);
        if place < heap.len() {
            self.sift_up(class, place); // what then is at `place` is in order with what is below, or came down from above
            self.sift_down(class, place);
        }
        wanted
    }

    fn is_before(&self, a: u32, b: u32) -> bool {
        self.wanted[a as usize].key() < self.wanted[b as usize].key()
    }

    /// Puts the want at `place` where it belongs, if that is further up; its place is set in any case.
    fn sift_up(&mut self, class: usize, mut place: usize) {
        let want = self.heaps[class][place];
        while place > 0 {
            let above = self.heaps[class][(place - 1) / 2];
            if !self.is_before(want, above) {
                break;
            }
            self.set(class, place, above);
            place = (place - 1) / 2;
        }
        self.set(class, place, want);
    }

    fn sift_down(&mut self, class: usize, mut place: usize) {
        let want = self.heaps[class][place];
        loop {
            let children = [2 * place + 1, 2 * place + 2].into_iter().filter(|&at| at < self.heaps[class].len());
            let least = children.min_by_key(|&at| self.wanted[self.heaps[class][at] as usize].key());
            let Some(least) = least.filter(|&at| self.is_before(self.heaps[class][at], want)) else { break };
            self.set(class, place, self.heaps[class][least]);
            place = least;
        }
        self.set(class, place, want);
    }

    fn set(&mut self, class: usize, place: usize, want: u32) {
        self.heaps[class][place] = want;
        self.places[want as usize] = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const AGEING_NS: u64 = 50_000_000;

    fn wanted(want: u32, offset: u64, len: u32) -> Wanted {
        Wanted { rank: Rank::new(0, 0, 0), stamp_ns: 0, file: FileId(0), offset, len, want, alone: false }
    }

    fn reads(backlog: &mut Backlog) -> Vec<(Pages, Vec<Wanted>)> {
        let mut out = Vec::new();
        while let Some(first) = backlog.pop(0, true) {
            let mut wants = vec![first];
            let pages = backlog.extend(
                &first,
                |_| PAGE_BYTES,
                |w| {
                    wants.push(w);
                    true
                },
            );
            out.push((pages, wants));
        }
        out
    }

    #[test]
    fn same_page_and_neighbours_share_a_read() {
        let mut b = Backlog::new(256, 16_384, AGEING_NS);
        for (i, offset) in [4096 * 9, 100, 300, 4090, 4096 * 3].into_iter().enumerate() {
            b.push(wanted(i as u32, offset, 160));
        }
        let got: Vec<_> = reads(&mut b).into_iter().map(|(p, w)| (p.offset, p.len, w.len())).collect();
        // Pages 0 and 1 (a straddling row), then page 3 across a gap of one; page 9 alone.
        assert_eq!(got, [(0, 16_384, 4), (4096 * 9, 4096, 1)]);
    }

    #[test]
    fn alone_means_no_other_pages() {
        let mut b = Backlog::new(256, 16_384, AGEING_NS);
        let alone = |want, offset| Wanted { alone: true, ..wanted(want, offset, 160) };
        for w in [wanted(0, 0, 160), alone(1, 4096), alone(2, 4600), wanted(3, 5000, 160), wanted(4, 8192, 160)] {
            b.push(w);
        }
        b.push(alone(5, 12_200)); // pages 2 and 3
        b.push(alone(6, 12_300));
        let got: Vec<_> = reads(&mut b).into_iter().map(|(p, w)| (p.offset, p.len, w.len())).collect();
        assert_eq!(got, [(0, 4096, 1), (4096, 4096, 3), (8192, 4096, 1), (8192, 8192, 1), (12_288, 4096, 1)]);
    }

    #[test]
    fn urgency_comes_before_place() {
        let mut b = Backlog::new(256, 16_384, AGEING_NS);
        b.push(Wanted { rank: Rank::new(1, 0, 0), ..wanted(0, 0, 160) });
        b.push(Wanted { rank: Rank::new(0, 900_000, 1), ..wanted(1, 1 << 20, 160) });
        b.push(Wanted { rank: Rank::new(0, 900_000, 0), ..wanted(2, 1 << 21, 160) });
        b.push(Wanted { rank: Rank::new(0, 100_000, 1), ..wanted(3, 1 << 22, 160) });
        let order: Vec<_> = reads(&mut b).iter().map(|(_, w)| w[0].want).collect();
        assert_eq!(order, [3, 2, 1, 0]);
    }

    fn of_class(want: u32, class: PlanClass, deadline_ns: u64, offset: u64) -> Wanted {
        Wanted { rank: Rank::new(class as u8, deadline_ns, 0), ..wanted(want, offset, 160) }
    }

    /// Starts reads one by one; the wants in the order of their reads.
    fn order(backlog: &mut Backlog, now_ns: u64, bulk: bool) -> Vec<u32> {
        let mut out = Vec::new();
        while let Some(first) = backlog.pop(now_ns, bulk) {
            out.push(first.want);
            backlog.extend(
                &first,
                |_| PAGE_BYTES,
                |w| {
                    out.push(w.want);
                    true
                },
            );
        }
        out
    }

    const APART: u64 = 1 << 20;

    #[test]
    fn classes_then_buckets_then_place() {
        use PlanClass::{Awaited, Bulk, DecodeDemand, DecodePrefetch, PrefillDemand, PrefillPrefetch, Speculative};
        let mut b = Backlog::new(16, 16_384, AGEING_NS);
        let low_to_high = [Bulk, Speculative, PrefillPrefetch, PrefillDemand, DecodePrefetch, DecodeDemand, Awaited];
        for (i, class) in low_to_high.into_iter().enumerate() {
            // The lower the class, the earlier its deadline and place: class comes first.
            b.push(of_class(i as u32, class, i as u64 * 1_000_000, i as u64 * APART));
        }
        b.push(of_class(7, Awaited, 6_100_000, 0)); // the same bucket as number 6, an earlier place
        b.push(of_class(8, Awaited, 5_900_000, 20 * APART)); // an earlier bucket
        assert_eq!(order(&mut b, 0, true), [8, 7, 6, 5, 4, 3, 2, 1, 0]);
    }

    #[test]
    fn bulk_is_passed_over_when_its_share_is_used_up() {
        let mut b = Backlog::new(8, 16_384, AGEING_NS);
        b.push(of_class(0, PlanClass::Bulk, 0, 0));
        b.push(of_class(1, PlanClass::Speculative, 0, 0));
        b.push(of_class(2, PlanClass::PrefillPrefetch, 0, 0));
        assert_eq!(order(&mut b, u64::MAX, false), [2], "ageing does not lift the limit");
        assert_eq!(order(&mut b, 0, true), [1, 0]);
    }

    #[test]
    fn what_has_waited_long_gets_one_read_in_eight() {
        let mut b = Backlog::new(256, 16_384, AGEING_NS);
        let fill = |b: &mut Backlog| {
            for i in 0..100 {
                b.push(of_class(i, PlanClass::DecodeDemand, 0, u64::from(i) * APART));
                b.push(of_class(100 + i, PlanClass::Bulk, 0, u64::from(i) * APART));
            }
        };
        fill(&mut b);
        assert_eq!(order(&mut b, AGEING_NS, true), (0..200).collect::<Vec<_>>(), "not longer than the limit: not aged");
        fill(&mut b);
        let aged: Vec<usize> = order(&mut b, AGEING_NS + 1, true)
            .into_iter()
            .enumerate()
            .filter_map(|(at, want)| (want >= 100).then_some(at))
            .collect();
        // The reads before have used up the wait for the first.
        let expected: Vec<usize> = (0..14).map(|n| n * 8).collect();
        assert_eq!(aged[..14], expected);
        assert_eq!(aged.len(), 100);
    }

    #[test]
    fn the_oldest_of_the_aged_goes_first() {
        let mut b = Backlog::new(64, 16_384, AGEING_NS);
        for i in 0..40 {
            b.push(of_class(i, PlanClass::Awaited, 0, u64::from(i) * APART));
        }
        b.push(Wanted { stamp_ns: 9, ..of_class(40, PlanClass::PrefillDemand, 0, 0) });
        b.push(Wanted { stamp_ns: 5, ..of_class(41, PlanClass::Bulk, 0, 0) });
        let order = order(&mut b, AGEING_NS + 10, true);
        assert_eq!((order[8], order[16]), (41, 40));
    }

    #[test]
    fn a_rank_can_change_and_what_is_refused_is_not_read() {
        let mut b = Backlog::new(64, 16_384, AGEING_NS);
        for i in 0..20 {
            b.push(of_class(i, PlanClass::Bulk, 0, u64::from(i) * APART));
        }
        b.rerank(13, Rank::new(PlanClass::Awaited as u8, 0, 0));
        b.rerank(7, Rank::new(PlanClass::PrefillDemand as u8, 0, 0));
        b.rerank(7, Rank::new(PlanClass::DecodeDemand as u8, 0, 0));
        assert_eq!(order(&mut b, 0, true)[..3], [13, 7, 0]);
        // Pages 0 to 2, of which the middle one is refused: a gap of one page.
        (0..3).for_each(|i| b.push(wanted(i, u64::from(i) * 4096, 160)));
        let first = b.pop(0, true).unwrap();
        let mut followed = Vec::new();
        let pages = b.extend(
            &first,
            |_| PAGE_BYTES,
            |w| {
                followed.push(w.want);
                w.want != 1
            },
        );
        assert_eq!((first.want, followed, pages.len, b.pop(0, true)), (0, vec![1, 2], 3 * 4096, None));
    }

    proptest! {
        /// Pushed, reranked and taken in any way, wants leave by class and key.
        #[test]
        fn the_heaps_sort(pushes in prop::collection::vec((0u8..7, 0u64..4_000_000, 0u64..100, any::<bool>()), 1..200)) {
            let mut b = Backlog::new(256, 16_384, u64::MAX);
            for (i, &(class, deadline, offset, _)) in pushes.iter().enumerate() {
                b.push(Wanted { rank: Rank::new(class, deadline, 0), ..wanted(i as u32, offset * APART, 160) });
            }
            for (i, &(class, deadline, ..)) in pushes.iter().enumerate().filter(|(_, p)| p.3) {
                b.rerank(i as u32, Rank::new(6 - class, deadline / 2, 0));
            }
            let mut left = Vec::new();
            while let Some(wanted) = b.pop(0, true) {
                left.push(wanted);
            }
            prop_assert_eq!(left.len(), pushes.len());
            prop_assert!(left.is_sorted_by_key(Wanted::key));
        }

        /// Whatever comes in goes out exactly once, inside a read that is aligned and not too long.
        #[test]
        fn batch_is_a_partition(offsets in prop::collection::vec((0u64..200_000, 1u32..5000), 0..200)) {
            let mut b = Backlog::new(256, 16_384, AGEING_NS);
            for (i, &(offset, len)) in offsets.iter().enumerate() {
                b.push(wanted(i as u32, offset, len));
            }
            let mut seen = vec![false; offsets.len()];
            for (pages, wants) in reads(&mut b) {
                prop_assert!(pages.offset % PAGE_BYTES == 0 && u64::from(pages.len) % PAGE_BYTES == 0);
                prop_assert!(pages.len <= 16_384);
                for w in wants {
                    prop_assert!(pages.covers(&w));
                    prop_assert!(!std::mem::replace(&mut seen[w.want as usize], true));
                }
            }
            prop_assert!(seen.iter().all(|&s| s));
        }
    }
}
