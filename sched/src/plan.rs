//! Plans: groups to assemble, on their way from a keygen actor to the I/O actors.
//!
//! Bodies lie in a slab, queues carry their indices: one message per plan and owning I/O actor, never one per row. A body is written by
//! who took it off the free list and read by its actors after the queue handed the index over (the queue orders, so the fields are
//! relaxed); the last actor to have read it gives it back.
//!
//! Each actor sees the groups that need something of it, and no others: those it holds up itself, so that it finds them as they were
//! planned. Any other group may be complete, free and in use for other rows by the time the actor gets to the plan.

use crate::protocol::index_stack::IndexStack;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Groups of one plan at most: 10 tokens of DeepSeek-V4.1, 32 of Qwen3.8.
pub(crate) const PLAN_GROUPS_MAX: usize = 64;

const _: () = assert!(PLAN_GROUPS_MAX <= u64::BITS as usize, "a set of groups is a word");

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
    /// For each plan and actor: bit `i` is set if group `i` needs something of the actor.
    shares: Box<[AtomicU64]>,
    actors: usize,
    free: IndexStack,
}

impl PlanSlab {
    pub(crate) fn new(plans: u32, actors: usize) -> Self {
        let body = || Body {
            readers: AtomicU32::new(0),
            len: AtomicU32::new(0),
            stamp_ns: AtomicU64::new(0),
            groups: std::array::from_fn(|_| AtomicU32::new(0)),
        };
        Self {
            bodies: (0..plans).map(|_| body()).collect(),
            shares: (0..plans as usize * actors).map(|_| AtomicU64::new(0)).collect(),
            actors,
            free: IndexStack::full(plans),
        }
    }

    /// Bytes of one plan.
    pub(crate) const BODY_BYTES: usize = size_of::<Body>();

    /// Stores a plan for the actors whose share is not empty. Never full: see "bounded by construction" in `docs/ARCHITECTURE.md`.
    pub(crate) fn store(&self, draft: &PlanDraft, shares: &[u64], stamp_ns: u64) -> u32 {
        debug_assert_eq!(shares.len(), self.actors);
        let index = self.free.pop().expect("plans are bounded by the credit of their tokens");
        let body = &self.bodies[index as usize];
        let readers = shares.iter().filter(|&&share| share != 0).count();
        body.readers.store(readers as u32, Ordering::Relaxed);
        for (slot, &share) in self.shares[index as usize * self.actors..].iter().zip(shares) {
            slot.store(share, Ordering::Relaxed);
        }
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

    /// The plan's groups that need something of `actor`.
    pub(crate) fn groups(&self, plan: u32, actor: usize) -> impl Iterator<Item = u32> {
        let body = &self.bodies[plan as usize];
        let share = self.shares[plan as usize * self.actors + actor].load(Ordering::Relaxed);
        let len = body.len.load(Ordering::Relaxed) as usize;
        (0..len).filter(move |i| share >> i & 1 == 1).map(|i| body.groups[i].load(Ordering::Relaxed))
    }

    /// An actor has read the plan.
    pub(crate) fn done(&self, plan: u32) {
        // AcqRel: the last reader gives back what all have read.
        if self.bodies[plan as usize].readers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.free.push(plan);
        }
    }
}
