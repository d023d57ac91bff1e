//! Histograms of durations, per table and class of what was served.
//!
//! The recording side is ours: `hdrhistogram`'s recorders need an owned recorder per thread and a reader that synchronises with all of
//! them, while here any engine thread may await. Buckets have the crate's layout, so a snapshot is one of its histograms, exactly.
//!
//! Invariants: recording allocates nothing and takes no lock; histograms share no cache line; values beyond 100 s count as 100 s.

#![cfg_attr(not(test), expect(dead_code, reason = "wired by the next commit"))]

use crate::sync::{AtomicU64, CachePadded, Ordering};
use hdrhistogram::Histogram;

/// The shortest duration told from zero.
const LOW_NS: u64 = 100;
/// The longest duration told from longer ones.
const HIGH_NS: u64 = 100_000_000_000;
const DIGITS: u8 = 2;
/// Log2 of a unit: the power of two at or below [`LOW_NS`].
const UNIT_LOG2: u32 = LOW_NS.ilog2();
/// Log2 of the linear steps of each doubling: at least 10^[`DIGITS`].
const STEPS_LOG2: u32 = 7;
const BUCKETS: usize = bucket_of(HIGH_NS) + 1;

const fn bucket_of(ns: u64) -> usize {
    let units = ns >> UNIT_LOG2;
    let doublings = (units | 1).ilog2().saturating_sub(STEPS_LOG2);
    ((doublings as u64) << STEPS_LOG2) as usize + (units >> doublings) as usize
}

/// The least duration of a bucket, nanoseconds.
const fn least_of(bucket: usize) -> u64 {
    let doublings = (bucket >> STEPS_LOG2).saturating_sub(1);
    ((bucket - (doublings << STEPS_LOG2)) as u64) << (doublings as u32 + UNIT_LOG2)
}

/// Durations that threads add to.
#[derive(Debug)]
struct Durations(CachePadded<[AtomicU64; BUCKETS]>);

impl Durations {
    fn new() -> Self {
        Self(CachePadded::new([const { AtomicU64::new(0) }; BUCKETS]))
    }

    fn record(&self, ns: u64) {
        self.0[bucket_of(ns.min(HIGH_NS))].fetch_add(1, Ordering::Relaxed);
    }

    fn snapshot(&self) -> Histogram<u64> {
        let mut histogram = Histogram::new_with_bounds(LOW_NS, HIGH_NS, DIGITS).expect("bounds are constants");
        for (bucket, count) in self.0.iter().enumerate() {
            let count = count.load(Ordering::Relaxed);
            if count > 0 {
                histogram.record_n(least_of(bucket), count).expect("within the bounds");
            }
        }
        histogram
    }
}

/// Plan class of what was served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Served {
    Decode = 0,
    Prefill = 1,
    Speculative = 2,
    Bulk = 3,
}

const CLASSES: usize = 4;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Measure {
    /// Token planned until the engine asked for the layer.
    Lead = 0,
    /// Exposed wait.
    Wait = 1,
    /// Plan sent until its read started.
    Queue = 2,
    /// Read submitted until completed.
    Read = 3,
    /// Completion until deadline, where it was kept.
    Slack = 4,
    /// Deadline until completion, where it was missed.
    Late = 5,
}

const MEASURES: usize = 6;

/// See the module text.
#[derive(Debug)]
pub(crate) struct Measures {
    durations: Box<[Durations]>,
    hidden: Box<[CachePadded<AtomicU64>]>,
}

impl Measures {
    pub(crate) fn new(tables: usize) -> Self {
        Self {
            durations: (0..tables * CLASSES * MEASURES).map(|_| Durations::new()).collect(),
            hidden: (0..tables * CLASSES).map(|_| CachePadded::new(AtomicU64::new(0))).collect(),
        }
    }

    fn at(&self, table: usize, served: Served, measure: Measure) -> &Durations {
        &self.durations[(table * CLASSES + served as usize) * MEASURES + measure as usize]
    }

    pub(crate) fn lead(&self, table: usize, served: Served, ns: u64) {
        self.at(table, served, Measure::Lead).record(ns);
    }

    /// A layer that the engine had to wait for; else [`Measures::hidden`].
    pub(crate) fn wait(&self, table: usize, served: Served, ns: u64) {
        self.at(table, served, Measure::Wait).record(ns);
    }

