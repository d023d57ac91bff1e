//! The end of a request: tenure, taker, layer gate, cell and run gate together, at the scale of one layer and one or two positions.
//!
//! An engine awaits; an aborter ends the request; a depositor completes the cells' groups and copies into the destination; whoever runs
//! the actor lets go, and recycles when nobody holds or copies. The next life writes the destination the moment the slot is recycled.
//! Stated: nobody's use of the destination overlaps another's; the slot is recycled exactly once, each cell comes back exactly once; a
//! waiter is never left asleep; a guard lends the bytes of its own range.
//!
//! Scenarios: (a) the engine waits until it has the layer or an error; (b) it looks once and drops its await; (c) it looks once, drops,
//! and awaits again; (d) nobody awaits: the cell is let go of unbound; (e) a range whose second position is never planned; (f) two
//! ranges, one after the other through the same gate, and the end after them; (g) the same with the end in between.
//!
//! `Slot` repeats steps of `sched/src/request.rs` (`look`, `let_go`, `bind`), `core.rs` (`copy`, `deposit_cell`, `orphan_cell`) and
//! `await_layer.rs` (`claim`, `look`, the drops) in their order, for one table and without credit; the protocols are the real ones.
#![cfg(loom)]

use engram_sched_core::protocol::ask::Ask;
use engram_sched_core::protocol::cell::{Bound, Cell, Deposited, Orphaned};
use engram_sched_core::protocol::layer_gate::LayerGate;
use engram_sched_core::protocol::run_gate::RunGate;
use engram_sched_core::protocol::taker::{Claimed, Taker};
use engram_sched_core::protocol::tenure::Tenure;
use engram_sched_core::sync::seeded::Bug;
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Notify};
use loom::thread;
use loom_tests::{catches, passes};
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::atomic::AtomicUsize as Count;
use std::task::{Poll, Wake, Waker};

const ONCE: &str = "the slot was not recycled exactly once";
/// A waiter that is left asleep, as loom says it.
const ASLEEP: &str = "deadlock";
const UNBOUND: &str = "a life begins with unbound gates";
const OTHERS: &str = "a guard lent bytes that are not its range's";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Vacant,
    Serving,
    Draining,
}

#[derive(Clone, Copy)]
struct CellRef {
    cell: usize,
    generation: u32,
}

struct Actor {
    phase: Phase,
    planned: usize,
    bound_start: usize,
    bound_end: usize,
    waiting: VecDeque<CellRef>,
    bound: Vec<CellRef>,
    recycled: usize,
}

struct Slot {
    tenure: Tenure,
    taker: Taker,
    gate: LayerGate,
    /// One for each planned position; the payload is where in the destination it goes.
    cells: Vec<Cell<UnsafeCell<usize>>>,
    /// The bytes of each cell's one group.
    groups: Vec<UnsafeCell<usize>>,
    destination: [UnsafeCell<usize>; 2],
    bind: Ask,
    /// Positions planned and in the mailbox together, and how many a range takes at most.
    end: usize,
    await_tokens: usize,
    actor: RunGate<Actor>,
    /// How often each cell came back; outside of loom's sight.
    freed: Vec<Count>,
}

// SAFETY: whether accesses may overlap is what the models find out.
unsafe impl Sync for Slot {}
// SAFETY: as above.
unsafe impl Send for Slot {}

/// The engine's thread, parked.
struct Bell(Notify);

impl Wake for Bell {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.notify();
    }
}

/// Bytes of the position's rows.
fn rows(position: usize) -> usize {
    10 + position
}

