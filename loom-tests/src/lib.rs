//! Loom models of the concurrency protocols in `sched/src/protocol/`; one file per protocol in `tests/`.
//!
//! Build with `RUSTFLAGS="--cfg loom"` and a target directory of its own (`ci/loom.sh`). `LOOM_MAX_PREEMPTIONS` bounds the search.
//! Each model runs twice over: as it is, when it must pass, and once for each seeded bug, when it must fail, and for the stated reason.
#![cfg(loom)]

use engram_sched_core::sync::seeded::{self, Bug};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// The planted bug is a process-wide setting: one model at a time.
static TURN: Mutex<()> = Mutex::new(());

fn explore(model: impl Fn() + Sync + Send + 'static) -> usize {
    static EXECUTIONS: AtomicUsize = AtomicUsize::new(0);
    EXECUTIONS.store(0, Ordering::SeqCst);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(2));
    builder.check(move || {
        EXECUTIONS.fetch_add(1, Ordering::SeqCst);
        model();
    });
    EXECUTIONS.load(Ordering::SeqCst)
}

/// Explores a model, which must hold in every execution.
pub fn passes(name: &str, model: impl Fn() + Sync + Send + 'static) {
    let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    seeded::plant(None);
    let begun = Instant::now();
    let executions = explore(model);
    println!("loom: {name}: {executions} executions, {} ms", begun.elapsed().as_millis());
}

/// Explores a model with a bug planted: it must fail, with `property` in the failure's message.
pub fn catches(name: &str, bug: Bug, property: &str, model: impl Fn() + Sync + Send + 'static) {
    let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    seeded::plant(Some(bug));
    let begun = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| explore(model)));
    seeded::plant(None);
    let Err(panic) = outcome else { panic!("{name}: the model does not notice {bug:?}") };
    let message = panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
        .unwrap_or_default();
    assert!(message.contains(property), "{name}: {bug:?} was noticed for another reason: {message}");
    let line = message.lines().next().unwrap_or_default();
    println!("loom: {name}: {bug:?} caught in {} ms: {line}", begun.elapsed().as_millis());
}
