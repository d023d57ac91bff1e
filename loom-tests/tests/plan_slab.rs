//! Plan slab: a plan with two readers, and a group of it that is used again before the second reader comes.
//!
//! Scenarios: (a) group A needs actor 0 only, group B both; the plan goes to actor 1 through its queue; actor 0 completes A, frees it
//! and opens it for other rows before, while, or after actor 1 reads the plan: actor 1 finds B as it was planned, and never meets A;
//! (b) two readers that are done at once: the body goes back once, and whoever gets it next writes a plan that no reader of the old one
//! sees.
#![cfg(loom)]

use engram_sched_core::protocol::group::{Group, Joined, Links};
use engram_sched_core::protocol::index_stack::IndexStack;
use engram_sched_core::protocol::plan_queue::PlanQueue;
use engram_sched_core::protocol::plan_slab::{PlanSlab, Urgency};
use engram_sched_core::sync::seeded::Bug;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use loom::thread;
use loom_tests::{catches, passes};

const OTHER_ROWS: &str = "an actor met a group that was opened for other rows";
const ONCE: &str = "a plan's body was not given back exactly once";
const ANOTHER: &str = "a reader saw another plan's body";

const A: u32 = 0;
const B: u32 = 1;
const ROWS: [u32; 2] = [7, 8];
const OTHER: u32 = 9;

/// What a group's assembly is for, relaxed as in production, and the bytes of its two actors.
struct Key {
    rows: AtomicU32,
    bytes: [UnsafeCell<u32>; 2],
}

struct World {
    plans: PlanSlab<2>,
    queue: PlanQueue<u32, 1>,
    groups: [Group<Key>; 2],
    links: Links,
    free_groups: IndexStack,
    given_back: AtomicUsize,
    served: AtomicUsize,
}

// SAFETY: whether accesses may overlap is what the models find out.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

impl World {
    fn new() -> Arc<Self> {
        let group = || {
            let bytes = [UnsafeCell::new(0), UnsafeCell::new(0)];
            Group::new(Key { rows: AtomicU32::new(0), bytes })
        };
        Arc::new(Self {
            plans: PlanSlab::new(1, 2),
            queue: PlanQueue::new(1),
            groups: [group(), group()],
            links: Links::new(3),
            free_groups: IndexStack::full(2),
            given_back: AtomicUsize::new(0),
            served: AtomicUsize::new(0),
        })
    }

    /// Opens a free group for `rows`, for one node; as `want_group` does.
    fn open(&self, rows: u32, deposits: u32, node: u32) -> u32 {
        let group = self.free_groups.pop().expect("a group is free");
        let opened = &self.groups[group as usize];
        opened.key().rows.store(rows, Ordering::Relaxed);
        opened.open(deposits);
        assert_eq!(opened.join(node, &self.links), Joined::Waits);
        group
    }

    fn unpin(&self, group: u32) {
        if self.groups[group as usize].unpin() {
            for bytes in &self.groups[group as usize].key().bytes {
                // SAFETY: the last reference is gone, the group is ours.
                bytes.with_mut(|b| unsafe { *b = 0xDB });
            }
            self.free_groups.push(group);
        }
    }

    /// An actor's part in a group: fills its bytes, deposits, and serves the nodes (one cell each) if it is the last.
    fn deposit(&self, group: u32, actor: usize, actors: usize) {
        let key = self.groups[group as usize].key();
        // SAFETY: the actor's own extent.
        key.bytes[actor].with_mut(|b| unsafe { *b = 1 });
        let Some(mut waiters) = self.groups[group as usize].deposit() else { return };
        while waiters.next(&self.links).is_some() {
            for bytes in &key.bytes[..actors] {
                // SAFETY: published, and pinned for the node.
                assert_eq!(bytes.with(|b| unsafe { *b }), 1, "a waiter saw an incomplete group");
            }
            self.served.fetch_add(1, Ordering::Relaxed);
            self.unpin(group);
        }
        self.unpin(group);
    }

