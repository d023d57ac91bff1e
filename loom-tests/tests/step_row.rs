//! Step row, cell and layer gate together: binder against taker against depositor, and the next step behind them.
//!
//! Stated: each row is counted once, so the layer is finished once; the finisher has every use of the destination behind it; each cell comes
//! back once; and what is taken from a step is its own.
//!
//! Scenarios: (a) a binder, a depositor, and a taker that holds the gate (a rollback, a deadline, the end of the step); (b) without
//! a deposit: what is taken waits for no read; the same of a cell that is bound already; (c) a taker of a step that is over, against the binder of the next one in the same slot; (d) a binder that is
//! slow to settle, while its row is delivered and serves the next step, whose row is taken.
//!
//! `World` repeats `Core::bind_row`, `take_row`, `count_rows` and the copy, for one row; the protocols are the real ones.
#![cfg(loom)]

use engram_sched_core::protocol::cell::{Bound, Cell, Deposited, Orphaned};
use engram_sched_core::protocol::layer_gate::LayerGate;
use engram_sched_core::protocol::lease::Lease;
use engram_sched_core::protocol::step_row::{StepRow, Took};
use engram_sched_core::sync::seeded::Bug;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use loom_tests::{catches, passes};
use std::sync::atomic::{AtomicUsize as Count, Ordering::SeqCst};

const FINISHED: &str = "a layer was not finished exactly once";
const BACK: &str = "a cell did not come back exactly once";
const CELLS: usize = 2;

struct World {
    lease: Lease,
    row: StepRow,
    gate: LayerGate,
    destination: UnsafeCell<u32>,
    cells: [Cell<()>; CELLS],
    /// The bytes of each cell's one group.
    groups: [UnsafeCell<u32>; CELLS],
    /// How often; outside of loom's sight.
    finished: Count,
    freed: [Count; CELLS],
}

// SAFETY: whether accesses may overlap is what the models find out.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

impl World {
    /// A step of one row has begun, with the setter's count given: references of its handle and its layer. Cell 0 waits for a deposit.
    fn new() -> (Arc<Self>, u32) {
        let world = Self {
            lease: Lease::new(),
            row: StepRow::new(),
            gate: LayerGate::new(),
            destination: UnsafeCell::new(0),
            cells: [Cell::new(()), Cell::new(())],
            groups: [UnsafeCell::new(0), UnsafeCell::new(0)],
            finished: Count::new(0),
            freed: [Count::new(0), Count::new(0)],
        };
        let generation = world.begin().expect("the slot is free");
        (Arc::new(world), generation)
    }

    /// The next step takes the slot, if it is free.
    fn begin(&self) -> Option<u32> {
        let generation = self.lease.claim(2)?;
        self.row.arm(generation);
        self.gate.arm(1);
        self.count(1);
        Some(generation)
    }

    /// `count_rows`, and `finish_layer`, which writes to the destination.
    fn count(&self, n: u32) {
        if self.gate.complete(n) {
            // SAFETY: nobody writes there any more.
            self.destination.with_mut(|d| unsafe { *d = 0 });
            self.finished.fetch_add(1, SeqCst);
            self.gate.open();
            self.lease.release();
        }
    }

    fn free(&self, cell: usize) {
        // SAFETY: the cell held the last reference.
        self.groups[cell].with_mut(|b| unsafe { *b = 0xDB });
        self.freed[cell].fetch_add(1, SeqCst);
    }

    fn copy(&self, cell: usize) {
        // SAFETY: complete.
        let bytes = self.groups[cell].with(|b| unsafe { *b });
        // SAFETY: the claimed cell's own.
        self.destination.with_mut(|d| unsafe { *d = bytes });
        self.cells[cell].finish();
        self.free(cell);
        self.count(1);
    }

    fn deposit(&self, cell: usize) {
        // SAFETY: the depositor's own group.
        self.groups[cell].with_mut(|b| unsafe { *b = 7 });
        match self.cells[cell].deposit() {
            Deposited::Pending => {}
            Deposited::Copy => self.copy(cell),
            Deposited::Free => self.free(cell),
        }
    }

    /// True: a destination was taken away.
    fn orphan(&self, cell: usize, generation: u32) -> bool {
        match self.cells[cell].orphan(generation) {
            Orphaned::Free => {
                self.free(cell);
                false
            }
            Orphaned::Later { was_bound } => was_bound,
            Orphaned::Delivered => false,
        }
    }

    /// A new cell of one deposit for the row of step `generation`; it may be for nothing.
    fn bind(&self, generation: u32, cell: usize, cell_generation: u32) {
        if !self.row.start(generation, cell_generation) {
            self.orphan(cell, cell_generation);
            return;
        }
        if self.cells[cell].bind() == Bound::Copy {
            self.copy(cell);
        }
        if !self.row.settle(generation, cell as u32) && self.orphan(cell, cell_generation) {
            self.count(1);
        }
    }

