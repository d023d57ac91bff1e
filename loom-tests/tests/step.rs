//! Steps: leases, fences, registered destinations, and steps that are submitted while the scheduler closes.
//!
//! Scenarios: (a) lease: a late hold of the first life, the last release, and a claim of the next life; (b) fence: two depositors, of which
//! one notes a failure and the other may finish, against a device that spins on the fence; the same against a late hold of the gate; (c) an
//! engine unregisters a destination while a layer that is written there completes, and while a step is being submitted; (d) a close, against
//! a submission: the fence is raised by one of them.
//!
//! `Step` repeats `Core::submit_step`, `count_rows`, `finish_layer`, `end_layer` and `end_steps` for one layer; the protocols are the real
//! ones.
#![cfg(loom)]

use engram_sched_core::protocol::closing::Closing;
use engram_sched_core::protocol::fence::{FenceStatus, FenceWords};
use engram_sched_core::protocol::layer_gate::LayerGate;
use engram_sched_core::protocol::lease::Lease;
use engram_sched_core::protocol::step_row::{StepRow, Took};
use engram_sched_core::sync::seeded::Bug;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use loom_tests::{catches, passes};

const STATUS: &str = "a fence was seen before its status";
const DOWN: &str = "a fence stays down, or says what is not so";
const OTHERS: &str = "a hold of the first life holds the second";

// ---- lease -----------------------------------------------------------------------------------------------------------------------

struct Leased {
    lease: Lease,
    bytes: UnsafeCell<u32>,
}

// SAFETY: whether accesses may overlap is what the models find out.
unsafe impl Sync for Leased {}
// SAFETY: as above.
unsafe impl Send for Leased {}

fn hold_release_claim() {
    let leased = Arc::new(Leased { lease: Lease::new(), bytes: UnsafeCell::new(0) });
    let first = leased.lease.claim(1).expect("the slot is free");
    // SAFETY: the owner's.
    leased.bytes.with_mut(|b| unsafe { *b = first });
    let late = {
        let leased = Arc::clone(&leased);
        thread::spawn(move || {
            if leased.lease.hold(first) {
                // SAFETY: held.
                assert_eq!(leased.bytes.with(|b| unsafe { *b }), first, "{OTHERS}");
                leased.lease.release();
            }
        })
    };
    let claimer = {
        let leased = Arc::clone(&leased);
        thread::spawn(move || {
            let Some(second) = leased.lease.claim(1) else { return false };
            assert_eq!(second, first + 1, "a life has a name of its own");
            // SAFETY: the owner's.
            leased.bytes.with_mut(|b| unsafe { *b = second });
            true
        })
    };
    leased.lease.release();
    late.join().unwrap();
    let claimed = claimer.join().unwrap();
    assert_eq!(leased.lease.current(), claimed.then_some(first + 1), "a reference was lost");
    assert!(!leased.lease.hold(first), "{OTHERS}");
}

// ---- a step of one layer and two rows, in a registered destination ---------------------------------------------------------------

const ROWS: usize = 2;

struct Step {
    closing: Closing,
    lease: Lease,
    dest: Lease,
    dest_generation: u32,
    gate: LayerGate,
    rows: [StepRow; ROWS],
    fence: FenceWords,
    failed: AtomicU64,
    bytes: [UnsafeCell<u32>; ROWS],
}

// SAFETY: whether accesses may overlap is what the models find out.
unsafe impl Sync for Step {}
// SAFETY: as above.
unsafe impl Send for Step {}

impl Step {
    /// A free slot, and a destination that is registered.
    fn new() -> Arc<Self> {
        let dest = Lease::new();
        let dest_generation = dest.claim(1).expect("the slot is free");
        Arc::new(Self {
            closing: Closing::new(),
            lease: Lease::new(),
            dest,
            dest_generation,
            gate: LayerGate::new(),
            rows: [StepRow::new(), StepRow::new()],
            fence: FenceWords::default(),
            failed: AtomicU64::new(0),
            bytes: [UnsafeCell::new(9), UnsafeCell::new(9)],
        })
    }

    /// `submit_step`; references of the handle and the layer. `None`: the destination is not registered.
    fn submit(&self) -> Option<u32> {
        let generation = self.lease.claim(2).expect("the slot is free");
        if !self.dest.hold(self.dest_generation) {
            (0..2).for_each(|_| _ = self.lease.release());
            return None;
        }
        self.rows.iter().for_each(|row| row.arm(generation));
        self.gate.arm(ROWS as u32);
        self.fence.expect();
        self.count(1);
        if self.closing.reason_after_claim() != 0 {
            self.end(generation);
        }
        Some(generation)
    }

    fn count(&self, n: u32) {
        if !self.gate.complete(n) {
            return;
        }
        let failed = self.failed.load(Ordering::Relaxed);
        for (row, bytes) in self.bytes.iter().enumerate() {
            if failed >> row & 1 == 1 {
                // SAFETY: nobody else writes there any more.
                bytes.with_mut(|b| unsafe { *b = 0 });
            }
        }
        self.dest.release();
        self.fence.raise(if failed == 0 { FenceStatus::Ok } else { FenceStatus::EntriesFailed });
        self.gate.open();
        self.lease.release();
    }

