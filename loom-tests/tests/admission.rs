//! Admission: a life begins, is served once and recycled once, whoever else runs the slot's actor meanwhile.
//!
//! Scenarios: (a) a begin, and an end at once, against a stray notify (a copier of the life before announces its last copy late); (b) the
//! same without an end: the life is being served; (c) an end of somebody else's that comes as early as it can (an id that was guessed),
//! against the begin and a stray notify; (d) the life before ends on another thread, whose run hands the slot over, still runs, and meets
//! the next life.
//!
//! The order of begin is `protocol/admission.rs`; `Slot::look` repeats the steps of `Core::look` in `sched/src/request.rs` as far as
//! lives go, so the twin that turns its two looks around is seeded here.
#![cfg(loom)]

use engram_sched_core::protocol::admission::Admission;
use engram_sched_core::protocol::index_stack::IndexStack;
use engram_sched_core::protocol::run_gate::RunGate;
use engram_sched_core::protocol::tenure::Tenure;
use engram_sched_core::sync::seeded::{self, Bug};
use loom::sync::Arc;
use loom::thread;
use loom_tests::{catches, passes};

const ONCE: &str = "a life was not recycled exactly once";
const SERVED: &str = "a life that began is not served";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Vacant,
    Serving,
    Draining,
}

struct Actor {
    phase: Phase,
    /// Values that were taken over, and generations that were recycled, in order.
    admitted: Vec<u32>,
    recycled: Vec<u32>,
}

struct Slot {
    tenure: Tenure,
    admission: Admission<u32>,
    actor: RunGate<Actor>,
    free: IndexStack,
}

impl Slot {
    fn new() -> Arc<Self> {
        let actor = Actor { phase: Phase::Vacant, admitted: Vec::new(), recycled: Vec::new() };
        Arc::new(Self {
            tenure: Tenure::new(),
            admission: Admission::new(),
            actor: RunGate::new(actor),
            free: IndexStack::full(1),
        })
    }

    /// `Core::begin`; the value is what the actor will serve.
    fn begin(&self, value: u32) -> u32 {
        while self.free.pop().is_none() {
            thread::yield_now();
        }
        let generation = self.admission.begin(&self.tenure, value);
        self.run();
        generation
    }

    /// `Core::end`. True: this call ended the life.
    fn end(&self, generation: u32) -> bool {
        let ended = self.tenure.end(generation);
        if ended {
            self.run();
        }
        ended
    }

    fn run(&self) {
        if let Some(runner) = self.actor.notify() {
            let left = runner.run(|actor| self.look(actor));
            assert!(left.is_none());
        }
    }

    fn look(&self, actor: &mut Actor) -> bool {
        let early = seeded::is(Bug::LookAsksLiveFirst).then(|| self.tenure.is_live());
        if actor.phase == Phase::Vacant
            && let Some(value) = self.admission.take()
        {
            actor.phase = Phase::Serving;
            actor.admitted.push(value);
        }
        if actor.phase == Phase::Serving && !early.unwrap_or_else(|| self.tenure.is_live()) {
            actor.phase = Phase::Draining;
        }
        let (generation, _) = self.tenure.life();
        if actor.phase == Phase::Draining && self.tenure.recycle() {
            actor.recycled.push(generation);
            actor.phase = Phase::Vacant;
            self.free.push(0);
        }
        true
    }

    /// What the actor went through, when everybody is done.
    fn told(&self) -> (Phase, Vec<u32>, Vec<u32>) {
        let mut told = None;
        let runner = self.actor.notify().expect("the gate is claimed by nobody");
        runner.run(|actor| {
            told = Some((actor.phase, actor.admitted.clone(), actor.recycled.clone()));
            true
        });
        told.expect("the look ran")
    }

    fn assert_over(&self, lives: &[(u32, u32)]) {
        let (phase, admitted, recycled) = self.told();
        let values: Vec<u32> = lives.iter().map(|&(_, value)| value).collect();
        let generations: Vec<u32> = lives.iter().map(|&(generation, _)| generation).collect();
        assert_eq!(recycled, generations, "{ONCE}");
        assert_eq!((phase, admitted), (Phase::Vacant, values), "{ONCE}");
        assert_eq!(self.tenure.life(), (generations.last().unwrap() + 1, false), "{ONCE}");
        assert!(self.free.pop().is_some() && self.free.pop().is_none(), "{ONCE}");
    }
}

fn stray(slot: &Arc<Slot>) -> thread::JoinHandle<()> {
    let slot = Arc::clone(slot);
    thread::spawn(move || slot.run())
}

fn end_at_once() {
    let slot = Slot::new();
    let stray = stray(&slot);
    let generation = slot.begin(7);
    assert!(slot.end(generation), "{ONCE}");
    stray.join().unwrap();
    slot.assert_over(&[(generation, 7)]);
}

fn no_end() {
    let slot = Slot::new();
    let stray = stray(&slot);
    let generation = slot.begin(7);
    stray.join().unwrap();
    assert_eq!(slot.told(), (Phase::Serving, vec![7], vec![]), "{SERVED}");
    assert!(slot.tenure.is(generation) && slot.free.pop().is_none(), "{SERVED}");
}

fn guessed_end() {
    let slot = Slot::new();
    let (guess, _) = slot.tenure.life();
    let stray = stray(&slot);
    let other = {
        let slot = Arc::clone(&slot);
        thread::spawn(move || slot.end(guess))
    };
    let generation = slot.begin(7);
    let mine = slot.end(generation);
    stray.join().unwrap();
    assert_eq!(u32::from(other.join().unwrap()) + u32::from(mine), 1, "one of two ends counts");
    slot.assert_over(&[(generation, 7)]);
}

fn life_after_life() {
    let slot = Slot::new();
    let first = slot.begin(7);
    let ender = {
        let slot = Arc::clone(&slot);
        thread::spawn(move || assert!(slot.end(first)))
    };
    let second = slot.begin(8); // waits for the slot
    assert!(slot.end(second), "{ONCE}");
    ender.join().unwrap();
    slot.assert_over(&[(first, 7), (second, 8)]);
}

#[test]
fn admission() {
    passes("admission, end at once", end_at_once);
    passes("admission, no end", no_end);
    passes("admission, a guessed end", guessed_end);
    passes("admission, life after life", life_after_life);
    catches("admission", Bug::AdmissionFirst, ONCE, end_at_once);
    catches("admission", Bug::AdmissionFirst, SERVED, no_end);
    catches("admission", Bug::LookAsksLiveFirst, SERVED, no_end);
}
