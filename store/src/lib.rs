//! Where the rows of n-gram embedding tables lie: checkpoints, raw shards, packed records, synthetic tables.
//!
//! This crate knows files and formats; it knows no requests, no threads and names no atomics. [`open`] tells what a folder holds and
//! gives its [`Table`]s: for every row the extents of its bytes. [`synth`](fn@synth) writes tables whose rows prove themselves. Rows are
//! never interpreted on the way; [`decode`] is there for whoever asks.
//!
//! ```
//! use engram_store::{PlainReader, RowFormat, SynthLayout, SynthPlan, SynthTable, open, self_proof, synth};
//! use std::ops::ControlFlow;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let dir = tempfile::tempdir()?;
//! let plan = SynthPlan {
//!     out: dir.path().join("table"),
//!     layout: SynthLayout::Packed,
//!     tables: vec![SynthTable { layer: 1, rows: 1000, padded_rows: 1000, tag: 1 }],
//!     row_format: RowFormat::v41(256),
//!     shards: 1,
//!     config: None,
//!     constants: Vec::new(),
//!     spec_json: None,
//!     sparse: None,
//! };
//! synth(&plan, &mut |_done, _total| ControlFlow::Continue(()))?;
//!
//! let opened = open(&plan.out, None)?;
//! let mut row = [0; 264];
//! PlainReader::open(&opened)?.read_row(0, 999, &mut row)?;
//! assert!(self_proof::check_row(1, 999, opened.row_format, &row));
//! # Ok(())
//! # }
//! ```
//!
//! Invariants: opening reads headers, manifests and constants, never row data, and allocates nothing in the order of a table; what opens
//! is complete; every refusal is a [`StoreError`] that names the file and the remedy.

mod checkpoint;
mod config;
pub mod decode;
mod error;
mod files;
mod format;
mod holes;
mod json;
mod manifest;
mod opened;
mod plain;
mod raw;
pub mod self_proof;
mod synth;
mod table;
mod token_map;

pub use checkpoint::{Dtype, HEADER_BYTES_MAX, HeaderFault};
pub use config::{ModelConfig, QwenConfig, V41Config};
pub use error::StoreError;
pub use format::{RowFormat, RowScale, ValueType};
pub use holes::{HoleReport, holes};
pub use manifest::{MANIFEST, VERSION};
pub use opened::{LayerConstants, Opened, SourceKind, open};
pub use plain::PlainReader;
pub use raw::RawGeometry;
pub use self_proof::SelfProof;
pub use synth::{SparseSample, Summary, SynthLayout, SynthPlan, SynthTable, synth};
pub use table::{DataFile, Extent, FileId, LayoutError, Part, Shard, Table};
pub use token_map::{
    CachedTokenMap, ExpectedMap, MapOrigin, TOKEN_MAP_IDS_MAX, TokenMap, TokenMapCache, TokenMapError,
};
