//! Plans: groups to assemble, on their way from a keygen actor to the I/O actors.
//!
//! Bodies lie in a slab ([`crate::protocol::plan_slab`]), queues carry their indices: one message per plan and owning I/O actor, never
//! one per row.

/// Groups of one plan at most: 10 tokens of DeepSeek-V4.1, 32 of Qwen3.8.
pub(crate) const PLAN_GROUPS_MAX: usize = 64;

/// Bands of an I/O actor's queue, the most urgent first.
pub(crate) const BANDS: usize = 3;

/// What a plan is for; also the band of the queue that carries it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub(crate) enum PlanClass {
    /// Tokens that were sampled: somebody waits.
    Decode = 0,
    /// Prompts.
    Prefill = 1,
    /// Bulk requests and row reads.
    Bulk = 2,
}

impl PlanClass {
    pub(crate) const ALL: [Self; BANDS] = [Self::Decode, Self::Prefill, Self::Bulk];
}

/// A plan under construction, on its maker's stack.
#[derive(Debug)]
pub(crate) struct PlanDraft {
    pub(crate) groups: smallvec::SmallVec<[u32; PLAN_GROUPS_MAX]>,
    pub(crate) class: PlanClass,
}

/// The bodies of all plans.
pub(crate) type PlanSlab = crate::protocol::plan_slab::PlanSlab<PLAN_GROUPS_MAX>;
