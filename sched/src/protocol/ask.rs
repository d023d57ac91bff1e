//! Ask: a wish that is left for whoever runs an actor, together with what the asker has prepared.
//!
//! The engine resets the layer gates of a slot, asks for a range, then notifies the run gate. A runner that finds the wish binds, and
//! arms the gates.
//!
//! # Memory ordering
//! The run gate's notify sees to it that the wish is found, not to what comes with it: a look that began before the notify may find the
//! wish already. So the wish itself carries it. A1 `raise` (Release) pairs with A2 `take` (Acquire): the gates are reset before they are
//! armed. Otherwise the reset could come last, on machines that let a later store pass an earlier one, and undo the binding.

use crate::sync::seeded::{self, Bug};
use crate::sync::{AtomicBool, Ordering};

/// See the module text.
#[derive(Debug, Default)]
pub struct Ask {
    asked: AtomicBool,
}

impl Ask {
    /// No wish.
    pub fn new() -> Self {
        Self { asked: AtomicBool::new(false) }
    }

    /// Leaves the wish; the caller notifies the run gate afterwards.
    pub fn raise(&self) {
        let ordering = if seeded::is(Bug::AskRelaxed) { Ordering::Relaxed } else { Ordering::Release };
        // A1. A store would do; loom lets a store fall before a swap that did not see it, which no memory model does.
        self.asked.swap(true, ordering);
    }

    /// Takes the wish, if there is one. For the runner.
    pub fn take(&self) -> bool {
        self.asked.swap(false, Ordering::Acquire) // A2
    }
}
