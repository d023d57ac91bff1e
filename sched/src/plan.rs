//! Plans: groups to assemble, on their way from a keygen actor to the I/O actors.
//!
//! Bodies lie in a slab ([`crate::protocol::plan_slab`]), queues carry their indices: one message per plan and owning I/O actor, never
//! one per row.

/// Groups of one plan at most: 10 tokens of DeepSeek-V4.1, 32 of Qwen3.8.
pub(crate) const PLAN_GROUPS_MAX: usize = 64;

/// Bands of an I/O actor's queue, the most urgent first.
pub(crate) const BANDS: usize = 7;

/// What a plan is for; also the band of the queue that carries it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub(crate) enum PlanClass {
    /// A decode token's layer that a waiter sleeps on.
    Awaited = 0,
    /// Sampled tokens that a step has asked for.
    DecodeDemand = 1,
    /// Sampled tokens.
    DecodePrefetch = 2,
    /// Prompts that a step has asked for.
    PrefillDemand = 3,
    /// Prompts.
    PrefillPrefetch = 4,
    /// Drafts.
    Speculative = 5,
    /// Bulk requests and row reads.
    Bulk = 6,
}

impl PlanClass {
    pub(crate) const ALL: [Self; BANDS] = [
        Self::Awaited,
        Self::DecodeDemand,
        Self::DecodePrefetch,
        Self::PrefillDemand,
        Self::PrefillPrefetch,
        Self::Speculative,
        Self::Bulk,
    ];
}

/// A plan under construction: groups of one table.
#[derive(Clone, Debug)]
pub(crate) struct PlanDraft {
    pub(crate) groups: smallvec::SmallVec<[u32; PLAN_GROUPS_MAX]>,
    pub(crate) class: PlanClass,
    /// Nanoseconds of the scheduler's clock.
    pub(crate) deadline_ns: u64,
}

impl PlanDraft {
    /// An empty draft.
    pub(crate) fn new(class: PlanClass, deadline_ns: u64) -> Self {
        Self { groups: smallvec::SmallVec::new(), class, deadline_ns }
    }
}

/// The bodies of all plans.
pub(crate) type PlanSlab = crate::protocol::plan_slab::PlanSlab<PLAN_GROUPS_MAX>;