    /// `end_layer` of one row, by who holds no more than the gate.
    fn take(&self, generation: u32) -> Option<Took> {
        if !self.gate.hold() {
            return None;
        }
        let took = self.row.take(generation);
        let count = match took {
            Took::Nothing | Took::Binding => 0,
            Took::Empty => 1,
            Took::Bound(cell, cell_generation) => u32::from(self.orphan(cell as usize, cell_generation)),
        };
        self.count(count + 1);
        Some(took)
    }

    fn assert_over(&self, finished: usize, freed: [usize; CELLS]) {
        assert_eq!(self.finished.load(SeqCst), finished, "{FINISHED}");
        assert!(self.gate.is_complete(), "{FINISHED}");
        assert_eq!([0, 1].map(|cell| self.freed[cell].load(SeqCst)), freed, "{BACK}");
    }
}

fn spawn(world: &Arc<World>, f: impl Fn(&World) + 'static) -> thread::JoinHandle<()> {
    let world = Arc::clone(world);
    thread::spawn(move || f(&world))
}

fn binder_taker_depositor() {
    let (world, generation) = World::new();
    let cell_generation = world.cells[0].init(1);
    let others = [spawn(&world, |world| world.deposit(0)), spawn(&world, move |world| _ = world.take(generation))];
    world.bind(generation, 0, cell_generation);
    others.into_iter().for_each(|t| t.join().unwrap());
    world.assert_over(1, [1, 0]);
}

/// What is taken does not wait for its read: the layer ends although no deposit comes before.
fn binder_and_taker() {
    let (world, generation) = World::new();
    let cell_generation = world.cells[0].init(1);
    let taker = spawn(&world, move |world| _ = world.take(generation));
    world.bind(generation, 0, cell_generation);
    taker.join().unwrap();
    world.assert_over(1, [0, 0]);
    world.deposit(0);
    world.assert_over(1, [1, 0]);
}

fn two_takers_of_a_bound_row() {
    let (world, generation) = World::new();
    let cell_generation = world.cells[0].init(1);
    world.bind(generation, 0, cell_generation);
    let others = [spawn(&world, |world| world.deposit(0)), spawn(&world, move |world| _ = world.take(generation))];
    let _ = world.take(generation);
    others.into_iter().for_each(|t| t.join().unwrap());
    world.assert_over(1, [1, 0]);
}

fn taker_of_a_step_that_is_over() {
    let (world, first) = World::new();
    let late = spawn(&world, move |world| {
        let took = world.take(first);
        assert!(
            matches!(took, None | Some(Took::Empty | Took::Nothing)),
            "a taker took what is not its step's: {took:?}"
        );
    });
    let _ = world.take(first); // the end of the step; its handle lets go
    world.lease.release();
    if let Some(second) = world.begin() {
        let cell_generation = world.cells[1].init(1);
        world.bind(second, 1, cell_generation);
        late.join().unwrap();
        assert_eq!(world.row.cell(), Some(1), "a taker took what is not its step's");
        world.deposit(1);
        world.assert_over(2, [0, 1]);
    } else {
        late.join().unwrap();
        world.assert_over(1, [0, 0]);
    }
}

fn slow_to_settle() {
    let (world, first) = World::new();
    let cell_generation = world.cells[0].init(1);
    world.lease.release(); // the handle; the layer's reference stays
    let slow = spawn(&world, move |world| world.bind(first, 0, cell_generation));
    world.deposit(0);
    // Generations of cells differ: cell 1 is in its third life.
    for _ in 0..2 {
        let generation = world.cells[1].init(0);
        assert_eq!(world.cells[1].orphan(generation), Orphaned::Free);
    }
    let cell_generation = world.cells[1].init(1);
    if let Some(second) = world.begin() {
        world.bind(second, 1, cell_generation);
        let took = world.take(second);
        assert_eq!(took, Some(Took::Bound(1, cell_generation)), "a row names a cell of another generation");
        slow.join().unwrap();
        world.deposit(1);
        world.assert_over(2, [1, 1]);
    } else {
        slow.join().unwrap();
        world.assert_over(1, [1, 0]);
    }
}

#[test]
fn step_row() {
    passes("step row, binder, taker, depositor", binder_taker_depositor);
    passes("step row, binder and taker", binder_and_taker);
    passes("step row, two takers of a bound row", two_takers_of_a_bound_row);
    passes("step row, slow to settle", slow_to_settle);
    catches("step row", Bug::StepRowForgetsTaken, FINISHED, binder_and_taker);
    catches("step row", Bug::CellOrphanForgetsBound, FINISHED, two_takers_of_a_bound_row);
}

#[test]
fn next_step() {
    passes("step row, a taker of a step that is over", taker_of_a_step_that_is_over);
    let others = "a taker took what is not its step's";
    catches("step row", Bug::StepRowSkipsGeneration, others, taker_of_a_step_that_is_over);
}