    /// A row is delivered, or its read has failed.
    fn deliver(&self, row: usize, fails: bool) {
        if fails {
            self.failed.fetch_or(1 << row, Ordering::Relaxed);
        } else {
            // SAFETY: the copier's own row.
            self.bytes[row].with_mut(|b| unsafe { *b = 7 });
        }
        self.count(1);
    }

    /// `end_layer`, of rows that have no cells.
    fn end(&self, generation: u32) {
        if !self.gate.hold() {
            return;
        }
        let mut count = 1;
        for (row, word) in self.rows.iter().enumerate() {
            if word.take(generation) == Took::Empty {
                self.failed.fetch_or(1 << row, Ordering::Relaxed);
                count += 1;
            }
        }
        self.count(count);
    }

    /// `end_steps`.
    fn close(&self) {
        self.closing.close(1, || {});
        if let Some(generation) = self.lease.current()
            && self.lease.hold(generation)
        {
            self.end(generation);
            self.lease.release();
        }
    }

    /// What a device sees once the fence is reached.
    fn look(&self, status: FenceStatus, rows: [u32; ROWS]) {
        for (bytes, row) in self.bytes.iter().zip(rows) {
            // SAFETY: the layer is final.
            assert_eq!(bytes.with(|b| unsafe { *b }), row, "{STATUS}");
        }
        assert_eq!(self.failed.load(Ordering::Relaxed) != 0, status == FenceStatus::EntriesFailed, "{STATUS}");
    }
}

fn spawn(step: &Arc<Step>, f: impl Fn(&Step) + 'static) -> thread::JoinHandle<()> {
    let step = Arc::clone(step);
    thread::spawn(move || f(&step))
}

/// One depositor fails its row; who finishes sees it, be it the other.
fn fence_against_device() {
    let step = Step::new();
    step.submit().expect("the destination is registered");
    let depositors = [spawn(&step, |step| step.deliver(0, true)), spawn(&step, |step| step.deliver(1, false))];
    if let Some(status) = step.fence.reached() {
        assert_eq!(status, FenceStatus::EntriesFailed, "{STATUS}");
        step.look(status, [0, 7]);
        assert!(unregister(&step), "a destination stays busy");
    } else if step.gate.is_complete() {
        assert!(step.fence.reached().is_some(), "{DOWN}");
    }
    depositors.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(step.fence.reached(), Some(FenceStatus::EntriesFailed), "{DOWN}");
    assert!(unregister(&step) || step.dest.current().is_none(), "a destination stays busy");
}

/// After Ok the memory is the engine's: it writes there.
fn unregister(step: &Step) -> bool {
    let over = step.dest.end(step.dest_generation) == Some(true);
    if over {
        for bytes in &step.bytes {
            // SAFETY: unregistered.
            bytes.with_mut(|b| unsafe { *b = 1 });
        }
    }
    over
}

fn unregister_against_completion() {
    let step = Step::new();
    step.submit().expect("the destination is registered");
    let depositor = |row| spawn(&step, move |step| step.deliver(row, false));
    let others = [depositor(0), depositor(1), spawn(&step, |step| _ = unregister(step))];
    others.into_iter().for_each(|t| t.join().unwrap());
    assert!(unregister(&step) || step.dest.current().is_none(), "a destination stays busy");
    assert!(step.fence.reached().is_some(), "{DOWN}");
}

fn unregister_against_submission() {
    let step = Step::new();
    let submitter = spawn(&step, |step| {
        if step.submit().is_some() {
            (0..ROWS).for_each(|row| step.deliver(row, false));
            step.lease.release();
        }
    });
    let other = spawn(&step, |step| _ = unregister(step));
    submitter.join().unwrap();
    other.join().unwrap();
    assert!(unregister(&step) || step.dest.current().is_none(), "a destination stays busy");
    assert_eq!(step.lease.current(), None, "a reference was lost");
}

fn close_against_submission() {
    let step = Step::new();
    let closer = spawn(&step, Step::close);
    let generation = step.submit().expect("the destination is registered");
    closer.join().unwrap();
    assert_eq!(step.fence.reached(), Some(FenceStatus::EntriesFailed), "{DOWN}");
    step.look(FenceStatus::EntriesFailed, [0, 0]);
    assert_eq!((step.lease.current(), step.lease.release()), (Some(generation), true), "a reference was lost");
}

#[test]
fn lease() {
    passes("lease, hold, release, claim", hold_release_claim);
    catches("lease", Bug::LeaseSkipsGeneration, OTHERS, hold_release_claim);
}

#[test]
fn fence() {
    passes("fence against a device", fence_against_device);
    catches("fence", Bug::FenceBeforeStatus, STATUS, fence_against_device);
    // The finisher is another than who noted the failure.
    catches("fence", Bug::LayerCompleteRelaxed, DOWN, fence_against_device);
}

#[test]
fn unregistering() {
    passes("unregister against a completion", unregister_against_completion);
    passes("unregister against a submission", unregister_against_submission);
    catches("unregister", Bug::LayerCompleteRelaxed, "Causality violation", unregister_against_completion);
}

#[test]
fn closing() {
    passes("close against a submission", close_against_submission);
    catches("close", Bug::ClaimSkipsFence, DOWN, close_against_submission);
}