    /// An actor takes a plan in: it looks at the rows of each of its groups, as `IoActor::take_in` does.
    fn take_in(&self, plan: u32, actor: usize) -> Vec<u32> {
        let groups: Vec<u32> = groups_of(&self.plans, plan, actor)
            .into_iter()
            .inspect(|&group| {
                let rows = self.groups[group as usize].key().rows.load(Ordering::Relaxed);
                assert_eq!(rows, ROWS[group as usize], "{OTHER_ROWS}");
            })
            .collect();
        if self.plans.done(plan) {
            self.given_back.fetch_add(1, Ordering::Relaxed);
        }
        groups
    }
}

/// The groups of an actor's share.
fn groups_of(plans: &PlanSlab<2>, plan: u32, actor: usize) -> Vec<u32> {
    let share = plans.share(plan, actor);
    (0..2).filter(|bit| share >> bit & 1 == 1).map(|bit| plans.group(plan, bit)).collect()
}

fn a_group_used_again() {
    let world = World::new();
    let late = {
        let world = Arc::clone(&world);
        thread::spawn(move || {
            let plan = loop {
                if let Some(plan) = world.queue.pop(0) {
                    break plan;
                }
                thread::yield_now();
            };
            assert!(world.take_in(plan, 1).contains(&B));
            world.deposit(B, 1, 2);
        })
    };
    let planned = [world.open(ROWS[0], 1, 0), world.open(ROWS[1], 2, 1)];
    assert_eq!(planned, [A, B]);
    let plan = world.plans.store(&planned, &[0b11, 0b10], 1, Urgency::new(1, 1)).index;
    let _ = world.queue.push(0, plan).expect("the queue has room");
    assert_eq!(world.take_in(plan, 0), [A, B]);
    world.deposit(A, 0, 1);
    // A served its one cell and is free again: other rows get it, in a plan of which nothing is read yet.
    assert_eq!(world.open(OTHER, 1, 2), A);
    world.deposit(B, 0, 2);
    late.join().unwrap();
    let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    assert_eq!(count(&world.given_back), 1, "{ONCE}");
    assert_eq!(count(&world.served), 2, "each planned group serves its cell once");
    // Nobody deposited into the new assembly: it is complete by its own deposit, and not before.
    world.deposit(A, 0, 1);
    assert_eq!(count(&world.served), 3, "{OTHER_ROWS}");
}

fn two_readers_at_once() {
    let world = World::new();
    let plan = world.plans.store(&[A, B], &[0b11, 0b10], 1, Urgency::new(1, 1)).index;
    let read = move |world: &World, actor: usize, share: &[u32]| {
        let (stamp, groups) = (world.plans.stamp_ns(plan), groups_of(&world.plans, plan, actor));
        assert!(stamp == 1 && groups == share, "{ANOTHER}");
        if world.plans.done(plan) {
            // The next plan, of one group and one reader.
            assert_eq!(world.plans.store(&[B, A], &[0b01, 0], 2, Urgency::new(1, 1)).index, plan);
        }
    };
    let other = {
        let world = Arc::clone(&world);
        thread::spawn(move || read(&world, 1, &[B]))
    };
    read(&world, 0, &[A, B]);
    other.join().unwrap();
    assert_eq!((world.plans.stamp_ns(plan), groups_of(&world.plans, plan, 0)), (2, vec![B]));
    assert!(world.plans.done(plan), "{ONCE}");
}

#[test]
fn plan_slab() {
    passes("plan slab, a group used again", a_group_used_again);
    passes("plan slab, two readers at once", two_readers_at_once);
    catches("plan slab", Bug::PlanIgnoresShares, OTHER_ROWS, a_group_used_again);
    catches("plan slab", Bug::PlanReturnedEarly, ONCE, a_group_used_again);
    catches("plan slab", Bug::PlanReturnedEarly, ANOTHER, two_readers_at_once);
}
