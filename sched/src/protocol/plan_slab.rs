//! Plan slab: bodies of plans, written by one, read by the actors that have a share in them, raised by anybody, given back by the last.
//!
//! A body is written by who took it off the free list (`store`) and read by its actors after a queue handed its index over. Each actor
//! sees the groups of its share, and no others: those it holds up itself, so that it finds them as they were planned. Any other group
//! may be complete, free and in use for other rows by the time the actor gets to the plan.
//!
//! The word of a plan is `generation << 32 | holds`. Holds: one for each actor with a share, until it has started all that it wants of
//! the plan; one for each entry in an urgent band; one for a raiser that is at work. Who gives back the last moves the generation on and
//! puts the body on the free list.
//!
//! Raising. A group carries a [`PlanLink`]: the plan, its generation, and the group's bit in it. Any link may be stale; `raise` takes a
//! hold only if the generation is still the link's, so it never touches the plan's next life. It lowers the plan's urgency (class and
//! deadline in one word: the less, the sooner), sets the group's bit, and has the plan pushed into the urgent bands of the actors that
//! the group needs, unless it is queued there already (QUEUED, a bit per actor). So a band meets a plan at most once at a time, and a
//! band with as many places as there are plans is never full: that is what an intrusive stack would be for, and the bounded queue that
//! carries all other plans, with its close and its doorbell, serves as well. The actor clears QUEUED first and reads the bits then.
//!
//! # Memory ordering
//! The fields are relaxed. P1 the word is made by `store` (Release), and a hold is taken by a compare-exchange that acquires it; the
//! queue orders `store` before the readers. P2 each `done` (AcqRel) orders its holder's use before the free list, which hands the body to
//! its next writer. P3 a raiser writes urgency and bits before its read-modify-write of QUEUED (AcqRel); the actor's clearing of
//! QUEUED (AcqRel) comes after it in the word's order, directly or behind others, and so sees the bits; or before it, then the raiser
//! finds it clear and queues the plan again. P4 the link is one word: before the plan is sent it collects wishes, `sent` takes them by
//! the swap that puts the plan's name there, so a wish is either found by the sender or finds the plan.

use super::index_stack::IndexStack;
use crate::sync::seeded::{self, Bug};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

const HOLD: u64 = 1;
const HOLDS: u64 = 0xffff_ffff;

/// Bits of a plan's index, and of a group's place in it, in a link.
const INDEX_BITS: u32 = 30;
const BIT_BITS: u32 = 6;
const GENERATION_BITS: u32 = 63 - INDEX_BITS - BIT_BITS;
const SENT: u64 = 1 << 63;

/// How soon: class, then deadline. Less is sooner.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Urgency(u64);

impl Urgency {
    const DEADLINE_BITS: u32 = 56;
    /// No wish; later than any.
    const NONE: u64 = SENT - 1;

    /// `class` is below 127; a deadline is kept up to 2^56 - 2 ns (two years of uptime).
    pub fn new(class: u8, deadline_ns: u64) -> Self {
        let deadline = deadline_ns.min((1 << Self::DEADLINE_BITS) - 2);
        Self(u64::from(class) << Self::DEADLINE_BITS | deadline)
    }

    /// The class.
    pub fn class(self) -> u8 {
        (self.0 >> Self::DEADLINE_BITS) as u8
    }

    /// The deadline in nanoseconds.
    pub fn deadline_ns(self) -> u64 {
        self.0 & ((1 << Self::DEADLINE_BITS) - 1)
    }
}

/// A plan in one of its lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlanRef {
    /// Its body.
    pub index: u32,
    generation: u32,
}

/// Where a group's plan is, for those who want it sooner; before there is one, how soon they want it.
#[derive(Debug)]
pub struct PlanLink(AtomicU64);

impl Default for PlanLink {
    fn default() -> Self {
        Self::new()
    }
}

impl PlanLink {
    /// Of a group that was never planned.
    pub fn new() -> Self {
        Self(AtomicU64::new(Urgency::NONE))
    }

    /// The group has been opened, its plan is not sent yet. For the group's owner.
    pub fn open(&self) {
        self.0.swap(Urgency::NONE, Ordering::Relaxed); // a late raiser may look: a wish too many, or a stale name, does no harm
    }

    /// The group is number `bit` of the plan. Returns the wish that came before. For the sender, before the plan is pushed.
    pub fn sent(&self, plan: PlanRef, bit: u32) -> Option<Urgency> {
        let generation = u64::from(plan.generation) & ((1 << GENERATION_BITS) - 1);
        let word = SENT | generation << (INDEX_BITS + BIT_BITS) | u64::from(plan.index) << BIT_BITS | u64::from(bit);
        let wish = if seeded::is(Bug::LinkForgetsWish) {
            let wish = self.0.load(Ordering::Relaxed);
            self.0.swap(word, Ordering::AcqRel);
            wish
        } else {
            self.0.swap(word, Ordering::AcqRel) // P4
        };
        (wish < Urgency::NONE).then_some(Urgency(wish))
    }

