//! Ctrl-C: the first one asks the running command to stop and tidy up, the second one ends the process at once.
//!
//! `main` calls [`install`] before any command, and commands call [`check`] between pieces of work. While a command waits for input
//! that may never come ([`while_waiting`]), the first Ctrl-C ends the process: there is nothing to tidy up.

use crate::failure::Failure;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

static WAITING: OnceLock<Arc<AtomicBool>> = OnceLock::new();
static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Takes SIGINT and SIGTERM over.
pub(crate) fn install() {
    let asked = ASKED.get_or_init(Default::default);
    let waiting = WAITING.get_or_init(Default::default);
    for signal in [SIGINT, SIGTERM] {
        // The order counts: at the first signal the flag is still down when the conditional exit looks at it.
        let taken = signal_hook::flag::register_conditional_shutdown(signal, 130, asked.clone())
            .and_then(|_| signal_hook::flag::register_conditional_shutdown(signal, 130, waiting.clone()))
            .and_then(|_| signal_hook::flag::register(signal, asked.clone()));
        if let Err(error) = taken {
            eprintln!("note: signal {signal} cannot be caught ({error}): an interruption may leave partial output");
        }
    }
}

/// Waits for input; Ctrl-C ends the process meanwhile (a read that it interrupts is resumed by the system and would go on waiting).
pub(crate) fn while_waiting<T>(wait: impl FnOnce() -> T) -> T {
    let waiting = WAITING.get_or_init(Default::default);
    waiting.store(true, Ordering::Relaxed);
    let done = wait();
    waiting.store(false, Ordering::Relaxed);
    done
}

/// Whether the user asked to stop.
pub(crate) fn asked() -> bool {
    ASKED.get().is_some_and(|asked| asked.load(Ordering::Relaxed))
}

/// [`Failure::Interrupted`] once the user asked to stop.
pub(crate) fn check() -> Result<(), Failure> {
    if asked() { Err(Failure::Interrupted) } else { Ok(()) }
}
