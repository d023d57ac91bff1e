//! Raised plans: raise against take, give back and reuse, send, and close.
//!
//! Scenarios: (a) a raiser has the name of a plan that its actor starts, gives back, and that is stored again for other groups: the
//! raiser's group is raised in its own life or not at all, and an entry of the urgent band meets the life that it was made for; (b) two
//! raisers of two groups of a plan while the actor takes it: the actor learns of both, and a band of one place is never full; (c) a
//! group is wanted sooner while its plan is being sent: the sender finds the wish, or the wish finds the plan; (d) a raise against
//! close: the body goes back, whatever came first.
#![cfg(loom)]

use engram_sched_core::protocol::plan_queue::{PlanQueue, PushError};
use engram_sched_core::protocol::plan_slab::{PlanLink, PlanRef, PlanSlab, Urgency};
use engram_sched_core::sync::seeded::Bug;
use loom::sync::Arc;
use loom::thread;
use loom_tests::{catches, passes};

const OTHER_LIFE: &str = "a raise touched another life of the plan";
const TWICE: &str = "an actor took in what it had started";
const LOST: &str = "a raise was lost";
const LEAKED: &str = "plans are bounded by the credit of their tokens";

const URGENT: usize = 0;
const OWN: usize = 1;
/// Groups of the first life, and of the second.
const FIRST: [u32; 2] = [3, 4];
const SECOND: [u32; 2] = [5, 6];

struct World {
    plans: PlanSlab<2>,
    queue: PlanQueue<u32, 2>,
    link: PlanLink,
}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self { plans: PlanSlab::new(1, 1), queue: PlanQueue::new(1), link: PlanLink::new() })
    }

    fn store(&self, groups: [u32; 2]) -> PlanRef {
        self.plans.store(&groups, &[0b11], 1, Urgency::new(4, 100))
    }

    /// As `Core::raise_plan`.
    fn raise(&self, plan: PlanRef, bit: u32) {
        if self.plans.raise(plan, bit, Urgency::new(0, 7)) != 0 {
            match self.queue.push(URGENT, plan.index) {
                Ok(_) => {}
                Err(PushError::Closed(plan)) => {
                    self.plans.done(plan);
                }
                Err(PushError::Full(_)) => panic!("an urgent band was full"),
            }
        }
    }

    /// As `Core::raise_group`.
    fn raise_group(&self) {
        if let Some((plan, bit)) = self.link.want(Urgency::new(0, 7)) {
            self.raise(plan, bit);
        }
    }

    /// Takes what is raised; the groups that were, by their place. All entries are for groups of the first life.
    fn take_raised(&self) -> u64 {
        let mut seen = 0;
        while let Some(plan) = self.queue.pop(URGENT) {
            let (raised, urgency) = self.plans.take_raised(plan, 0);
            assert!(self.plans.group(plan, 0) < SECOND[0], "{OTHER_LIFE}");
            assert_eq!(urgency, Urgency::new(0, 7));
            seen |= raised;
            self.plans.done(plan);
        }
        seen
    }

    /// Nobody has a hold left: the one body can be had.
    fn assert_given_back(&self) {
        let _ = self.store(SECOND);
    }
}

fn raise_against_reuse() {
    let world = World::new();
    let plan = world.store(FIRST);
    assert_eq!(world.link.sent(plan, 1), None);
    let raiser = {
        let world = Arc::clone(&world);
        thread::spawn(move || world.raise_group())
    };
    // The actor has started all it wants of the plan.
    let second = world.plans.release(plan.index, 0).then(|| world.store(SECOND));
    assert_eq!(world.take_raised(), 0, "{TWICE}");
    raiser.join().unwrap();
    assert_eq!(world.take_raised(), 0, "{TWICE}");
    if let Some(second) = second {
        assert_eq!(world.plans.take_raised(second.index, 0).0, 0, "{OTHER_LIFE}");
        world.plans.done(second.index);
    }
    world.assert_given_back();
}

fn two_raisers() {
    let world = World::new();
    let plan = world.store(FIRST);
    let raisers = [0, 1].map(|bit| {
        let world = Arc::clone(&world);
        thread::spawn(move || world.raise(plan, bit))
    });
    let mut seen = world.take_raised();
    raisers.into_iter().for_each(|raiser| raiser.join().unwrap());
    seen |= world.take_raised();
    assert_eq!(seen, 0b11, "{LOST}");
    world.plans.done(plan.index);
    world.assert_given_back();
}

fn want_against_send() {
    let world = World::new();
    world.link.open();
    let wants = {
        let world = Arc::clone(&world);
        thread::spawn(move || world.raise_group())
    };
    // As `Core::send`.
    let plan = world.store(FIRST);
    let wish = world.link.sent(plan, 1);
    assert_eq!(world.queue.push(OWN, plan.index), Ok(false));
    if wish.is_some() {
        world.raise(plan, 1);
    }
    wants.join().unwrap();
    assert_eq!(world.take_raised(), 0b10, "{LOST}");
    assert_eq!(world.queue.pop(OWN), Some(plan.index));
    world.plans.done(plan.index);
    world.assert_given_back();
}

fn raise_against_close() {
    let world = World::new();
    let plan = world.store(FIRST);
    assert_eq!(world.link.sent(plan, 0), None);
    assert_eq!(world.queue.push(OWN, plan.index), Ok(false));
    let raiser = {
        let world = Arc::clone(&world);
        thread::spawn(move || world.raise_group())
    };
    world.queue.close();
    // As `IoActor::discard`.
    for band in [URGENT, OWN] {
        while let Some(plan) = world.queue.pop(band) {
            world.plans.done(plan);
        }
    }
    raiser.join().unwrap();
    world.assert_given_back();
}

#[test]
fn urgent() {
    passes("urgent, raise against reuse", raise_against_reuse);
    passes("urgent, two raisers", two_raisers);
    passes("urgent, want against send", want_against_send);
    passes("urgent, raise against close", raise_against_close);
    catches("urgent", Bug::RaiseIgnoresGeneration, OTHER_LIFE, raise_against_reuse);
    catches("urgent", Bug::RaiseWithoutHold, OTHER_LIFE, raise_against_reuse);
    catches("urgent", Bug::ReleaseKeepsShare, TWICE, raise_against_reuse);
    catches("urgent", Bug::RaiseReadFirst, LOST, two_raisers);
    catches("urgent", Bug::LinkForgetsWish, LOST, want_against_send);
    catches("urgent", Bug::QueueCloseIgnoresPushers, LEAKED, raise_against_close);
}
