//! Tenure and taker: whose a slot is, who may look at a range.
//!
//! Scenarios: (a) a push and a hold against `end` and recycling: nobody reuses the slot under them; (b) a late `end` of an old id
//! against the slot's next request; (c) a guard's last look against the next range's first write.
#![cfg(loom)]

use engram_sched_core::protocol::run_gate::RunGate;
use engram_sched_core::protocol::taker::{ClaimRefused, Claimed, Taker};
use engram_sched_core::protocol::tenure::Tenure;
use engram_sched_core::sync::seeded::Bug;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use loom_tests::{catches, passes};

struct Slot {
    tenure: Tenure,
    /// The slot's runner and whether it has recycled the slot: as in the scheduler, one thread at a time looks, and once is enough.
    runner: RunGate<bool>,
    bytes: UnsafeCell<u32>,
}

// SAFETY: whether accesses may overlap is what the models find out.
unsafe impl Sync for Slot {}

impl Slot {
    fn new() -> (Arc<Self>, u32) {
        let slot = Arc::new(Self { tenure: Tenure::new(), runner: RunGate::new(false), bytes: UnsafeCell::new(0) });
        let generation = slot.tenure.begin();
        (slot, generation)
    }

    /// Announces that the slot may be free; the runner looks, and prepares it for the next life if nobody is there.
    fn try_recycle(&self) {
        if let Some(runner) = self.runner.notify() {
            let left = runner.run(|recycled| {
                if !*recycled && !self.tenure.is_live() && self.tenure.recycle() {
                    // SAFETY: vacant.
                    self.bytes.with_mut(|b| unsafe { *b = 9 });
                    *recycled = true;
                }
                true
            });
            assert!(left.is_none());
        }
    }
}

fn push_against_recycle() {
    let (slot, generation) = Slot::new();
    let pusher = {
        let slot = Arc::clone(&slot);
        thread::spawn(move || {
            if slot.tenure.start_push(generation).is_ok() {
                // SAFETY: the slot is ours while we push.
                slot.bytes.with_mut(|b| unsafe { *b = 1 });
                slot.tenure.end_push();
            }
        })
    };
    assert!(slot.tenure.end(generation));
    slot.try_recycle();
    pusher.join().unwrap();
}

fn hold_against_recycle() {
    let (slot, generation) = Slot::new();
    let holder = {
        let slot = Arc::clone(&slot);
        thread::spawn(move || {
            if slot.tenure.hold(generation) {
                // SAFETY: the slot is held.
                slot.bytes.with_mut(|b| unsafe { *b = 1 });
                if slot.tenure.release() {
                    slot.try_recycle();
                }
            }
        })
    };
    if slot.tenure.end(generation) {
        slot.try_recycle();
    }
    holder.join().unwrap();
    // Whoever came last recycled it, once.
    assert_eq!(slot.tenure.life(), (generation + 1, false), "the slot was not recycled");
}

fn late_end() {
    let (slot, generation) = Slot::new();
    let late = {
        let slot = Arc::clone(&slot);
        thread::spawn(move || slot.tenure.end(generation))
    };
    let mine = slot.tenure.end(generation);
    if mine {
        assert!(slot.tenure.recycle());
        let next = slot.tenure.begin();
        let theirs = late.join().unwrap();
        assert!(!theirs && slot.tenure.is(next), "a late end hit the slot's next request");
    } else {
        assert!(late.join().unwrap(), "one of two ends counts");
    }
}

struct Range {
    taker: Taker,
    bytes: UnsafeCell<u32>,
}

// SAFETY: as above.
unsafe impl Sync for Range {}

fn guard_against_next_range() {
    let range = Arc::new(Range { taker: Taker::new(), bytes: UnsafeCell::new(0) });
    assert_eq!(range.taker.claim(1, None), Ok(Claimed::AsksFor));
    range.taker.take();
    let guard = {
        let range = Arc::clone(&range);
        thread::spawn(move || {
            // SAFETY: the guard is alive.
            range.bytes.with(|b| unsafe { *b });
            range.taker.drop_guard();
        })
    };
    match range.taker.claim(1, Some(0)) {
        // SAFETY: the last range is over.
        Ok(Claimed::AsksFor) => range.bytes.with_mut(|b| unsafe { *b = 1 }),
        Err(ClaimRefused::Busy) => {}
        other => panic!("{other:?}"),
    }
    guard.join().unwrap();
}

fn one_waiter() {
    let range = Arc::new(Range { taker: Taker::new(), bytes: UnsafeCell::new(0) });
    let other = {
        let range = Arc::clone(&range);
        thread::spawn(move || range.taker.claim(2, None))
    };
    let mine = range.taker.claim(2, None);
    let theirs = other.join().unwrap();
    assert!(
        matches!(
            (mine, theirs),
            (Ok(Claimed::AsksFor), Err(ClaimRefused::Busy)) | (Err(ClaimRefused::Busy), Ok(Claimed::AsksFor))
        ),
        "two waiters at once"
    );
    range.taker.unclaim();
    assert_eq!(range.taker.claim(2, Some(1)), Err(ClaimRefused::OutOfOrder(0)));
    assert_eq!(range.taker.claim(2, Some(0)), Ok(Claimed::Waits(0)), "a dropped await keeps the range");
}

#[test]
fn tenure() {
    passes("tenure, push against recycle", push_against_recycle);
    passes("tenure, hold against recycle", hold_against_recycle);
    passes("tenure, late end", late_end);
    catches("tenure", Bug::TenureIgnoresPush, "Causality violation", push_against_recycle);
    catches("tenure", Bug::TenureSkipsGeneration, "a late end hit the slot's next request", late_end);
}

#[test]
fn taker() {
    passes("taker, guard against next range", guard_against_next_range);
    passes("taker, one waiter", one_waiter);
    catches("taker", Bug::TakerIgnoresGuards, "Causality violation", guard_against_next_range);
}