impl Slot {
    /// A live request with `planned` cells, each of which waits for one deposit.
    fn shared(planned: usize, end: usize, await_tokens: usize) -> Shared {
        let cells: Vec<_> = (0..planned).map(|_| Cell::new(UnsafeCell::new(usize::MAX))).collect();
        let waiting = cells.iter().enumerate().map(|(cell, c)| CellRef { cell, generation: c.init(1) }).collect();
        let actor = Actor {
            phase: Phase::Serving,
            planned,
            bound_start: 0,
            bound_end: 0,
            waiting,
            bound: Vec::new(),
            recycled: 0,
        };
        let slot = Self {
            tenure: Tenure::new(),
            taker: Taker::new(),
            gate: LayerGate::new(),
            cells,
            groups: (0..planned).map(|_| UnsafeCell::new(0)).collect(),
            destination: [UnsafeCell::new(0), UnsafeCell::new(0)],
            bind: Ask::new(),
            end,
            await_tokens,
            actor: RunGate::new(actor),
            freed: (0..planned).map(|_| Count::new(0)).collect(),
        };
        assert_eq!(slot.tenure.begin(), 1);
        Shared(ManuallyDrop::new(Arc::new(slot)))
    }

    // ---- request.rs ------------------------------------------------------------------------------------------------------------

    fn end(&self) {
        if self.tenure.end(1) {
            self.gate.wake();
            self.run();
        }
    }

    fn run(&self) {
        let Some(runner) = self.actor.notify() else { return };
        let mut wake = false;
        let left = runner.run(|actor| {
            self.look(actor, &mut wake);
            true
        });
        assert!(left.is_none());
        if wake {
            self.gate.wake();
        }
    }

    fn look(&self, actor: &mut Actor, wake: &mut bool) {
        if actor.phase == Phase::Serving && !self.tenure.is_live() {
            self.let_go(actor, wake);
        }
        match actor.phase {
            Phase::Vacant => {}
            Phase::Draining => {
                if self.gate.is_quiet() && self.tenure.recycle() {
                    self.gate.reset();
                    self.taker.reset();
                    let _ = self.bind.take();
                    actor.phase = Phase::Vacant;
                    actor.recycled += 1;
                    self.next_life();
                }
            }
            Phase::Serving => {
                if self.bind.take() {
                    self.bind(actor, wake);
                }
            }
        }
    }

    /// The next request's first write, as early as it can come.
    fn next_life(&self) {
        for bytes in &self.destination {
            // SAFETY: vacant.
            bytes.with_mut(|b| unsafe { *b = usize::MAX });
        }
    }

    fn let_go(&self, actor: &mut Actor, wake: &mut bool) {
        for at in actor.waiting.drain(..) {
            self.orphan_cell(at);
        }
        for at in actor.bound.drain(..) {
            if self.orphan_cell(at) {
                let _ = self.count(1);
            }
        }
        let unplanned = actor.bound_end.saturating_sub(actor.planned.max(actor.bound_start)) as u32;
        if unplanned > 0 {
            let _ = self.count(unplanned);
        }
        *wake = true;
        actor.phase = Phase::Draining;
    }

    fn bind(&self, actor: &mut Actor, wake: &mut bool) {
        let tokens = (self.end - actor.bound_end).min(self.await_tokens);
        actor.bound.clear();
        actor.bound_start = actor.bound_end;
        actor.bound_end += tokens;
        self.gate.arm(tokens as u32);
        for at in 0..actor.planned.min(actor.bound_end) - actor.bound_start {
            let cell = actor.waiting.pop_front().expect("every planned position has a cell");
            // SAFETY: the holder of a waiting cell.
            self.cells[cell.cell].payload().with_mut(|d| unsafe { *d = at });
            actor.bound.push(cell);
            if self.cells[cell.cell].bind() == Bound::Copy {
                *wake |= self.copy(cell.cell);
                self.free_cell(cell.cell);
            }
        }
        *wake |= self.count(1);
    }

    // ---- core.rs ---------------------------------------------------------------------------------------------------------------

    fn copy(&self, cell: usize) -> bool {
        // SAFETY: claimed.
        let at = self.cells[cell].payload().with(|d| unsafe { *d });
        // SAFETY: complete.
        let bytes = self.groups[cell].with(|b| unsafe { *b });
        // SAFETY: the claimed cell's own.
        self.destination[at].with_mut(|d| unsafe { *d = bytes });
        self.cells[cell].finish();
        self.count(1)
    }

