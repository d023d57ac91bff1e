//! Counters: relaxed, each on its own cache line, read together by `stats()`.

use crate::io::BackendReport;
use crate::sync::{AtomicU64, CachePadded, Ordering};

/// A count that threads add to.
#[derive(Debug, Default)]
pub(crate) struct Counter(CachePadded<AtomicU64>);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: Counter),* }

        /// Counters since start. Taken one by one while threads go on counting: sums of different counters may be off by what is
        /// under way.
        #[derive(Clone, Debug, Default)]
        #[non_exhaustive]
        pub struct Stats {
            /// What each I/O actor really uses.
            pub backends: Vec<BackendReport>,
            $($(#[$doc])* pub $name: u64),*
        }

        impl Counters {
            pub(crate) fn snapshot(&self, backends: Vec<BackendReport>) -> Stats {
                Stats { backends, $($name: self.$name.get()),* }
            }
        }
    };
}

counters! {
    /// Tokens taken from the token plane.
    tokens,
    /// Plans sent to I/O actors.
    plans,
    /// Wake-ups of sleeping I/O actors.
    wakes,
    /// Rows wanted by tokens, before anything was shared.
    rows,
    /// Plans pushed into an urgent band, per actor, because a group of theirs was wanted sooner.
    plans_raised,
    /// Groups that were not read, as all their requests had let go of them.
    groups_abandoned,
    /// Of these, groups of drafts.
    speculative_shed,
    /// Groups that were being assembled, or still held, when another cell wanted them.
    group_joins,
    /// Extents of rows that joined a page already being read.
    page_joins,
    /// Extents of rows read (after joining groups).
    extents,
    /// Reads issued to the device, resumed and repeated ones included.
    reads,
    /// Bytes asked of the device.
    read_bytes,
    /// Sum, over the reads issued, of the reads in flight just after; divided by `reads` it is the mean depth.
    depth_sum,
    /// Layers that were complete when the engine asked.
    layers_hidden,
    /// Layers that the engine had to wait for.
    layers_exposed,
    /// Time that engines waited, nanoseconds, from the call of `await_layer`.
    exposed_ns,
    /// Awaits that ran into their deadline.
    deadlines_missed,
    /// Calls with the id of a request that has ended.
    stale_ids,
    /// Reads that failed for good.
    reads_failed,
    /// Reads repeated or resumed: short, `EINTR`, `EAGAIN`.
    retries,
    /// Pauses before a read was repeated after `EAGAIN`.
    read_pauses,
    /// Completions with a tag of no read in flight; 0 unless a backend is broken.
    completions_unknown,
    /// Drafts that became tokens (`accept`, or the same tokens fed) after they had been planned.
    drafts_useful,
    /// Drafts that were dropped after they had been planned.
    drafts_wasted,
    /// Drafts that were taken or dropped before they were planned, for want of credit.
    drafts_shed,
    /// Positions planned ahead that were let go of, to be planned again, because a step wanted others and credit was short.
    prefetch_shed,
    /// Of `group_joins`, those of groups that the same call had opened; the others joined what was in flight or held.
    group_joins_in_step,
    /// Rows of a token and layer that were let go of while their reads were out, and came home then.
    late_completions,
    /// Entries of steps that failed, by layer.
    entries_failed,
    /// Rows delivered as zeros because a deadline (with `zero_fill`) or the watchdog came first.
    rows_zero_filled,
    /// Layers of steps that a deadline (with `zero_fill`) or the watchdog ended.
    fence_timeouts,
    /// Steps submitted, row reads and dummies included.
    steps,
    /// Dummy steps submitted.
    steps_dummy,
    /// Requests begun, forks and imports included.
    requests_begun,
    /// Requests finished or aborted.
    requests_ended,
    /// Requests made by `fork`.
    requests_forked,
    /// Calls of `preempt` that took effect.
    requests_preempted,
}
