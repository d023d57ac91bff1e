//! Plan slab: bodies of plans, written by one, read by the actors that have a share in them, given back by the last.
//!
//! A body is written by who took it off the free list (`store`) and read by its actors after a queue handed its index over. Each actor
//! sees the groups of its share, and no others: those it holds up itself, so that it finds them as they were planned. Any other group
//! may be complete, free and in use for other rows by the time the actor gets to the plan.
//!
//! # Memory ordering
//! The fields are relaxed: the queue orders `store` before the readers, and `done` (AcqRel) orders all readers before the free list,
//! which hands the body to its next writer (Release and Acquire in [`super::index_stack`]).

use super::index_stack::IndexStack;
use crate::sync::seeded::{self, Bug};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

#[derive(Debug)]
struct Body<const GROUPS: usize> {
    readers: AtomicU32,
    len: AtomicU32,
    stamp_ns: AtomicU64,
    groups: [AtomicU32; GROUPS],
}

/// See the module text. A plan has at most `GROUPS` groups.
#[derive(Debug)]
pub struct PlanSlab<const GROUPS: usize> {
    bodies: Box<[Body<GROUPS>]>,
    /// For each plan and actor: bit `i` is set if group `i` needs something of the actor.
    shares: Box<[AtomicU64]>,
    actors: usize,
    free: IndexStack,
}

impl<const GROUPS: usize> PlanSlab<GROUPS> {
    /// Bytes of one plan.
    pub const BODY_BYTES: usize = size_of::<Body<GROUPS>>();

    /// `plans` bodies, for `actors` actors.
    pub fn new(plans: u32, actors: usize) -> Self {
        const { assert!(GROUPS <= u64::BITS as usize, "a set of groups is a word") };
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

    /// Stores a plan for the actors whose share is not empty.
    ///
    /// # Panics
    /// If no body is free: the caller bounds the plans, see "bounded by construction" in `docs/ARCHITECTURE.md`.
    pub fn store(&self, groups: &[u32], shares: &[u64], stamp_ns: u64) -> u32 {
        debug_assert_eq!(shares.len(), self.actors);
        let index = self.free.pop().expect("plans are bounded by the credit of their tokens");
        let body = &self.bodies[index as usize];
        let readers = shares.iter().filter(|&&share| share != 0).count();
        body.readers.store(readers as u32, Ordering::Relaxed);
        for (slot, &share) in self.shares[index as usize * self.actors..].iter().zip(shares) {
            slot.store(share, Ordering::Relaxed);
        }
        body.len.store(groups.len() as u32, Ordering::Relaxed);
        body.stamp_ns.store(stamp_ns, Ordering::Relaxed);
        for (slot, &group) in body.groups.iter().zip(groups) {
            slot.store(group, Ordering::Relaxed);
        }
        index
    }

    /// Time at which the plan was made, nanoseconds of the scheduler's clock.
    pub fn stamp_ns(&self, plan: u32) -> u64 {
        self.bodies[plan as usize].stamp_ns.load(Ordering::Relaxed)
    }

    /// The plan's groups that need something of `actor`.
    pub fn groups(&self, plan: u32, actor: usize) -> impl Iterator<Item = u32> {
        let body = &self.bodies[plan as usize];
        let share = self.shares[plan as usize * self.actors + actor].load(Ordering::Relaxed);
        let share = if seeded::is(Bug::PlanIgnoresShares) { !0 } else { share };
        let len = body.len.load(Ordering::Relaxed) as usize;
        (0..len).filter(move |i| share >> i & 1 == 1).map(|i| body.groups[i].load(Ordering::Relaxed))
    }

    /// An actor has read the plan. True: it was the last, the body went back to the free list.
    pub fn done(&self, plan: u32) -> bool {
        // AcqRel: the last reader gives back what all have read.
        let left = self.bodies[plan as usize].readers.fetch_sub(1, Ordering::AcqRel) - 1;
        let last = left == 0 || seeded::is(Bug::PlanReturnedEarly);
        if last {
            self.free.push(plan);
        }
        last
    }
}
