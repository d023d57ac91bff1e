//! Plans: groups to assemble, on their way from a keygen actor to the I/O actors.
//!
//! Bodies lie in a slab, queues carry their indices: one message per plan and owning I/O actor, never one per row. A body is written by
//! who took it off the free list and read by its actors after the queue handed the index over (the queue orders, so the fields are
//! relaxed); the last actor to have read it gives it back.

use crate::protocol::index_stack::IndexStack;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

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

#[derive(Debug)]
struct Body {
    readers: AtomicU32,
    len: AtomicU32,
    stamp_ns: AtomicU64,
    groups: [AtomicU32; PLAN_GROUPS_MAX],
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct PlanSlab {
    bodies: Box<[Body]>,
    free: IndexStack,
}

impl PlanSlab {
    pub(crate) fn new(plans: u32) -> Self {
        let body = || Body {
            readers: AtomicU32::new(0),
            len: AtomicU32::new(0),
            stamp_ns: AtomicU64::new(0),
            groups: std::array::from_fn(|_| AtomicU32::new(0)),
        };
        Self { bodies: (0..plans).map(|_| body()).collect(), free: IndexStack::full(plans) }
    }

    /// Bytes of one plan.
    pub(crate) const BODY_BYTES: usize = size_of::<Body>();

    /// Stores a plan for `readers` actors. Never full: see "bounded by construction" in `docs/ARCHITECTURE.md`.
    pub(crate) fn store(&self, draft: &PlanDraft, readers: u32, stamp_ns: u64) -> u32 {
        let index = self.free.pop().expect("plans are bounded by the credit of their tokens");
        let body = &self.bodies[index as usize];
        body.readers.store(readers, Ordering::Relaxed);
        body.len.store(draft.groups.len() as u32, Ordering::Relaxed);
        body.stamp_ns.store(stamp_ns, Ordering::Relaxed);
        for (slot, &group) in body.groups.iter().zip(&draft.groups) {
            slot.store(group, Ordering::Relaxed);
        }
        index
    }

    /// Time at which the plan was made, nanoseconds of the scheduler's clock.
    pub(crate) fn stamp_ns(&self, plan: u32) -> u64 {
        self.bodies[plan as usize].stamp_ns.load(Ordering::Relaxed)
    }

    /// The plan's groups.
    pub(crate) fn groups(&self, plan: u32) -> impl Iterator<Item = u32> {
        let body = &self.bodies[plan as usize];
        let len = body.len.load(Ordering::Relaxed) as usize;
        body.groups[..len].iter().map(|g| g.load(Ordering::Relaxed))
    }

    /// An actor has read the plan.
    pub(crate) fn done(&self, plan: u32) {
        // AcqRel: the last reader gives back what all have read.
        if self.bodies[plan as usize].readers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.free.push(plan);
        }
    }
}
