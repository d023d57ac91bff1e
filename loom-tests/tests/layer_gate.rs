//! Layer gate and closing: remaining count and waker; await, poll, drop of the future; shutdown against a waiter.
//!
//! Scenarios: (a) two copiers and a waiter that sleeps; (b) a waiter that polls once, gives up and comes back; (c) shutdown against a
//! waiter whose layer never completes; (d) shutdown against the last copy; (e) a hold against the last copy: it is refused, or the holder
//! counts last and finishes.
//!
//! Every gate is armed with its rows, and the setter's own count beside them; who counts the last row finishes the layer, then opens it.
#![cfg(loom)]

use engram_sched_core::protocol::closing::Closing;
use engram_sched_core::protocol::layer_gate::LayerGate;
use engram_sched_core::sync::seeded::Bug;
use loom::cell::UnsafeCell;
use loom::future::block_on;
use loom::sync::Arc;
use loom::thread;
use loom_tests::{catches, passes};
use std::future::poll_fn;
use std::task::Poll;

struct Layer {
    gate: LayerGate,
    closing: Closing,
    bytes: [UnsafeCell<u32>; 2],
    /// What the finisher does before it opens the gate.
    finished: UnsafeCell<u32>,
}

// SAFETY: whether accesses may overlap is what the models find out.
unsafe impl Sync for Layer {}
// SAFETY: as above.
unsafe impl Send for Layer {}

impl Layer {
    fn new() -> Arc<Self> {
        let bytes = [UnsafeCell::new(0), UnsafeCell::new(0)];
        Arc::new(Self { gate: LayerGate::new(), closing: Closing::new(), bytes, finished: UnsafeCell::new(0) })
    }

    fn copy(&self, at: usize) {
        // SAFETY: the copier's own range.
        self.bytes[at].with_mut(|b| unsafe { *b = 1 });
        self.count();
    }

    /// Counts one; who counts the last finishes the layer, which nobody else touches then, and opens it.
    fn count(&self) {
        if self.gate.complete(1) {
            // SAFETY: the finisher's.
            self.finished.with_mut(|f| unsafe { *f += 1 });
            self.gate.open();
            self.gate.wake();
        }
    }

    fn look(&self) {
        for bytes in &self.bytes {
            // SAFETY: the layer is complete.
            assert_eq!(bytes.with(|b| unsafe { *b }), 1, "a waiter saw an incomplete layer");
        }
        // SAFETY: as above.
        assert_eq!(self.finished.with(|f| unsafe { *f }), 1, "a waiter saw an unfinished layer");
    }

    /// Waits; true: complete, false: closed.
    fn wait(&self) -> bool {
        block_on(poll_fn(|cx| {
            if self.gate.poll(cx.waker()) {
                Poll::Ready(true)
            } else if self.closing.reason() != 0 {
                Poll::Ready(false)
            } else {
                Poll::Pending
            }
        }))
    }
}

/// A thread that copies a row.
fn copier(layer: &Arc<Layer>, at: usize) -> thread::JoinHandle<()> {
    let layer = Arc::clone(layer);
    thread::spawn(move || layer.copy(at))
}

/// A thread that closes the scheduler.
fn closer(layer: &Arc<Layer>) -> thread::JoinHandle<()> {
    let layer = Arc::clone(layer);
    thread::spawn(move || layer.closing.close(1, || layer.gate.wake()))
}

/// A layer that waits for its last row, the second of two.
fn all_but_the_last() -> Arc<Layer> {
    let layer = Layer::new();
    layer.gate.arm(2);
    layer.count();
    layer.copy(0);
    layer
}

fn two_copiers() {
    let layer = Layer::new();
    layer.gate.arm(2);
    let threads = [copier(&layer, 0), copier(&layer, 1)];
    layer.count();
    assert!(layer.wait());
    layer.look();
    threads.into_iter().for_each(|t| t.join().unwrap());
}

/// Counts wakes, outside of loom's sight: a lost wake is an assertion, as loom cannot unwind out of a blocked future.
#[derive(Default)]
struct Wakes(std::sync::atomic::AtomicUsize);

impl std::task::Wake for Wakes {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
}

/// A waiter that looks once and would then sleep: when everybody else is done, it must have been woken or have seen the end.
fn woken_or_done(layer: &Layer, others: Vec<thread::JoinHandle<()>>, done: impl Fn() -> bool) {
    let wakes = std::sync::Arc::new(Wakes::default());
    let waker = std::task::Waker::from(std::sync::Arc::clone(&wakes));
    let seen = layer.gate.poll(&waker) || done();
    others.into_iter().for_each(|t| t.join().unwrap());
    assert!(seen || wakes.0.load(std::sync::atomic::Ordering::SeqCst) > 0, "the waiter sleeps for ever");
}

fn last_copy_against_sleep() {
    let layer = Layer::new();
    layer.gate.arm(1);
    layer.count();
    let last = copier(&layer, 0);
    woken_or_done(&layer, vec![last], || false);
}

fn shutdown_against_sleep() {
    let layer = Layer::new();
    layer.gate.arm(1);
    let closer = closer(&layer);
    woken_or_done(&layer, vec![closer], || layer.closing.reason() != 0);
}

fn dropped_future() {
    let layer = all_but_the_last();
    let last = copier(&layer, 1);
    // Polled once with a waker that nobody listens to, dropped, and waited for again.
    let first = block_on(poll_fn(|cx| Poll::Ready(layer.gate.poll(cx.waker()))));
    assert!(first || layer.wait());
    layer.look();
    last.join().unwrap();
}

fn shutdown_against_waiter() {
    let layer = Layer::new();
    layer.gate.arm(1);
    let closer = closer(&layer);
    assert!(!layer.wait());
    closer.join().unwrap();
}

fn shutdown_against_last_copy() {
    let layer = all_but_the_last();
    let closer = closer(&layer);
    let last = copier(&layer, 1);
    if layer.wait() {
        layer.look();
    }
    closer.join().unwrap();
    last.join().unwrap();
}

fn hold_against_last_copy() {
    let layer = all_but_the_last();
    let last = copier(&layer, 1);
    if layer.gate.hold() {
        // SAFETY: the gate cannot open under its holder.
        assert_eq!(layer.finished.with(|f| unsafe { *f }), 0, "the layer was finished under a holder");
        layer.count();
    }
    last.join().unwrap();
    assert!(layer.gate.is_complete() && !layer.gate.hold(), "a layer did not complete");
    layer.look();
}

#[test]
fn layer_gate() {
    passes("layer gate, two copiers", two_copiers);
    passes("layer gate, dropped future", dropped_future);
    passes("layer gate, hold against the last copy", hold_against_last_copy);
    catches("layer gate", Bug::LayerCompleteRelaxed, "Causality violation", two_copiers);
    passes("layer gate, last copy against sleep", last_copy_against_sleep);
    catches("layer gate", Bug::LayerRegisterLate, "the waiter sleeps for ever", last_copy_against_sleep);
}

#[test]
fn shutdown() {
    passes("shutdown against a waiter", shutdown_against_waiter);
    passes("shutdown against the last copy", shutdown_against_last_copy);
    passes("shutdown against sleep", shutdown_against_sleep);
    catches("shutdown", Bug::ShutdownWakesFirst, "the waiter sleeps for ever", shutdown_against_sleep);
}
