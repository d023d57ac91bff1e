//! A sticky wake-up for backends that sleep on a condition variable (pread, mmap, simulated).
//!
//! Why not `thread::park`: the sleeper also waits for completions that other threads post, and both must end one and the same sleep.
//!
//! Invariant: a wake is never lost. It is a flag under the mutex that the sleeper holds whenever it is not in `Condvar::wait`; the
//! sleeper clears the flag when it returns because of it.

use super::WakeBackend;
use crate::sync::{Condvar, Mutex, MutexGuard};
use std::time::Instant;

/// State `T` that threads change and one sleeper waits for, with a sticky wake.
#[derive(Debug, Default)]
pub(crate) struct Sleeper<T> {
    state: Mutex<Wakeable<T>>,
    changed: Condvar,
}

#[derive(Debug, Default)]
pub(crate) struct Wakeable<T> {
    woken: bool,
    asleep: bool,
    pub(crate) state: T,
}

impl<T> Sleeper<T> {
    pub(crate) fn new(state: T) -> Self {
        Self { state: Mutex::new(Wakeable { woken: false, asleep: false, state }), changed: Condvar::new() }
    }

    /// The state. A panic under this lock leaves it usable: every change here is a single push or store.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Wakeable<T>> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Changes the state and wakes the sleeper, if it sleeps.
    pub(crate) fn change(&self, change: impl FnOnce(&mut T)) {
        let mut guard = self.lock();
        change(&mut guard.state);
        self.notify(guard);
    }

    fn notify(&self, guard: MutexGuard<'_, Wakeable<T>>) {
        let asleep = guard.asleep;
        drop(guard);
        if asleep {
            self.changed.notify_all();
        }
    }

    /// Sleeps until `ready`, a wake, or the deadline; a wake is consumed. The lock is held on return.
    pub(crate) fn sleep_until<'s>(
        &'s self,
        mut guard: MutexGuard<'s, Wakeable<T>>,
        deadline: Option<Instant>,
        mut ready: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'s, Wakeable<T>> {
        while !ready(&mut guard.state) && !guard.woken {
            guard.asleep = true;
            match deadline {
                None => guard = self.changed.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner()),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    guard = self.changed.wait_timeout(guard, left).unwrap_or_else(|poisoned| poisoned.into_inner()).0;
                }
            }
        }
        guard.asleep = false;
        guard.woken = false;
        guard
    }
}

impl<T: Send> WakeBackend for Sleeper<T> {
    fn wake(&self) {
        let mut guard = self.lock();
        guard.woken = true;
        self.notify(guard);
    }
}
