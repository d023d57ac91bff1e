//! The machinery of `engram-sched`: actors, queues, batching, I/O backends, completion.
//!
//! Users take the crate `engram-sched`, which opens models and re-exports this. `docs/ARCHITECTURE.md` tells how the parts fit.

#[cfg(not(loom))]
mod actor;
#[cfg(not(loom))]
mod await_layer;
#[cfg(not(loom))]
mod batch;
#[cfg(not(loom))]
mod core;
#[cfg(not(loom))]
mod delivery;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
pub mod io;
mod limits;
#[cfg(not(loom))]
mod measures;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
mod placement;
#[cfg(not(loom))]
mod plan;
pub mod protocol;
#[cfg(not(loom))]
mod request;
#[cfg(not(loom))]
mod rows;
#[cfg(not(loom))]
mod scheduler;
#[cfg(not(loom))]
mod start;
#[cfg(not(loom))]
mod stats;
pub mod sync;
#[cfg(not(loom))]
mod workers;

#[cfg(not(loom))]
pub use await_layer::{AwaitLayer, LayerRows};
#[cfg(not(loom))]
pub use error::{AwaitError, Closed, ReadError, ShutdownError, StartError, TokenError};
#[cfg(not(loom))]
pub use io::{BackendChoice, BackendReport, DirectMode};
pub use limits::{Limits, MemoryBounds};
#[cfg(not(loom))]
pub use rows::ReadRowsError;
#[cfg(not(loom))]
pub use scheduler::{Begin, Layer, Parts, RequestClass, RequestId, Scheduler, StartOptions};
#[cfg(not(loom))]
pub use stats::Stats;
