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
mod dest;
#[cfg(not(loom))]
mod engine_memory;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod failure;
#[cfg(not(loom))]
mod geometry;
#[cfg(not(loom))]
pub mod io;
mod limits;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
mod message;
#[cfg(not(loom))]
mod placement;
#[cfg(not(loom))]
mod plan;
#[cfg(not(loom))]
mod planner;
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
#[cfg(not(loom))]
mod step;
#[cfg(not(loom))]
mod submit;
pub mod sync;
#[cfg(not(loom))]
mod watchdog;
#[cfg(not(loom))]
mod workers;

#[cfg(not(loom))]
pub use await_layer::{AwaitLayer, LayerRows};
#[cfg(not(loom))]
pub use engine_memory::{FenceRegion, Memory, MemoryKind};
#[cfg(not(loom))]
pub use engram_keygen::Profile;
#[cfg(not(loom))]
pub use error::{AwaitError, Closed, EntryFailure, ReadError, ShutdownError, StartError, StepError, TokenError};
#[cfg(not(loom))]
pub use io::{BackendChoice, BackendReport, DirectMode};
pub use limits::{Limits, MemoryBounds};
pub use protocol::fence::{FenceStatus, FenceWords, Line};
#[cfg(not(loom))]
pub use rows::ReadRowsError;
#[cfg(not(loom))]
pub use scheduler::{Begin, Layer, Parts, RequestClass, RequestId, Scheduler, StartOptions};
#[cfg(not(loom))]
pub use stats::Stats;
#[cfg(not(loom))]
pub use submit::{Dest, DestId, RowIds, RowInt, Step, StepEntry, StepSlot, StepSpec};
