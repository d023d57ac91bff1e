//! Admission: what the first runner of a slot's new life takes over, left by who begins it.
//!
//! Runs of a slot's actor may come at any time: a copier of the life before notifies once more after the slot was recycled. So what
//! admits a life must not be found before the life has begun: the runner would take it for a life that ended already, and recycle a slot
//! that the caller is about to use.
//!
//! | who    | order                                                                                    |
//! |--------|------------------------------------------------------------------------------------------|
//! | begins | B1 the tenure begins, B2 the value is left, B3 the run gate is notified                    |
//! | runs   | R1 the value is taken, R2 the tenure is asked whether it is live                           |
//!
//! # Memory ordering
//! B2 and R1 meet in a mutex: R1 that finds the value has B1 behind it, so R2 sees this life or its end, never the vacancy before it.
//! R1 that finds nothing came before B2, and B3 makes the runner look again (or the beginner the runner).

use super::tenure::Tenure;
use crate::sync::seeded::{self, Bug};
use crate::sync::{Mutex, MutexGuard};

/// See the module text.
#[derive(Debug, Default)]
pub struct Admission<T> {
    left: Mutex<Option<T>>,
}

impl<T> Admission<T> {
    /// Nobody to admit.
    pub fn new() -> Self {
        Self { left: Mutex::new(None) }
    }

    fn lock(&self) -> MutexGuard<'_, Option<T>> {
        self.left.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) // whole between statements
    }

    /// Begins a life of a vacant slot; returns its generation. For the one who took the slot off the free list; it runs the actor then.
    pub fn begin(&self, tenure: &Tenure, value: T) -> u32 {
        if seeded::is(Bug::AdmissionFirst) {
            *self.lock() = Some(value);
            return tenure.begin();
        }
        let generation = tenure.begin(); // B1
        *self.lock() = Some(value); // B2
        generation
    }

    /// Leaves what a life goes on with after a pause. For its one producer; it tells the actor then.
    pub fn leave(&self, value: T) {
        *self.lock() = Some(value);
    }

    /// What admits the life that has begun, once. For the runner of a vacant slot; it looks at the tenure afterwards.
    pub fn take(&self) -> Option<T> {
        self.lock().take() // R1
    }
}
