//! Plans: groups to assemble, on their way from a keygen actor to the I/O actors.
//!
//! Bodies lie in a slab ([`crate::protocol::plan_slab`]), queues carry their indices: one message per plan and owning I/O actor, never
//! one per row.

/// Groups of one plan at most: 10 tokens of DeepSeek-V4.1, 32 of Qwen3.8.
pub(crate) const PLAN_GROUPS_MAX: usize = 64;

/// Classes of plans, [`PlanClass`].
pub(crate) const CLASSES: usize = 7;

/// Bands of an I/O actor's queue: one for each [`Band`], and one for plans that were raised.
pub(crate) const BANDS: usize = Band::ALL.len() + 1;

/// The band of raised plans.
pub(crate) const URGENT_BAND: usize = Band::ALL.len();

/// What a plan is for, in the order of urgency.
///
/// `Awaited` is a decode token's layer that a waiter sleeps on. A prompt's layer that is awaited is `PrefillDemand`, no more: the
/// design's text puts whatever is awaited first, but then a prompt of thousands of rows would stand before every decode token, and
/// keeping decode undisturbed comes before a prompt's own wait.
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
    /// Drafts, which may be for nothing.
    Speculative = 5,
    /// Bulk requests and row reads.
    Bulk = 6,
}

impl PlanClass {
    /// The band that carries plans of this class.
    pub(crate) fn band(self) -> Band {
        match self {
            Self::Awaited | Self::DecodeDemand | Self::DecodePrefetch => Band::Decode,
            Self::PrefillDemand | Self::PrefillPrefetch => Band::Prefill,
            Self::Speculative => Band::Speculative,
            Self::Bulk => Band::Bulk,
        }
    }
}

/// Plans that queue behind each other; no band refuses another's, or holds it up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Band {
    Decode = 0,
    Prefill = 1,
    Speculative = 2,
    Bulk = 3,
}

impl Band {
    pub(crate) const ALL: [Self; 4] = [Self::Decode, Self::Prefill, Self::Speculative, Self::Bulk];
}

/// A plan under construction, on its maker's stack: groups of one table, class and deadline for all of them.
#[derive(Debug)]
pub(crate) struct PlanDraft {
    pub(crate) groups: smallvec::SmallVec<[u32; PLAN_GROUPS_MAX]>,
    pub(crate) class: PlanClass,
    /// Nanoseconds of the scheduler's clock; 0: when the plan is sent.
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
