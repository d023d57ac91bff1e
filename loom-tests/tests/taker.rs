//! Taker, ask and mailbox: a range that is cut, beside the next one that is asked for; and guards, beside the next range.
//!
//! Scenarios: (a) an engine has taken all of a range, rolls back into it and awaits again, while another thread runs the actor: the range it
//! asked for is bound behind the cut, and all its layers are due; (b) a range is cut while it is awaited: the next claim asks anew, once
//! the guards are dropped; (c) a guard's last look, against the binding of the next range, which writes there.
//!
//! `Slot` repeats the order of `Core::deliver`, `look`, `cut`, `bind_own` and `AwaitLayer::claim_of_request`; the protocols are the real ones.
#![cfg(loom)]

use engram_sched_core::protocol::ask::Ask;
use engram_sched_core::protocol::mailbox::Mailbox;
use engram_sched_core::protocol::run_gate::RunGate;
use engram_sched_core::protocol::taker::{ClaimRefused, Claimed, Taker};
use engram_sched_core::sync::seeded::Bug;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use loom_tests::{catches, passes};

const LAYERS: u32 = 2;
const CUT: u64 = 1;
const TAKEN_BACK: &str = "a range that was asked for was taken back";

struct Actor {
    /// A range is bound; how many have been.
    own: bool,
    ranges: usize,
}

struct Slot {
    taker: Taker,
    bind: Ask,
    mailbox: Mailbox,
    actor: RunGate<Actor>,
    destination: UnsafeCell<usize>,
}

// SAFETY: whether accesses may overlap is what the models find out.
unsafe impl Sync for Slot {}
// SAFETY: as above.
unsafe impl Send for Slot {}

impl Slot {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            taker: Taker::new(),
            bind: Ask::new(),
            mailbox: Mailbox::new(2),
            actor: RunGate::new(Actor { own: false, ranges: 0 }),
            destination: UnsafeCell::new(0),
        })
    }

    fn run(&self) {
        if let Some(runner) = self.actor.notify() {
            let left = runner.run(|actor| {
                self.look(actor);
                true
            });
            assert!(left.is_none());
        }
    }

    fn look(&self, actor: &mut Actor) {
        let asked = self.bind.take();
        let tail = self.mailbox.tail();
        while self.mailbox.pop(tail).is_some() {
            if actor.own {
                self.taker.restart();
            }
        }
        if asked {
            self.taker.bound();
            actor.own = true;
            actor.ranges += 1;
            // SAFETY: no guard of the range before is alive.
            self.destination.with_mut(|d| unsafe { *d = actor.ranges });
        }
    }

    fn cut(&self) {
        self.mailbox.push([CUT].into_iter());
        self.run();
    }

    /// True: a new range was asked for.
    fn claim(&self) -> bool {
        let asks = match self.taker.claim(LAYERS, None) {
            Ok(Claimed::AsksFor) => true,
            Ok(Claimed::Waits(_)) => false,
            Err(refused) => panic!("one engine: {refused:?}"),
        };
        if asks {
            self.bind.raise();
            self.run();
        }
        asks
    }

    fn take(&self) {
        self.taker.take();
        self.taker.drop_guard();
    }

    fn ranges(&self) -> usize {
        let mut ranges = 0;
        self.actor.notify().expect("the gate is claimed by nobody").run(|actor| {
            self.look(actor);
            ranges = actor.ranges;
            true
        });
        ranges
    }
}

fn spawn(slot: &Arc<Slot>, f: impl Fn(&Slot) + 'static) -> thread::JoinHandle<()> {
    let slot = Arc::clone(slot);
    thread::spawn(move || f(&slot))
}

fn cut_and_ask() {
    let slot = Slot::new();
    for _ in 0..LAYERS {
        slot.claim();
        slot.take();
    }
    let runner = spawn(&slot, Slot::run);
    slot.cut();
    assert!(slot.claim(), "a range that was taken is over");
    slot.take();
    runner.join().unwrap();
    assert_eq!(slot.ranges(), 2, "{TAKEN_BACK}");
    assert_eq!(slot.taker.claim(LAYERS, Some(1)), Ok(Claimed::Waits(1)), "{TAKEN_BACK}");
}

fn cut_while_awaited() {
    let slot = Slot::new();
    assert!(slot.claim());
    let cutter = spawn(&slot, Slot::cut);
    slot.taker.take();
    cutter.join().unwrap();
    let _ = slot.ranges();
    assert_eq!(slot.taker.claim(LAYERS, None), Err(ClaimRefused::Busy), "a range gave way under a guard");
    slot.taker.drop_guard();
    assert!(slot.claim(), "a range that was cut is over");
    assert_eq!(slot.ranges(), 2);
}

fn guard_and_next_range() {
    let slot = Slot::new();
    slot.claim();
    slot.take();
    assert!(!slot.claim());
    slot.taker.take(); // the last layer; the guard goes to another thread
    let guard = spawn(&slot, |slot| {
        // SAFETY: the guard is alive.
        assert_eq!(slot.destination.with(|d| unsafe { *d }), 1);
        slot.taker.drop_guard();
    });
    if slot.taker.claim(LAYERS, None) == Ok(Claimed::AsksFor) {
        slot.bind.raise();
        slot.run();
    }
    guard.join().unwrap();
}

#[test]
fn taker() {
    passes("taker, cut and ask", cut_and_ask);
    passes("taker, cut while awaited", cut_while_awaited);
    passes("taker, guard and next range", guard_and_next_range);
    catches("taker", Bug::TakerCutsAsked, TAKEN_BACK, cut_and_ask);
    catches("taker", Bug::TakerIgnoresGuards, "Causality violation", guard_and_next_range);
}
