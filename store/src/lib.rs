//! Where the rows of n-gram embedding tables lie: checkpoints, raw shards, packed records, synthetic tables.
//!
//! This crate knows files and formats; it knows no requests and names no atomics.

mod table;

pub use table::{DataFile, Extent, FileId, LayoutError, Part, Shard, Table};