    /// `count_rows`: who counts the last row opens the gate, and wakes when it holds no claim.
    fn count(&self, n: u32) -> bool {
        let last = self.gate.complete(n);
        if last {
            self.gate.open();
        }
        last
    }

    fn free_cell(&self, cell: usize) {
        // SAFETY: the cell held the last reference.
        self.groups[cell].with_mut(|b| unsafe { *b = 0xDB });
        self.freed[cell].fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }

    fn orphan_cell(&self, at: CellRef) -> bool {
        match self.cells[at.cell].orphan(at.generation) {
            Orphaned::Free => {
                self.free_cell(at.cell);
                false
            }
            Orphaned::Later { was_bound } => was_bound,
            Orphaned::Delivered => false,
        }
    }

    fn deposit(&self, cell: usize) {
        // SAFETY: the group's one depositor.
        self.groups[cell].with_mut(|b| unsafe { *b = rows(cell) });
        match self.cells[cell].deposit() {
            Deposited::Pending => {}
            Deposited::Free => self.free_cell(cell),
            Deposited::Copy => {
                let complete = self.copy(cell);
                if complete {
                    self.gate.wake();
                }
                self.free_cell(cell);
                if complete {
                    self.run();
                }
            }
        }
    }

    // ---- await_layer.rs --------------------------------------------------------------------------------------------------------

    fn release(&self) {
        if self.tenure.release() {
            self.run();
        }
    }

    /// False: the request has ended.
    fn claim(&self) -> bool {
        if !self.tenure.hold(1) {
            return false;
        }
        match self.taker.claim(1, None) {
            Ok(Claimed::Waits(0)) => {}
            Ok(Claimed::AsksFor) => {
                self.gate.reset();
                self.bind.raise();
                self.run();
            }
            other => panic!("one engine, one layer: {other:?}"),
        }
        true
    }

    /// One look of an await: ready with the guard (true) or with an error (false).
    fn poll(&self, waker: &Waker) -> Poll<bool> {
        let complete = self.gate.poll(waker);
        if !self.tenure.is(1) {
            return Poll::Ready(false);
        }
        if !complete {
            return Poll::Pending;
        }
        self.taker.take();
        Poll::Ready(true)
    }

    fn drop_await(&self) {
        self.gate.unregister();
        self.taker.unclaim();
        self.release();
    }

    /// Looks at the layer and drops the guard.
    fn look_and_drop(&self, positions: std::ops::Range<usize>) {
        for (bytes, position) in self.destination.iter().zip(positions) {
            // SAFETY: the guard is alive.
            assert_eq!(bytes.with(|b| unsafe { *b }), rows(position), "{OTHERS}");
        }
        self.taker.drop_guard();
        self.release();
    }

    // ---- the engine ------------------------------------------------------------------------------------------------------------

    /// Awaits until there is an answer. True: it was the layer.
    fn wait(&self, positions: std::ops::Range<usize>) -> bool {
        if !self.claim() {
            return false;
        }
        let bell = std::sync::Arc::new(Bell(Notify::new()));
        let waker = Waker::from(std::sync::Arc::clone(&bell));
        loop {
            match self.poll(&waker) {
                Poll::Ready(true) => {
                    self.look_and_drop(positions);
                    return true;
                }
                Poll::Ready(false) => {
                    self.drop_await();
                    return false;
                }
                Poll::Pending => bell.0.wait(),
            }
        }
    }

    /// Looks once, and drops what it has.
    fn look_once(&self, positions: std::ops::Range<usize>) {
        if !self.claim() {
            return;
        }
        match self.poll(Waker::noop()) {
            Poll::Ready(true) => self.look_and_drop(positions),
            _ => self.drop_await(),
        }
    }

    /// When everybody is done: recycled once, and every cell is back.
    fn assert_over(&self) {
        let mut told = None;
        let runner = self.actor.notify().expect("the gate is claimed by nobody");
        runner.run(|actor| {
            told = Some((actor.phase, actor.recycled));
            true
        });
        assert_eq!(told, Some((Phase::Vacant, 1)), "{ONCE}");
        assert_eq!(self.tenure.life(), (2, false), "{ONCE}");
        for freed in &self.freed {
            assert_eq!(freed.load(std::sync::atomic::Ordering::SeqCst), 1, "a cell did not come back exactly once");
        }
    }
}

