//! Row ids of n-gram embedding tables, a pure function of (spec, history, token).
//!
//! Some language models carry huge static tables of n-gram embeddings (DeepSeek-V4.1 Engram, Qwen3.8 PLE). The rows
//! that a token needs follow from the last few token ids by a hash alone. This crate is that hash, bit for bit as the
//! engines compute it, and nothing else: it is built once from a [`Spec`], and then turns tokens into row ids without
//! allocating and without dividing.
//!
//! ```
//! use engram_keygen::{History, Keygen, Spec};
//!
//! let keygen = Keygen::new(&Spec::qwen_ple(), None)?;
//! let mut history = History::new(&keygen, History::TAIL_DEFAULT);
//! let mut rows = vec![0; keygen.columns()];
//! for token in [9707, 11, 1879] {
//!     keygen.check(token)?;                                 // the face does this once
//!     let window = keygen.push(&mut history, token, true);  // moves the history by one position
//!     keygen.token_rows(0, &window, &mut rows);             // 16 row ids of table 0
//! }
//! assert!(rows.iter().all(|&row| row < keygen.table_rows(0)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Invariants
//!
//! - No I/O, no threads, no clock: of the standard library the crate names no files, streams, locks, threads or times. No
//!   `unsafe`.
//! - Streaming equals whole: the rows of a position depend on the ids before it alone, however they were fed, taken
//!   back and fed again.
//! - Every row id lies in the range of its head.
//! - After [`Keygen::new`] and [`History::new`], `push`, `mixes`, `rows` and `token_rows` allocate nothing and use no
//!   division.
//! - What can be checked is checked once, in [`Keygen::new`], and refused by name.

#![forbid(unsafe_code)]

mod derive;
mod error;
mod history;
mod keygen;
mod map;
mod prime;
mod profile;
mod reciprocal;
pub mod rng;
mod spec;

pub use error::{HistoryUnavailable, ImportError, SeedError, SpecError, TokenMapError, TokenOutOfRange};
pub use history::History;
pub use keygen::{Id, Keygen, Window};
pub use map::TokenMap;
pub use profile::Profile;
pub use spec::{Dialect, RowSpec, Spec, TableSource, TokenMapSpec};

/// Tokenizer id. Signed: engines hold `-1` placeholders, which are refused, never hashed.
pub type Token = i32;
/// Index of a row in one table, heads' offsets included.
pub type RowId = u64;

/// Most n-gram orders: 2..=8.
pub const ORDERS_MAX: usize = 7;
/// Most hash heads per order.
pub const HEADS_MAX: usize = 32;
/// Most tables (layers) of a model.
pub const TABLES_MAX: usize = 64;
/// Most ids of a vocabulary, raw or compressed. Above it numpy draws the multipliers in another way.
pub const VOCAB_MAX: u32 = 1 << 29;
/// Greatest base, in rows of one head: a table then stays below 2^49 rows.
pub const BASE_MAX: u64 = 1 << 40;
