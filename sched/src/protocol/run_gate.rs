//! Run gate: at most one thread runs an actor, and no event is forgotten.
//!
//! One word with two bits. Whoever has an event for the actor first makes the event visible (a token in the mailbox, a flag, a
//! credit), then calls [`RunGate::notify`]; if that finds nobody running, the caller is the runner: it gets a [`Runner`] and must use it.
//!
//! | word              | meaning                                    |
//! |-------------------|--------------------------------------------|
//! | 0                 | idle, nothing new                          |
//! | RUNNING           | somebody runs, and has seen every event    |
//! | RUNNING + PENDING | somebody runs and must look again          |
//!
//! # Memory ordering
//! `notify` is a read-modify-write with Release: it publishes the event. The runner clears PENDING with Acquire before it looks
//! (pairs with `notify`), and lets go by a compare-exchange RUNNING -> 0 that fails if PENDING came meanwhile; then it looks again.
//! All three are read-modify-writes of one word, so every `notify` falls either before a clear, and is seen by that look, or between
//! a clear and the release, and makes the release fail, or after the release, and makes its caller the runner. The release is AcqRel:
//! it hands the actor's state to the next runner (pairs with the next runner's `notify`).

use crate::sync::seeded::{self, Bug};
use crate::sync::{AtomicU32, Ordering, UnsafeCell};

const RUNNING: u32 = 1;
const PENDING: u32 = 2;

/// See the module text. `T` is the actor's state, which only a [`Runner`] reaches.
#[derive(Debug)]
pub struct RunGate<T> {
    word: AtomicU32,
    state: UnsafeCell<T>,
}

// SAFETY: the state is reached through a `Runner` alone, there is at most one at a time, and the word hands the state from one runner
// to the next (module text).
unsafe impl<T: Send> Sync for RunGate<T> {}

/// The claim to run the actor. It must be used, by [`Runner::run`] here or by [`Runner::pass_on`] elsewhere.
#[derive(Debug)]
#[must_use = "a claim that is dropped leaves the actor claimed for good"]
pub struct Runner<'g, T>(&'g RunGate<T>);

impl<T> RunGate<T> {
    /// An idle gate.
    pub fn new(state: T) -> Self {
        Self { word: AtomicU32::new(0), state: UnsafeCell::new(state) }
    }

    /// Announces an event; the caller may have become the runner.
    pub fn notify(&self) -> Option<Runner<'_, T>> {
        (self.word.fetch_or(RUNNING | PENDING, Ordering::AcqRel) & RUNNING == 0).then_some(Runner(self))
    }

    /// Takes up a claim that [`Runner::pass_on`] made.
    ///
    /// # Panics
    /// If it is another gate's.
    pub fn take_up(&self, claim: Claim) -> Runner<'_, T> {
        assert_eq!(claim.gate, std::ptr::from_ref(self).addr(), "the claim belongs to this gate");
        Runner(self)
    }
}

/// A claim between two runners. There is one for each [`Runner::pass_on`].
#[derive(Debug)]
#[must_use = "a claim that is dropped leaves the actor claimed for good"]
pub struct Claim {
    gate: usize,
}

impl<'g, T> Runner<'g, T> {
    /// Runs `look` until every event has been seen; or until it returns false, which gives the claim back, for [`Runner::pass_on`].
    pub fn run(self, mut look: impl FnMut(&mut T) -> bool) -> Option<Runner<'g, T>> {
        let gate = self.0;
        loop {
            gate.word.fetch_and(!PENDING, Ordering::AcqRel); // Acquire: the events of every `notify` so far
            // SAFETY: there is one runner, this one.
            if !gate.state.with_mut(|state| look(unsafe { &mut *state })) {
                return Some(self);
            }
            if seeded::is(Bug::GateForgetsPending) {
                gate.word.store(0, Ordering::Release);
                return None;
            }
            let success = if seeded::is(Bug::GateReleaseRelaxed) { Ordering::Relaxed } else { Ordering::AcqRel };
            if gate.word.compare_exchange(RUNNING, 0, success, Ordering::Relaxed).is_ok() {
                return None;
            }
        }
    }

    /// Makes the claim portable: whoever gets it takes it up with [`RunGate::take_up`].
    pub fn pass_on(self) -> Claim {
        Claim { gate: std::ptr::from_ref(self.0).addr() }
    }
}
