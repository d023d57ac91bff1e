//! The machinery of `engram-sched`: actors, queues, batching, I/O backends, completion.

#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
pub mod io;
mod limits;
pub mod protocol;
#[cfg(not(loom))]
mod scheduler;
pub mod sync;

#[cfg(not(loom))]
pub use error::{AwaitError, Closed, ReadError, ShutdownError, StartError, TokenError};
#[cfg(not(loom))]
pub use io::{BackendChoice, DirectMode};
pub use limits::{Limits, MemoryBounds};
#[cfg(not(loom))]
pub use scheduler::{
    AwaitLayer, Begin, Layer, LayerRows, Parts, RequestClass, RequestId, Scheduler, StartOptions, Stats,
};
