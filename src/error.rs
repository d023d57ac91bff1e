//! Why a model cannot be opened.

use engram_keygen::SpecError;
use engram_sched_core::StartError;
use engram_store::{StoreError, TokenMapError as TokenMapFileError};
use std::path::PathBuf;

/// Errors of [`Model::open`](crate::Model::open) and [`Scheduler::open`](crate::Scheduler::open); each names the file and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The tables cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The scheduler cannot start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The spec, or the checkpoint's configuration or constants, are not those of a model.
    #[error("{origin}: {source}")]
    Spec {
        /// Where the spec came from.
        origin: String,
        /// What is wrong with it.
        source: SpecError,
    },
    /// A spec file cannot be read.
    #[error("cannot read the spec {}: {source}", path.display())]
    SpecFile {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// No model has this name, and no file has this path.
    #[error("{name:?} is neither a model (qwen-ple, deepseek-v41, demo) nor a spec file; specs end in .toml or .json")]
    UnknownModel {
        /// What was asked for.
        name: String,
    },
    /// The table does not say how its rows are addressed.
    #[error(
        "{} does not say which model it belongs to: it has no config.json and no spec; give one in `ModelOptions::spec`",
        path.display()
    )]
    NoSpec {
        /// The table.
        path: PathBuf,
    },
    /// The token map cannot be had, or is not the model's.
    #[error(transparent)]
    TokenMap(#[from] TokenMapFileError),
    /// The token map is no map that this model can use.
    #[error("{origin}: {source}")]
    TokenMapIds {
        /// Where the map came from.
        origin: String,
        /// What is wrong with it.
        source: engram_keygen::TokenMapError,
    },
    /// The model compresses its vocabulary, and nothing says how.
    #[error(
        "{origin} compresses its vocabulary and has no token map here: give one in `ModelOptions::token_map`, or put the \
         model's tokenizer.json beside the checkpoint"
    )]
    NoTokenMap {
        /// The model or table.
        origin: String,
    },
    /// A synthetic table needs the width of a row, and the spec has none.
    #[error("{origin} does not say how wide a row is: give the spec a `row`, or call `Synthetic::row_bytes`")]
    NoRowBytes {
        /// The model.
        origin: String,
    },
    /// A synthetic table cannot be larger than the model's own.
    #[error(
        "{bytes} bytes are more than the {full_bytes} of {origin} at full size; ask for less, or for `Synthetic::sparse_full`"
    )]
    BeyondFullSize {
        /// The model.
        origin: String,
        /// Bytes asked for.
        bytes: u64,
        /// Bytes of all rows at full size.
        full_bytes: u64,
    },
    /// A layer of the model has no table.
    #[error("{}: layer {layer} of the model has no table here; the tables are those of layers {found:?}", path.display())]
    LayerMissing {
        /// The table folder.
        path: PathBuf,
        /// The layer.
        layer: u16,
        /// Layers that have a table.
        found: Vec<u16>,
    },
    /// A table has another number of rows than the spec addresses.
    #[error(
        "{}: the table of layer {layer} has {rows} rows, but the spec addresses {addressed} (padded {padded}); table and spec \
         are of different models",
        path.display()
    )]
    Rows {
        /// The table folder.
        path: PathBuf,
        /// The layer.
        layer: u16,
        /// Rows of the table.
        rows: u64,
        /// Rows that the spec addresses.
        addressed: u64,
        /// The same with the padding of the checkpoint.
        padded: u64,
    },
    /// A constant of the checkpoint differs from the one that follows from its configuration.
    #[error(
        "{}: layer {layer}: {what} {index} is {stored} in the checkpoint, but {derived} follows from its configuration; the \
         checkpoint is damaged, or of a model that this version does not know",
        path.display()
    )]
    Constant {
        /// The checkpoint.
        path: PathBuf,
        /// The layer.
        layer: u16,
        /// Which list.
        what: &'static str,
        /// Index in the list.
        index: usize,
        /// What the checkpoint says.
        stored: u64,
        /// What follows from the configuration.
        derived: u64,
    },
}