/// The main thread's share of the slot. It is leaked when the thread unwinds: loom does not drop a thing in a deadlock.
struct Shared(ManuallyDrop<Arc<Slot>>);

impl Drop for Shared {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: dropped here, once.
            unsafe { ManuallyDrop::drop(&mut self.0) }
        }
    }
}

impl std::ops::Deref for Shared {
    type Target = Slot;
    fn deref(&self) -> &Slot {
        &self.0
    }
}

fn spawn(slot: &Shared, f: impl Fn(&Slot) + 'static) -> thread::JoinHandle<()> {
    let slot = Arc::clone(&slot.0);
    thread::spawn(move || f(&slot))
}

/// An engine, an aborter and a depositor of one cell; one position unless said otherwise.
fn three(slot: &Shared, engine: impl FnOnce(&Slot)) {
    let others = [spawn(slot, Slot::end), spawn(slot, |slot| slot.deposit(0))];
    engine(slot);
    others.into_iter().for_each(|t| t.join().unwrap());
    slot.assert_over();
    assert_eq!(slot.gate.remaining(), None, "{UNBOUND}");
}

fn engine_waits() {
    three(&Slot::shared(1, 1, 2), |slot| {
        slot.wait(0..1);
    });
}

fn engine_drops() {
    three(&Slot::shared(1, 1, 2), |slot| slot.look_once(0..1));
}

fn engine_comes_back() {
    three(&Slot::shared(1, 1, 1), |slot| {
        let Some(waits) = slot.claim().then(|| slot.poll(Waker::noop())) else { return };
        match waits {
            Poll::Ready(true) => slot.look_and_drop(0..1),
            Poll::Ready(false) => slot.drop_await(),
            Poll::Pending => {
                slot.drop_await();
                slot.wait(0..1);
            }
        }
    });
}

fn nobody_awaits() {
    three(&Slot::shared(1, 1, 2), |_| {});
}

fn never_planned() {
    three(&Slot::shared(1, 2, 2), |slot| assert!(!slot.wait(0..2), "a layer without its last position"));
}

fn two_ranges() {
    let slot = Slot::shared(2, 2, 1);
    let depositor = spawn(&slot, |slot| (0..2).for_each(|cell| slot.deposit(cell)));
    assert!(slot.wait(0..1) && slot.wait(1..2));
    slot.end();
    depositor.join().unwrap();
    slot.assert_over();
}

fn two_ranges_and_an_end() {
    let slot = Slot::shared(2, 2, 1);
    slot.deposit(0); // it waits, as it has no destination
    let others = [spawn(&slot, Slot::end), spawn(&slot, |slot| slot.deposit(1))];
    if slot.wait(0..1) {
        slot.wait(1..2);
    }
    others.into_iter().for_each(|t| t.join().unwrap());
    slot.assert_over();
}

#[test]
fn request_end() {
    passes("request end, the engine waits", engine_waits);
    passes("request end, the engine drops", engine_drops);
    passes("request end, the engine comes back", engine_comes_back);
    passes("request end, nobody awaits", nobody_awaits);
    passes("request end, never planned", never_planned);
    passes("request end, two ranges and an end", two_ranges_and_an_end);
    catches("request end", Bug::LayerAlwaysQuiet, "Causality violation", engine_drops);
    catches("request end", Bug::CellOrphanForgetsBound, ONCE, engine_drops);
    catches("request end", Bug::CellOrphanForgetsBound, ONCE, engine_waits);
    catches("request end", Bug::LayerResetSkipped, UNBOUND, engine_waits);
}

#[test]
fn next_range() {
    passes("next range, two ranges", two_ranges);
    catches("next range", Bug::LayerResetSkipped, OTHERS, two_ranges);
    catches("next range", Bug::LayerRegisterLate, ASLEEP, two_ranges);
    catches("next range", Bug::AskRelaxed, ASLEEP, two_ranges);
}
