//! Plan queue: bounded lock-free bands with one doorbell, and a close after which nothing is lost.
//!
//! An actor has one queue for each band, so that a flood in one never refuses another. `gate` = pushes under way x 2 + closed.
//!
//! # Memory ordering
//! `push` enters the gate before it touches a band and leaves it after; `close` sets the bit and then waits until no push is under
//! way. The gate's modification order decides: a push that entered before the bit is waited for (its leave, Release, pairs with the
//! closer's load, Acquire), so what it pushed is there to be drained; a push that entered after it sees the bit and gives the value
//! back. Hence after `close` returns, the bands hold exactly the accepted values, and no more will come.
//! `close` spins for the length of a push, a handful of instructions; it runs once, at shutdown.

use super::doorbell::Doorbell;
use crate::sync::seeded::{self, Bug};
use crate::sync::{AtomicU64, BoundedQueue, Ordering, thread};

const CLOSED: u64 = 1;
const PUSHER: u64 = 2;

/// Why a push was refused; the value comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PushError<T> {
    /// The band is full.
    Full(T),
    /// The queue was closed.
    Closed(T),
}

/// See the module text.
#[derive(Debug)]
pub struct PlanQueue<T, const BANDS: usize> {
    bands: [BoundedQueue<T>; BANDS],
    gate: AtomicU64,
    bell: Doorbell,
}

impl<T, const BANDS: usize> PlanQueue<T, BANDS> {
    /// `capacity` values in each band.
    pub fn new(capacity: usize) -> Self {
        Self {
            bands: std::array::from_fn(|_| BoundedQueue::new(capacity)),
            gate: AtomicU64::new(0),
            bell: Doorbell::new(),
        }
    }

    /// Appends to a band. `Ok(true)`: the caller must wake the actor.
    ///
    /// # Errors
    /// [`PushError`] with the value if the band is full or the queue closed.
    pub fn push(&self, band: usize, value: T) -> Result<bool, PushError<T>> {
        // AcqRel: a place in the modification order of `gate`, see the module text.
        if self.gate.fetch_add(PUSHER, Ordering::AcqRel) & CLOSED != 0 {
            self.gate.fetch_sub(PUSHER, Ordering::Release);
            return Err(PushError::Closed(value));
        }
        let pushed = self.bands[band].push(value);
        self.gate.fetch_sub(PUSHER, Ordering::Release); // pairs with the load in `close`
        match pushed {
            Ok(()) => Ok(self.bell.ring()),
            Err(value) => Err(PushError::Full(value)),
        }
    }

    /// Takes the oldest value of a band.
    pub fn pop(&self, band: usize) -> Option<T> {
        self.bands[band].pop()
    }

    /// Whether every band is empty.
    pub fn is_empty(&self) -> bool {
        self.bands.iter().all(BoundedQueue::is_empty)
    }

    /// The doorbell of the actor that drains the queue.
    pub fn bell(&self) -> &Doorbell {
        &self.bell
    }

    /// Refuses pushes from now on and waits for those under way.
    pub fn close(&self) {
        self.gate.fetch_or(CLOSED, Ordering::AcqRel);
        if seeded::is(Bug::QueueCloseIgnoresPushers) {
            return;
        }
        while self.gate.load(Ordering::Acquire) >= PUSHER {
            thread::yield_now();
        }
    }

    /// Whether `close` was called.
    pub fn is_closed(&self) -> bool {
        self.gate.load(Ordering::Acquire) & CLOSED != 0
    }
}
