//! Row ids of n-gram embedding tables, a pure function of (spec, history, token).
//!
//! No I/O, no threads, no clock: the crate names none of `std::{fs, io, sync, thread, time}`.

/// Tokenizer id. Signed: engines hold `-1` placeholders, which are refused, never hashed.
pub type Token = i32;
/// Index of a row in one table, heads' offsets included.
pub type RowId = u64;