    /// The plan and the group's bit; or, before it is sent, leaves the wish and returns `None`.
    pub fn want(&self, urgency: Urgency) -> Option<(PlanRef, u32)> {
        let leave = |word| (word & SENT == 0).then_some(urgency.0.min(word));
        let word = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, leave).err()?; // P4
        let index = (word >> BIT_BITS) as u32 & ((1 << INDEX_BITS) - 1);
        let generation = ((word & !SENT) >> (INDEX_BITS + BIT_BITS)) as u32;
        Some((PlanRef { index, generation }, word as u32 & ((1 << BIT_BITS) - 1)))
    }
}

#[derive(Debug)]
struct Body<const GROUPS: usize> {
    word: AtomicU64,
    len: AtomicU32,
    stamp_ns: AtomicU64,
    /// As it was planned.
    base: AtomicU64,
    /// The most urgent wish for any of the groups in `raised`.
    urgency: AtomicU64,
    raised: AtomicU64,
    /// QUEUED: a bit for each actor whose urgent band has the plan.
    queued: AtomicU64,
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

    /// `plans` bodies, for `actors` actors, at most 64.
    pub fn new(plans: u32, actors: usize) -> Self {
        const { assert!(GROUPS <= 1 << BIT_BITS, "a set of groups is a word") };
        assert!(plans <= 1 << INDEX_BITS && actors <= u64::BITS as usize);
        let body = || Body {
            word: AtomicU64::new(0),
            len: AtomicU32::new(0),
            stamp_ns: AtomicU64::new(0),
            base: AtomicU64::new(0),
            urgency: AtomicU64::new(0),
            raised: AtomicU64::new(0),
            queued: AtomicU64::new(0),
            groups: std::array::from_fn(|_| AtomicU32::new(0)),
        };
        Self {
            bodies: (0..plans).map(|_| body()).collect(),
            shares: (0..plans as usize * actors).map(|_| AtomicU64::new(0)).collect(),
            actors,
            free: IndexStack::full(plans),
        }
    }

    /// Stores a plan for the actors whose share is not empty; each has a hold on it.
    ///
    /// # Panics
    /// If no body is free: the caller bounds the plans, see "bounded by construction" in `docs/ARCHITECTURE.md`.
    pub fn store(&self, groups: &[u32], shares: &[u64], stamp_ns: u64, urgency: Urgency) -> PlanRef {
        debug_assert!(shares.len() == self.actors && !groups.is_empty());
        let index = self.free.pop().expect("plans are bounded by the credit of their tokens");
        let body = &self.bodies[index as usize];
        let holds = shares.iter().filter(|&&share| share != 0).count() as u64;
        let all = u64::MAX >> (u64::BITS as usize - groups.len());
        for (slot, &share) in self.shares[index as usize * self.actors..].iter().zip(shares) {
            slot.store(share & all, Ordering::Relaxed);
        }
        body.len.store(groups.len() as u32, Ordering::Relaxed);
        body.stamp_ns.store(stamp_ns, Ordering::Relaxed);
        body.base.store(urgency.0, Ordering::Relaxed);
        // Swaps, as a raiser of the seeded bugs may be at work; none is in the protocol as it is.
        body.urgency.swap(u64::MAX, Ordering::Relaxed);
        body.raised.swap(0, Ordering::Relaxed);
        body.queued.swap(0, Ordering::Relaxed);
        for (slot, &group) in body.groups.iter().zip(groups) {
            slot.store(group, Ordering::Relaxed);
        }
        let before = body.word.fetch_add(holds * HOLD, Ordering::Release); // P1
        debug_assert!(before & HOLDS == 0 || seeded::is(Bug::PlanReturnedEarly));
        PlanRef { index, generation: (before >> 32) as u32 }
    }

    /// Time at which the plan was made, nanoseconds of the scheduler's clock. For a holder.
    pub fn stamp_ns(&self, plan: u32) -> u64 {
        self.bodies[plan as usize].stamp_ns.load(Ordering::Relaxed)
    }

    /// Class and deadline as planned. For a holder.
    pub fn urgency(&self, plan: u32) -> Urgency {
        Urgency(self.bodies[plan as usize].base.load(Ordering::Relaxed))
    }

