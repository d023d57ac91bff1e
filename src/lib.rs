//! n-gram embedding rows, read ahead of the layer that needs them.
//!
//! Some language models look up part of each token in huge static tables of n-gram embeddings (DeepSeek-V4.1 Engram, Qwen3.8 PLE). The
//! tables live on NVMe; which rows a layer will need follows from the token ids alone. This crate takes token events, starts the reads at
//! once, shares them between requests, and has the rows in memory when the layer asks, bit for bit as a plain `pread` reads them.
//!
//! ```
//! use engram_sched::{Begin, OpenOptions, Scheduler};
//! # use engram_sched::{Spec, Synthetic, synth};
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("table");
//! # synth(&Synthetic::new(Spec::qwen_ple(), 1 << 20).plan(&path)?, &mut |_, _| std::ops::ControlFlow::Continue(()))?;
//!
//! let scheduler = Scheduler::open(&path, &OpenOptions::default())?;
//! let request = scheduler.begin(Begin::default())?;
//! scheduler.on_tokens(request, 0, &[9707, 11, 1879], None)?;  // returns at once; the reads are on their way
//! for _ in scheduler.layers() {
//!     let rows = scheduler.await_layer(request).wait()?;      // or .await, .wait_deadline(t), .try_take()
//!     assert_eq!(rows.shape(), [3, 16, 160]);                 // tokens, heads, bytes of a row
//!     assert_eq!(rows.bytes().len(), 3 * 16 * 160);
//! }
//! scheduler.on_token(request, 374)?;                          // the next token, as soon as it is sampled
//! scheduler.finish(request);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Model::open`] composes what the crates below know separately: the address function ([`Keygen`], made from a [`Spec`] and a token
//! map) and the tables (safetensors checkpoints in place, raw shards, packed records, synthetic tables). It refuses whatever does not
//! fit together. [`Scheduler::open`] opens a model and starts the actors that read.
//!
//! # Features
//!
//! - `cli` (default): the `engram-sched` binary. Library users turn it off: `default-features = false`.
//! - `tokenizer` (default): token maps are built from a `tokenizer.json`.

#![forbid(unsafe_code)]

/// The README's examples compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod error;
mod maps;
mod model;
mod scheduler;
mod specs;
mod synthetic;

pub use error::OpenError;
pub use maps::keygen_of;
pub use model::{Model, ModelOptions};
pub use scheduler::{OpenOptions, Scheduler};
pub use specs::spec_of;
pub use synthetic::Synthetic;

pub use engram_keygen::{
    Dialect, History, HistoryUnavailable, Id, ImportError, Keygen, Profile, RowId, RowSpec, SeedError, Spec, SpecError,
    TableSource, Token, TokenMap, TokenMapError, TokenMapSpec, TokenOutOfRange, Window,
};
pub use engram_sched_core::io::BackendReport;
pub use engram_sched_core::{
    AwaitError, AwaitLayer, BackendChoice, Begin, Closed, Dest, DestId, DirectMode, EntryFailure, FenceRegion,
    FenceStatus, FenceWords, Layer, LayerRows, Limits, Memory, MemoryBounds, MemoryKind, Parts, ReadError,
    ReadRowsError, RequestClass, RequestId, RowIds, RowInt, ShutdownError, StartError, StartOptions, Stats, Step,
    StepEntry, StepError, StepSlot, StepSpec, TokenError,
};
pub use engram_store::{
    DataFile, Extent, FileId, HoleReport, LayerConstants, LayoutError, MANIFEST, ModelConfig, Part, PlainReader,
    QwenConfig, RawGeometry, RowFormat, RowScale, SelfProof, Shard, SourceKind, SparseSample, StoreError, Summary,
    SynthLayout, SynthPlan, SynthTable, Table, V41Config, ValueType, decode, holes, self_proof, synth,
};
// A map as a file with its digest; [`TokenMap`] is what a keygen hashes through.
pub use engram_store::{TokenMap as TokenMapFile, TokenMapError as TokenMapFileError};
