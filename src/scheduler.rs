//! A scheduler together with the model it serves.

use crate::{Model, ModelOptions, OpenError};
use engram_sched_core::sync::Arc;
use engram_sched_core::{BackendChoice, DirectMode, Layer, Limits, StartError, StartOptions};
use std::ops::{Deref, Range};
use std::path::Path;

/// How to open a model and start its scheduler.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Which model and which token map, where the table does not say.
    pub model: ModelOptions,
    /// Upper bounds; 0 stands for the default.
    pub limits: Limits,
    /// I/O path.
    pub backend: BackendChoice,
    /// Whether to bypass the page cache.
    pub direct: DirectMode,
    /// I/O actors, with the files dealt out in turn; `None`: one for each device that holds files.
    pub io_actors: Option<u16>,
    /// Layers that this process serves (a pipeline-parallel rank); `None`: all.
    pub layers: Option<Vec<Layer>>,
    /// Heads that this process serves (a tensor-parallel rank), see [`StartOptions::heads`]; `None`: all.
    pub heads: Option<Range<u16>>,
    /// This process's part of the depth of its disks, in (0, 1]; `None`: 1.
    pub device_share: Option<f32>,
}

/// Takes tokens, reads their rows ahead, and has them ready when the layer asks.
///
/// Send + Sync; a clone is another handle on the same scheduler. The calls are those of [`engram_sched_core::Scheduler`], to which this
/// dereferences: the token plane (`begin`, `on_token`, `on_tokens`, `on_draft`, `accept`, `rollback`, `fork`, `preempt`, `finish`, ...), the
/// step plane (`submit_step`, `submit_rows`, `register`, `fences`), `await_layer`, `stats`, `shutdown`. The last handle that drops stops it.
#[derive(Clone)]
pub struct Scheduler {
    core: engram_sched_core::Scheduler,
    model: Arc<Model>,
}

impl Scheduler {
    /// Opens the table at `path` and starts the scheduler.
    ///
    /// # Errors
    /// Whatever [`Model::open`] refuses, and [`OpenError::Start`] if the I/O path is not to be had.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self, OpenError> {
        let model = Model::open(path, &options.model)?;
        let OpenOptions { model: _, limits, backend, direct, io_actors, layers, heads, device_share } = options;
        let start = StartOptions {
            limits: limits.clone(),
            backend: *backend,
            direct: *direct,
            io_actors: *io_actors,
            layers: layers.clone(),
            heads: heads.clone(),
            device_share: *device_share,
        };
        Ok(Self::start(&model, &start)?)
    }

    /// Starts a scheduler for a model that is open already; a model may have several.
    ///
    /// # Errors
    /// [`StartError`]: a limit out of range, a backend that is not to be had, memory or threads refused.
    pub fn start(model: &Model, options: &StartOptions) -> Result<Self, StartError> {
        let core = engram_sched_core::Scheduler::start(model.parts(), options)?;
        Ok(Self { core, model: Arc::new(model.clone()) })
    }

    /// The model served.
    pub fn model(&self) -> &Model {
        &self.model
    }
}

impl Deref for Scheduler {
    type Target = engram_sched_core::Scheduler;

    fn deref(&self) -> &Self::Target {
        &self.core
    }
}

impl std::fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scheduler").field("model", &self.model.keygen().spec().name).finish_non_exhaustive()
    }
}
