//! Cell: bind against deposits against orphan. Exactly one copies or frees, and it sees every deposit and the destination.
//!
//! Scenarios: (a) two depositors and a binder; (b) two depositors and an orphaner of a waiting cell; (c) a bound cell: last deposit
//! against orphan, then reuse under the next generation.
#![cfg(loom)]

use engram_sched_core::protocol::cell::{Bound, Cell, Deposited, Orphaned};
use engram_sched_core::sync::seeded::Bug;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use loom_tests::{catches, passes};

struct Payload {
    destination: UnsafeCell<u32>,
    groups: [UnsafeCell<u32>; 2],
}

struct World {
    cell: Cell<Payload>,
    copied: AtomicUsize,
    freed: AtomicUsize,
}

// SAFETY: whether accesses may overlap is what the models find out.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

impl World {
    fn new() -> (Arc<Self>, u32) {
        let payload = Payload { destination: UnsafeCell::new(0), groups: [UnsafeCell::new(0), UnsafeCell::new(0)] };
        let world =
            Arc::new(Self { cell: Cell::new(payload), copied: AtomicUsize::new(0), freed: AtomicUsize::new(0) });
        let generation = world.cell.init(2);
        (world, generation)
    }

    fn copy(&self) {
        let payload = self.cell.payload();
        // SAFETY: claimed.
        payload.destination.with_mut(|d| unsafe { *d += 1 });
        for group in &payload.groups {
            // SAFETY: complete.
            assert_eq!(group.with(|g| unsafe { *g }), 1, "a copier saw an incomplete group");
        }
        self.cell.finish();
        self.copied.fetch_add(1, Ordering::Relaxed);
    }

    fn free(&self) {
        for group in &self.cell.payload().groups {
            // SAFETY: ours: nobody else refers to the cell.
            group.with_mut(|g| unsafe { *g = 0xDB });
        }
        self.freed.fetch_add(1, Ordering::Relaxed);
    }

    fn deposit(&self, group: usize) {
        // SAFETY: the depositor's own group.
        self.cell.payload().groups[group].with_mut(|g| unsafe { *g = 1 });
        match self.cell.deposit() {
            Deposited::Pending => {}
            Deposited::Copy => self.copy(),
            Deposited::Free => self.free(),
        }
    }

    fn bind(&self) {
        // SAFETY: the holder of a waiting cell.
        self.cell.payload().destination.with_mut(|d| unsafe { *d = 10 });
        if self.cell.bind() == Bound::Copy {
            self.copy();
        }
    }

    fn outcome(&self) -> (usize, usize) {
        (self.copied.load(Ordering::Relaxed), self.freed.load(Ordering::Relaxed))
    }
}

fn depositors(world: &Arc<World>) -> Vec<thread::JoinHandle<()>> {
    (0..2)
        .map(|group| {
            let world = Arc::clone(world);
            thread::spawn(move || world.deposit(group))
        })
        .collect()
}

fn bind_against_deposits() {
    let (world, _) = World::new();
    let threads = depositors(&world);
    world.bind();
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(world.outcome(), (1, 0), "the cell was not copied exactly once");
}

fn orphan_against_deposits() {
    let (world, generation) = World::new();
    let threads = depositors(&world);
    if world.cell.orphan(generation) == Orphaned::Free {
        world.free();
    }
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(world.outcome(), (0, 1), "the orphan was not freed exactly once");
}

fn orphan_against_copy() {
    let (world, generation) = World::new();
    world.deposit(0);
    world.bind();
    let last = {
        let world = Arc::clone(&world);
        thread::spawn(move || world.deposit(1))
    };
    let orphaned = world.cell.orphan(generation);
    last.join().unwrap();
    match orphaned {
        // The destination was taken away: nobody copies.
        Orphaned::Later { was_bound: true } => assert_eq!(world.outcome(), (0, 1), "an orphan was copied"),
        Orphaned::Delivered => assert_eq!(world.outcome(), (1, 0), "a claimed cell was not copied"),
        other => panic!("{other:?}"),
    }
    // The next life is another generation: the old name does nothing to it.
    let next = world.cell.init(1);
    assert_eq!((next, world.cell.orphan(generation)), (generation + 1, Orphaned::Delivered));
}

#[test]
fn cell() {
    passes("cell, bind against deposits", bind_against_deposits);
    passes("cell, orphan against deposits", orphan_against_deposits);
    passes("cell, orphan against copy and reuse", orphan_against_copy);
    let once = "the cell was not copied exactly once";
    catches("cell", Bug::CellBindIgnoresReady, once, bind_against_deposits);
    catches("cell", Bug::CellDepositRelaxed, "Causality violation", bind_against_deposits);
    catches("cell", Bug::CellOrphanFreesEarly, "Causality violation", orphan_against_deposits);
}