    /// A layer that was complete when the engine asked.
    pub(crate) fn hidden(&self, table: usize, served: Served) {
        self.hidden[table * CLASSES + served as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn queue(&self, table: usize, served: Served, ns: u64) {
        self.at(table, served, Measure::Queue).record(ns);
    }

    pub(crate) fn read(&self, table: usize, served: Served, ns: u64) {
        self.at(table, served, Measure::Read).record(ns);
    }

    /// Deadline minus completion; negative: late.
    pub(crate) fn slack(&self, table: usize, served: Served, ns: i64) {
        let measure = if ns < 0 { Measure::Late } else { Measure::Slack };
        self.at(table, served, measure).record(ns.unsigned_abs());
    }

    /// The durations so far, nanoseconds.
    pub(crate) fn snapshot(&self, table: usize, served: Served, measure: Measure) -> Histogram<u64> {
        self.at(table, served, measure).snapshot()
    }

    /// Layers hidden so far.
    pub(crate) fn hidden_count(&self, table: usize, served: Served) -> u64 {
        self.hidden[table * CLASSES + served as usize].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::thread;

    /// Durations around every power of two and a spread between them, up to the highest.
    fn values() -> impl Iterator<Item = u64> {
        let edges = (0..37).flat_map(|p| [(1 << p) - 1, 1 << p, (1 << p) + 1]);
        edges.chain((0..20_000).map(|i: u64| i * i * 249)).filter(|&ns| ns <= HIGH_NS)
    }

    #[test]
    fn buckets_are_those_of_the_crate() {
        let crates = Histogram::<u64>::new_with_bounds(LOW_NS, HIGH_NS, DIGITS).unwrap();
        for ns in values() {
            assert_eq!(least_of(bucket_of(ns)), crates.lowest_equivalent(ns), "{ns}");
        }
        for bucket in 0..BUCKETS {
            assert_eq!(bucket_of(least_of(bucket)), bucket);
        }
    }

    #[test]
    fn a_snapshot_equals_the_crates_recording() {
        let ours = Durations::new();
        let mut crates = Histogram::<u64>::new_with_bounds(LOW_NS, HIGH_NS, DIGITS).unwrap();
        for ns in values() {
            ours.record(ns);
            crates.record(ns).unwrap();
        }
        let ours = ours.snapshot();
        assert_eq!(ours.len(), crates.len());
        for quantile in [0.0, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0] {
            assert_eq!(ours.value_at_quantile(quantile), crates.value_at_quantile(quantile), "{quantile}");
        }
    }

    #[test]
    fn what_is_too_long_counts_as_the_longest() {
        let durations = Durations::new();
        durations.record(u64::MAX);
        durations.record(HIGH_NS + 1);
        let snapshot = durations.snapshot();
        assert_eq!((snapshot.len(), snapshot.min()), (2, snapshot.lowest_equivalent(HIGH_NS)));
    }

    #[test]
    fn no_record_of_any_thread_is_lost_or_misplaced() {
        let measures = Measures::new(2);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for i in 0..1000 {
                        measures.lead(0, Served::Decode, i);
                        measures.wait(1, Served::Prefill, i);
                        measures.queue(0, Served::Speculative, i);
                        measures.read(1, Served::Bulk, i);
                        measures.slack(1, Served::Decode, i as i64 - 250);
                        measures.hidden(0, Served::Bulk);
                    }
                });
            }
        });
        let count = |table, served, measure| measures.snapshot(table, served, measure).len();
        assert_eq!(count(0, Served::Decode, Measure::Lead), 4000);
        assert_eq!(count(1, Served::Prefill, Measure::Wait), 4000);
        assert_eq!(count(0, Served::Speculative, Measure::Queue), 4000);
        assert_eq!(count(1, Served::Bulk, Measure::Read), 4000);
        assert_eq!(count(1, Served::Decode, Measure::Slack), 3000);
        assert_eq!(count(1, Served::Decode, Measure::Late), 1000);
        assert_eq!(count(1, Served::Decode, Measure::Lead), 0);
        assert_eq!((measures.hidden_count(0, Served::Bulk), measures.hidden_count(1, Served::Bulk)), (4000, 0));
    }
}