    /// The set of groups of the plan that need something of `actor`. For a holder.
    pub fn share(&self, plan: u32, actor: usize) -> u64 {
        let share = self.shares[plan as usize * self.actors + actor].load(Ordering::Relaxed);
        let len = self.bodies[plan as usize].len.load(Ordering::Relaxed) as usize;
        if seeded::is(Bug::PlanIgnoresShares) { u64::MAX >> (u64::BITS as usize - len) } else { share }
    }

    /// Group number `bit` of the plan. For a holder.
    pub fn group(&self, plan: u32, bit: u32) -> u32 {
        self.bodies[plan as usize].groups[bit as usize].load(Ordering::Relaxed)
    }

    /// Takes a hold on a plan in this life of it.
    fn hold(&self, plan: PlanRef) -> bool {
        let same = |word: u64| {
            let generation = (word >> 32) as u32 ^ plan.generation;
            generation & ((1 << GENERATION_BITS) - 1) == 0 || seeded::is(Bug::RaiseIgnoresGeneration)
        };
        let more = |word: u64| (word & HOLDS != 0 && same(word)).then_some(word + HOLD);
        self.bodies[plan.index as usize].word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).is_ok() // P1
    }

    /// Asks for group `bit` of the plan by `urgency`. Returns the set of actors to whose urgent bands the caller must push the plan's
    /// index; each entry has a hold, which goes back with [`PlanSlab::done`]. Nothing happens if the plan's life has ended, or has a
    /// better wish, or is as urgent already.
    ///
    /// Only a name that is exactly 2^27 lives old is mistaken; then a group of another plan is read earlier than it might be.
    #[must_use]
    pub fn raise(&self, plan: PlanRef, bit: u32, urgency: Urgency) -> u64 {
        if !self.hold(plan) {
            return 0;
        }
        let body = &self.bodies[plan.index as usize];
        let mut push = 0;
        if urgency.0 < body.base.load(Ordering::Relaxed) {
            let better = body.urgency.fetch_min(urgency.0, Ordering::Relaxed) > urgency.0;
            let first = body.raised.fetch_or(1 << bit, Ordering::Relaxed) >> bit & 1 == 0;
            if better || first {
                let owners = (0..self.actors)
                    .filter(|&actor| self.share(plan.index, actor) >> bit & 1 == 1)
                    .fold(0, |owners, actor| owners | 1 << actor);
                push = owners & !body.queued.fetch_or(owners, Ordering::AcqRel); // P3
                if !seeded::is(Bug::RaiseWithoutHold) {
                    body.word.fetch_add(u64::from(push.count_ones()) * HOLD, Ordering::AcqRel);
                }
            }
        }
        self.done(plan.index);
        push
    }

    /// An actor has taken the plan out of its urgent band: the groups of its share that are wanted sooner, and how soon. The entry's
    /// hold is the caller's.
    pub fn take_raised(&self, plan: u32, actor: usize) -> (u64, Urgency) {
        let body = &self.bodies[plan as usize];
        if seeded::is(Bug::RaiseReadFirst) {
            let raised = body.raised.load(Ordering::Relaxed);
            body.queued.fetch_and(!(1 << actor), Ordering::AcqRel);
            return (raised & self.share(plan, actor), Urgency(body.urgency.load(Ordering::Relaxed)));
        }
        body.queued.fetch_and(!(1 << actor), Ordering::AcqRel); // P3
        let raised = body.raised.load(Ordering::Relaxed);
        (raised & self.share(plan, actor), Urgency(body.urgency.load(Ordering::Relaxed)))
    }

    /// An actor has started all that it wants of the plan: its share and its hold go back. An entry of its urgent band that is still on
    /// the way finds no share, and nothing is taken in twice. True: as [`PlanSlab::done`].
    pub fn release(&self, plan: u32, actor: usize) -> bool {
        if !seeded::is(Bug::ReleaseKeepsShare) {
            self.shares[plan as usize * self.actors + actor].store(0, Ordering::Relaxed); // read by raisers, and by the actor itself
        }
        self.done(plan)
    }

    /// A hold goes back. True: it was the last, the body went back to the free list.
    pub fn done(&self, plan: u32) -> bool {
        let early = seeded::is(Bug::PlanReturnedEarly);
        // P2. Only the last holder gets to 0, and nobody takes a hold from there: moving the generation on in the same step is one with it.
        let less = |word: u64| {
            let word = word - HOLD;
            Some(if word & HOLDS == 0 { (word >> 32).wrapping_add(1) << 32 } else { word })
        };
        let before = self.bodies[plan as usize].word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less);
        let last = before.is_ok_and(|word| word & HOLDS == HOLD) || early;
        if last {
            self.free.push(plan);
        }
        last
    }
}
