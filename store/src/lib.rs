//! Where the rows of n-gram embedding tables lie: checkpoints, raw shards, packed records, synthetic tables.
//!
//! This crate knows files and formats; it knows no requests and names no atomics.

mod table;
mod token_map;

pub use table::{DataFile, Extent, FileId, LayoutError, Part, Shard, Table};
pub use token_map::{
    CachedTokenMap, ExpectedMap, MapOrigin, TOKEN_MAP_IDS_MAX, TokenMap, TokenMapCache, TokenMapError,
};
