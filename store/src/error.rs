//! What can go wrong with tables on disk.
//!
//! Every message names the file, the cause and what to do about it: an operator reads it, not a developer. The variants are the
//! vocabulary of the tests; nothing here is ever turned into zeros, a clamp or a default.

use std::io;
use std::path::{Path, PathBuf};

use crate::checkpoint::HeaderFault;
use crate::format::RowFormat;
use crate::table::LayoutError;

/// Why a table cannot be opened, read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The path does not exist.
    #[error("{path}: no such file or folder; give the folder that holds the checkpoint or table")]
    PathMissing {
        /// The path as given.
        path: PathBuf,
    },
    /// A file that the table needs is not there (any more).
    #[error("{path}: this file of the table is missing; fetch this file again (a synthetic table: make it again)")]
    FileMissing {
        /// The file.
        path: PathBuf,
    },
    /// A folder with nothing in it.
    #[error("{path}: the folder is empty; download a checkpoint into it or make a table with `engram-sched synth`")]
    Empty {
        /// The folder.
        path: PathBuf,
    },
    /// Nothing in the folder or file is known.
    #[error(
        "{path}: holds no table that is known ({saw}); expected a checkpoint (config.json, *.safetensors), raw shards (shard_000.bin) or a packed table (engram-sched.json)"
    )]
    Unrecognized {
        /// The path.
        path: PathBuf,
        /// What was seen instead.
        saw: String,
    },
    /// The operating system refused.
    #[error("cannot {doing} {path}: {source}; check that the path is right and that this user may do so")]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// A safetensors header that cannot be trusted.
    #[error("{path}: {fault}")]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: Box<HeaderFault>,
    },
    /// A JSON file that does not parse.
    #[error("{path}: {what} is not valid: {source}; fetch or write the file again")]
    Json {
        /// The file.
        path: PathBuf,
        /// Which kind of file.
        what: &'static str,
        /// The parser's error, with line and column.
        source: serde_json::Error,
    },
    /// A small text file (config, index, manifest) that is unreasonably large.
    #[error("{path}: {len} bytes is too large for {what} (at most {max}); it is probably not that file")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Which kind of file.
        what: &'static str,
        /// Its length, bytes.
        len: u64,
        /// The limit, bytes.
        max: u64,
    },
    /// Files that the index names are not on disk.
    #[error("{index}: {} file(s) that hold table tensors are missing: {}; download them again", .files.len(), list(.files))]
    IndexFilesMissing {
        /// The index file.
        index: PathBuf,
        /// The names of the missing files.
        files: Vec<String>,
    },
    /// The index names a file outside of its folder.
    #[error(
        "{index}: maps tensor {tensor} to {file:?}, which is not inside the folder; the index is damaged or hostile: fetch it again"
    )]
    IndexPath {
        /// The index file.
        index: PathBuf,
        /// The tensor.
        tensor: String,
        /// The file as named.
        file: String,
    },
    /// The index names no such tensor.
    #[error(
        "{index}: the index does not name tensor {tensor}; the index belongs to another model or revision: fetch it again"
    )]
    TensorNotInIndex {
        /// The index file.
        index: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// The index maps the tensor to a file whose header lacks it, and no other file has it.
    #[error("{file}: the file lacks tensor {tensor}, which {index} says it holds; fetch both again")]
    TensorNotInFile {
        /// The file that should hold it.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// The index file.
        index: PathBuf,
    },
    /// The index maps the tensor to one file, but another one holds it.
    #[error(
        "{index}: says that tensor {tensor} is in {file}, but it is in {found}; the index is stale: fetch it again"
    )]
    TensorElsewhere {
        /// The index file.
        index: PathBuf,
        /// The tensor.
        tensor: String,
        /// The file that the index names.
        file: PathBuf,
        /// The file that holds it.
        found: PathBuf,
    },
    /// A checkpoint without an index lacks the tensor.
    #[error("{path}: no file holds tensor {tensor}; fetch the checkpoint again, with its index")]
    TensorMissing {
        /// The folder or file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// Two files of a checkpoint without an index hold the same tensor.
    #[error("tensor {tensor} is in {first} and in {second}; remove the file that does not belong to the checkpoint")]
    TensorTwice {
        /// The tensor.
        tensor: String,
        /// One file.
        first: PathBuf,
        /// The other file.
        second: PathBuf,
    },
    /// Shards of a table are missing.
    #[error(
        "{path}: {what}: {found} of {expected} shards found, missing number(s) {missing}; fetch the missing shards"
    )]
    ShardsMissing {
        /// Folder, index or file.
        path: PathBuf,
        /// The table.
        what: String,
        /// Shards found.
        found: u64,
        /// Shards expected.
        expected: u64,
        /// Numbers that are missing, abbreviated.
        missing: String,
    },
    /// Two tensors or files claim the same shard number.
    #[error("{path}: shard number {number} appears twice, as {first} and as {second}; remove the wrong one")]
    ShardTwice {
        /// Folder, index or file.
        path: PathBuf,
        /// The number.
        number: u64,
        /// One name.
        first: String,
        /// The other name.
        second: String,
    },
    /// Two tables claim the same layer.
    #[error("{path}: layer {layer} has two tables, {first} and {second}; remove the wrong one")]
    TableTwice {
        /// Folder, index or file.
        path: PathBuf,
        /// Zero-based decoder layer.
        layer: u16,
        /// One table.
        first: String,
        /// The other table.
        second: String,
    },
    /// Shards or tables that must agree do not.
    #[error(
        "{path}: {second}, but {first}; all shards and tables must agree: the checkpoint is mixed from two, fetch it again"
    )]
    Differ {
        /// The file of the second one.
        path: PathBuf,
        /// The first one, and what it is.
        first: String,
        /// The one that differs, and what it is.
        second: String,
    },
    /// A type name that the safetensors format does not know.
    #[error(
        "{path}: tensor {tensor} has the unknown type {dtype}; this version cannot read it: convert the checkpoint or use a newer version"
    )]
    DtypeUnknown {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The type name.
        dtype: String,
    },
    /// A tensor of another type or shape than the format prescribes.
    #[error(
        "{path}: tensor {tensor} is {got}, expected {expected}; this is not the layout that its name promises: fetch or convert the checkpoint again"
    )]
    TensorShape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Type and shape found.
        got: String,
        /// Type and shape expected.
        expected: String,
    },
    /// FP8 values without their scale.
    #[error(
        "{path}: table {tensor} is FP8, and its scale is missing (looked for {tried}); rows without it would be noise: fetch the file that holds the scale"
    )]
    ScaleMissing {
        /// The folder, index or file.
        path: PathBuf,
        /// The table.
        tensor: String,
        /// The spellings that were looked for.
        tried: String,
    },
    /// A scale that cannot be used.
    #[error("{path}: scale {tensor} {why}; fetch the checkpoint again")]
    ScaleBad {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What is wrong.
        why: String,
    },
    /// A table with another number of rows than declared.
    #[error(
        "{path}: the table of layer {layer} has {got} rows, expected {expected} by {by}; table and configuration are of different models or revisions: fetch both from one"
    )]
    RowsWrong {
        /// The folder or file.
        path: PathBuf,
        /// Zero-based decoder layer.
        layer: u16,
        /// Rows found.
        got: u64,
        /// Rows declared.
        expected: u64,
        /// What declares them.
        by: &'static str,
    },
    /// A storage format that this version cannot serve.
    #[error("{path}: {what} is not supported yet by this version; {remedy}")]
    Unsupported {
        /// The folder or file.
        path: PathBuf,
        /// The format.
        what: String,
        /// What to use in its place.
        remedy: &'static str,
    },
    /// A key of a configuration is missing or has an impossible value.
    #[error("{path}: key {key} {why}; use the config.json that belongs to the checkpoint")]
    Config {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// What is wrong.
        why: String,
    },
    /// A constants tensor that cannot be right.
    #[error("{path}: constants tensor {tensor} {why}; fetch the checkpoint again")]
    Constants {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What is wrong.
        why: String,
    },
    /// Raw shards without a manifest need their geometry from the caller.
    #[error(
        "{path}: raw shards without manifest.json do not tell their geometry; give the bytes of a row (--row-bytes) and the rows of a full shard (--rows-per-shard); the rows of the table (--rows) are optional: without, as many as the files hold"
    )]
    GeometryNeeded {
        /// The folder.
        path: PathBuf,
    },
    /// Geometry that cannot be.
    #[error("{path}: the geometry is impossible ({why}); correct the manifest or the flags")]
    Geometry {
        /// The folder or manifest.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A manifest of ours that cannot be used.
    #[error("{path}: {why}; make the table again")]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A manifest that asks for a newer reader.
    #[error(
        "{path}: written in format {version}, needs a reader of format {reader_min} or newer, this is {ours}; update engram-sched or make the table again"
    )]
    ManifestVersion {
        /// The manifest.
        path: PathBuf,
        /// Format it is written in.
        version: u32,
        /// Oldest reader that can read it.
        reader_min: u32,
        /// Format that this reader knows.
        ours: u32,
    },
    /// A data file of another length than its geometry says.
    #[error("{path}: {len} bytes, its geometry says {expected}: the file is {}; copy or make it again", if .len < .expected { "truncated" } else { "followed by bytes that belong to no row" })]
    FileLength {
        /// The file.
        path: PathBuf,
        /// Its length, bytes.
        len: u64,
        /// The length that its geometry gives, bytes.
        expected: u64,
    },
    /// Rows do not fit their files.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A file that changed between opening the table and reading it.
    #[error(
        "{path}: was {expected} bytes when the table was opened and is {len} now; do not replace files of a table in use: open it again"
    )]
    Changed {
        /// The file.
        path: PathBuf,
        /// Its length now, bytes.
        len: u64,
        /// Its length at opening, bytes.
        expected: u64,
    },
    /// A row id beyond the table.
    #[error(
        "row {row} of layer {layer} is out of range: the table has {rows} rows; row ids come from the model's own hash, check the spec"
    )]
    RowOutOfRange {
        /// Zero-based decoder layer.
        layer: u16,
        /// The row id.
        row: u64,
        /// Rows of the table.
        rows: u64,
    },
    /// A table index beyond the list, or a buffer of another size than a row.
    #[error("{what} is {got}, expected {expected}; this is a fault of the caller")]
    Call {
        /// Which argument.
        what: &'static str,
        /// Its value.
        got: u64,
        /// The value it must have, or the bound.
        expected: u64,
    },
    /// A row could not be read.
    #[error(
        "{path}: reading row {row} of layer {layer} ({len} bytes at {offset}) failed: {source}; the disk is failing or the file was truncated"
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// Zero-based decoder layer.
        layer: u16,
        /// The row id.
        row: u64,
        /// Offset in the file, bytes.
        offset: u64,
        /// Bytes asked for.
        len: u32,
        /// The system's error.
        source: io::Error,
    },
    /// Rows of this format cannot be decoded here.
    #[error(
        "rows of {format} cannot be decoded here, because their type or scale is not known; decode the bytes in the engine"
    )]
    Undecodable {
        /// The format of the rows.
        format: RowFormat,
    },
    /// The place to write to is taken.
    #[error("{path}: exists and is not an empty folder; choose another place or remove it first")]
    OutExists {
        /// The place.
        path: PathBuf,
    },
    /// Too little free space.
    #[error(
        "{path}: the table takes {need} bytes and the disk has {free} free; at least twice the size must be free: make room or ask for a smaller table"
    )]
    NoSpace {
        /// The place to write to.
        path: PathBuf,
        /// Bytes the table takes on disk.
        need: u64,
        /// Bytes free.
        free: u64,
    },
    /// Writing failed; the partial output was removed.
    #[error("{path}: writing failed: {source}; the partial output was removed{}", if .source.kind() == io::ErrorKind::StorageFull { ": make room" } else { "" })]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The caller stopped the work; the partial output was removed.
    #[error("{path}: stopped on request; the partial output was removed")]
    Cancelled {
        /// The place that was being written.
        path: PathBuf,
    },
    /// A plan for a synthetic table that cannot be carried out.
    #[error("{path}: this table cannot be made: {why}; change the plan")]
    Plan {
        /// The place to write to.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

impl StoreError {
    /// [`StoreError::io`] for a file that a table is known to need: the user named the table, not this file.
    pub(crate) fn file(path: &Path, doing: &'static str, source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::NotFound {
            return Self::FileMissing { path: path.into() };
        }
        Self::Io { path: path.into(), doing, source }
    }

    /// Wraps an error of the operating system: a missing path becomes [`StoreError::PathMissing`].
    pub(crate) fn io(path: &Path, doing: &'static str, source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::NotFound {
            return Self::PathMissing { path: path.into() };
        }
        Self::Io { path: path.into(), doing, source }
    }
}

/// Names joined by commas, cut after five.
fn list(names: &[String]) -> String {
    let mut text = names.iter().take(5).map(String::as_str).collect::<Vec<_>>().join(", ");
    if names.len() > 5 {
        text.push_str(&format!(" and {} more", names.len() - 5));
    }
    text
}
