//! Keygen workers: threads that hash long prompts, so that the caller need not.
//!
//! A caller whose budget is used up passes its claim on a request's run gate to a worker. Each request is in the queue at most once
//! (there is one claim), so the queue never overflows. Handing over a long prompt is admission, not the path of a token: a mutex and
//! a condition variable do.

use crate::core::Core;
use crate::protocol::run_gate::Claim;
use crate::sync::{Condvar, Mutex, lock};
use std::collections::VecDeque;

/// Claims passed on, by request slot.
#[derive(Debug)]
pub(crate) struct WorkQueue {
    state: Mutex<(VecDeque<(u32, Claim)>, bool)>,
    ready: Condvar,
}

impl WorkQueue {
    pub(crate) fn new(requests: usize) -> Self {
        Self { state: Mutex::new((VecDeque::with_capacity(requests), false)), ready: Condvar::new() }
    }

    /// Takes over the claim on `slot`'s run gate.
    pub(crate) fn push(&self, slot: u32, claim: Claim) {
        lock(&self.state).0.push_back((slot, claim));
        self.ready.notify_one();
    }

    /// The next claim; `None` after [`WorkQueue::close`].
    fn pop(&self) -> Option<(u32, Claim)> {
        let mut state = lock(&self.state);
        loop {
            if state.1 {
                return None;
            }
            if let Some(claim) = state.0.pop_front() {
                return Some(claim);
            }
            state = self.ready.wait(state).unwrap_or_else(|e| e.into_inner());
        }
    }

    /// Ends the workers. Claims that are left stay claimed: the scheduler serves no more.
    pub(crate) fn close(&self) {
        lock(&self.state).1 = true;
        self.ready.notify_all();
    }
}

/// A worker thread's body.
pub(crate) fn work(core: &Core) {
    while let Some((slot, claim)) = core.workers.pop() {
        core.run_passed_on(slot, claim);
    }
}
