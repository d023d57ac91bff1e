//! Ctrl-C: the first one asks the running command to stop and tidy up, the second one ends the process at once.
//!
//! Commands that write or measure call [`install`] first and [`check`] between pieces of work; others keep the default action.

use crate::failure::Failure;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Takes SIGINT and SIGTERM over.
pub(crate) fn install() {
    let asked = ASKED.get_or_init(Default::default);
    for signal in [SIGINT, SIGTERM] {
        // The order counts: at the first signal the flag is still down when the conditional exit looks at it.
        let taken = signal_hook::flag::register_conditional_shutdown(signal, 130, asked.clone())
            .and_then(|_| signal_hook::flag::register(signal, asked.clone()));
        if let Err(error) = taken {
            eprintln!("note: signal {signal} cannot be caught ({error}): an interruption may leave partial output");
        }
    }
}

/// Whether the user asked to stop.
pub(crate) fn asked() -> bool {
    ASKED.get().is_some_and(|asked| asked.load(Ordering::Relaxed))
}

/// [`Failure::Interrupted`] once the user asked to stop.
pub(crate) fn check() -> Result<(), Failure> {
    if asked() { Err(Failure::Interrupted) } else { Ok(()) }
}
