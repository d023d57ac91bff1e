//! Every refusal of this crate, one enum per question that can be answered "no".
//!
//! A wrong constant gives plausible but wrong rows, which nothing downstream can notice; so whatever can be checked is
//! checked once, at start, and refused by name. Messages say cause and remedy.
//!
//! Invariant: errors are plain data (`Clone + PartialEq`), so that tests and callers can compare them.

use crate::Token;

/// Why a [`crate::Spec`] is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The text is no spec.
    #[error("cannot read the spec as {format}: {message}; fields are listed in the documentation of `Spec`")]
    Parse {
        /// `TOML` or `JSON`.
        format: &'static str,
        /// What the parser said, with the place.
        message: String,
    },
    /// A number is outside what this crate supports.
    #[error("{field} = {value} is outside {min}..={max}; correct the spec")]
    Limit {
        /// The field of the spec.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The least legal value.
        min: u64,
        /// The greatest legal value.
        max: u64,
    },
    /// The dialect cannot do without this field.
    #[error("the spec has no `{field}`, which dialect {dialect} needs; {remedy}")]
    Missing {
        /// The field of the spec.
        field: &'static str,
        /// The dialect's name.
        dialect: &'static str,
        /// Where the value is found.
        remedy: &'static str,
    },
    /// The dialect has no use for this field, so its presence hides a misunderstanding.
    #[error("dialect {dialect} has no use for `{field}`; remove it or correct the dialect")]
    NotOfDialect {
        /// The field of the spec.
        field: &'static str,
        /// The dialect's name.
        dialect: &'static str,
    },
    /// A list has the wrong number of entries.
    #[error("`{field}` has {got} entries instead of {want}; give one per {per}")]
    Length {
        /// The field of the spec.
        field: &'static str,
        /// Entries found.
        got: usize,
        /// Entries needed.
        want: usize,
        /// What each entry belongs to.
        per: &'static str,
    },
    /// A layer occurs twice.
    #[error("layer {layer} occurs twice in layer_ids; each layer has one table")]
    DuplicateLayer {
        /// The zero-based decoder layer.
        layer: u16,
    },
    /// `table_order` names other layers than `layer_ids`.
    #[error(
        "table_order {order:?} is no permutation of layer_ids {layers:?}; it says in which order the layers take primes"
    )]
    TableOrder {
        /// `table_order`.
        order: Vec<u16>,
        /// `layer_ids`.
        layers: Vec<u16>,
    },
    /// A layer beyond the model.
    #[error(
        "{field} holds layer {layer}, but the model has {num_layers} layers; layers are zero-based decoder indices"
    )]
    LayerBeyondModel {
        /// The field of the spec.
        field: &'static str,
        /// The layer.
        layer: u16,
        /// `num_layers`.
        num_layers: u16,
    },
    /// An id that the spec names is no legal id.
    #[error(
        "{field} = {id} is outside the vocabulary 0..{vocab}; the spec and the tokenizer are of different revisions"
    )]
    IdOutOfRange {
        /// The field of the spec.
        field: &'static str,
        /// The id.
        id: i64,
        /// Size of the vocabulary it has to lie in.
        vocab: u32,
    },
    /// `pad_raw` and `pad_compressed` are different ids.
    #[error(
        "pad_raw {raw} compresses to {mapped}, but pad_compressed is {declared}; give the map of this model, or \
        one of the two"
    )]
    PadMismatch {
        /// `pad_raw`.
        raw: u32,
        /// What the map makes of it.
        mapped: u32,
        /// `pad_compressed`.
        declared: u32,
    },
    /// A multiplier that is declared differs from the derived one.
    #[error(
        "layer {layer}: multiplier {index} is declared as {declared}, but seed and vocabulary give {derived}; \
        correct seed, vocab or compressed_vocab, or set trust_overrides to believe the declared constants"
    )]
    MultiplierMismatch {
        /// The layer.
        layer: u16,
        /// Lookback distance, 0 = the token itself.
        index: usize,
        /// What the spec says.
        declared: u64,
        /// What the derivation gives.
        derived: u64,
    },
    /// A prime that is declared differs from the derived one.
    #[error(
        "layer {layer}: the prime of column {column} is declared as {declared}, but the bases give {derived}; \
        correct bases or table_order, or set trust_overrides to believe the declared constants"
    )]
    PrimeMismatch {
        /// The layer.
        layer: u16,
        /// Hash column, order-major.
        column: usize,
        /// What the spec says.
        declared: u64,
        /// What the derivation gives.
        derived: u64,
    },
    /// The sum of a table's primes is not the declared number of rows.
    #[error(
        "layer {layer}: the heads address {derived} rows, but the spec declares {declared}; bases, heads, max_ngram or \
         table_order are not those of this table"
    )]
    RowsMismatch {
        /// The layer.
        layer: u16,
        /// `rows` of the spec.
        declared: u64,
        /// Sum of the primes.
        derived: u64,
    },
    /// A declared multiplier is even: it would lose a bit of every id.
    #[error(
        "layer {layer}: multiplier {index} = {value} is even; multipliers are odd, so this is no multiplier of a model"
    )]
    MultiplierEven {
        /// The layer.
        layer: u16,
        /// Lookback distance.
        index: usize,
        /// The multiplier.
        value: u64,
    },
    /// `multiplier * (vocab - 1)` leaves 63 bits: signed and unsigned engines would differ.
    #[error(
        "layer {layer}: multiplier {index} = {value} times the largest id of {vocab} reaches 2^63, where \
        engines differ; the multipliers were made for a smaller vocabulary"
    )]
    ProductOverflow {
        /// The layer.
        layer: u16,
        /// Lookback distance.
        index: usize,
        /// The multiplier.
        value: u64,
        /// Size of the hashed vocabulary.
        vocab: u32,
    },
    /// A declared modulus is not prime.
    #[error(
        "layer {layer}: the modulus {value} of column {column} is not prime; the list is damaged or in another order"
    )]
    NotPrime {
        /// The layer.
        layer: u16,
        /// Hash column.
        column: usize,
        /// The modulus.
        value: u64,
    },
    /// A declared prime serves two heads.
    #[error(
        "layer {layer}: the prime {value} of column {column} is already another head's; heads have distinct primes"
    )]
    PrimeRepeated {
        /// The layer.
        layer: u16,
        /// Hash column.
        column: usize,
        /// The prime.
        value: u64,
    },
    /// The spec declares a token map and none was given.
    #[error(
        "the model compresses its vocabulary and no token map was given; load it, or build it from the model's \
        tokenizer.json"
    )]
    MapMissing,
    /// A token map was given to a dialect that hashes raw ids.
    #[error("dialect {dialect} hashes raw ids; a token map of {len} entries cannot belong to this model")]
    MapUnexpected {
        /// The dialect's name.
        dialect: &'static str,
        /// Entries of the map.
        len: usize,
    },
    /// The map is for another vocabulary.
    #[error(
        "the token map has {got} entries, but {field} says {want}; it was made from another revision of the tokenizer"
    )]
    MapLength {
        /// The field that declares the length.
        field: &'static str,
        /// Entries of the map.
        got: usize,
        /// Entries declared.
        want: u64,
    },
    /// The map compresses to another number of ids than the multipliers were made for.
    #[error(
        "the token map compresses to {got} ids, but compressed_vocab is {want}; the multipliers were made for \
        another tokenizer"
    )]
    MapVocab {
        /// Largest value of the map + 1.
        got: u32,
        /// `compressed_vocab`.
        want: u32,
    },
}

/// Why a list of ids is no token map.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenMapError {
    /// No entries.
    #[error("the token map is empty; it has one entry per raw id")]
    Empty,
    /// More entries than supported.
    #[error("the token map has {len} entries, more than {max}; this is no token map")]
    TooLong {
        /// Entries found.
        len: usize,
        /// The limit, [`crate::VOCAB_MAX`].
        max: u32,
    },
    /// A value that no map of this length can hold.
    #[error(
        "entry {index} of the token map is {value}, outside 0..{len}; the file is damaged or not little-endian i32"
    )]
    Value {
        /// The raw id.
        index: usize,
        /// Its value.
        value: i32,
        /// Entries of the map.
        len: usize,
    },
    /// A compressed id that no raw id maps to.
    #[error(
        "no raw id maps to {missing}, though {max} occurs; values are 0..V without a gap, so the map is cut or damaged"
    )]
    Gap {
        /// The least compressed id that is absent.
        missing: i32,
        /// The largest that is present.
        max: i32,
    },
}

/// A token id that the model does not have. Nothing was consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "token {token} is outside the vocabulary 0..{vocab}; pass the tokenizer's ids, and masked positions with \
    live = false"
)]
pub struct TokenOutOfRange {
    /// The id.
    pub token: Token,
    /// Legal ids are `0..vocab`.
    pub vocab: u32,
}

/// Why a history cannot be seeded. The history is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SeedError {
    /// Fewer ids than the window of the next token reaches back.
    #[error("position {start_pos} needs the {need} ids before it, {got} were given; pass the last {need}, newest last")]
    TooShort {
        /// The position of the next token.
        start_pos: u64,
        /// Ids needed: min(start_pos, n - 1).
        need: usize,
        /// Ids given.
        got: usize,
    },
    /// The live mask has another length than the ids.
    #[error("the live mask has {live} entries for {ids} ids; give one per id or none at all")]
    Mask {
        /// Entries of the mask.
        live: usize,
        /// Ids given.
        ids: usize,
    },
    /// An id of the window is not legal.
    #[error("history: {0}")]
    Token(#[from] TokenOutOfRange),
}

/// A rollback beyond what the history remembers. The history is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot go back {positions} positions from {position}: the kept tail allows {rollback_max}; give the history again"
)]
pub struct HistoryUnavailable {
    /// Positions to take back.
    pub positions: u64,
    /// Positions that exist.
    pub position: u64,
    /// What [`crate::History::rollback_max`] allows.
    pub rollback_max: u64,
}

/// Why exported bytes are no history for this keygen. The history is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// Not made by [`crate::History::export`], or cut.
    #[error("{len} bytes are no exported history: {cause}; pass what `export` gave, unchanged")]
    Malformed {
        /// Bytes given.
        len: usize,
        /// What is wrong with them.
        cause: &'static str,
    },
    /// A format of a later version.
    #[error("the history has format {found}, this version reads format {known}; update the reader")]
    Version {
        /// Format of the bytes.
        found: u16,
        /// The newest format known here.
        known: u16,
    },
    /// Ids of another spec or token map.
    #[error(
        "the history belongs to keygen {found:016x}, not to {want:016x}; both sides must use the same spec and \
        token map"
    )]
    OtherKeygen {
        /// Fingerprint in the bytes.
        found: u64,
        /// Fingerprint of this history's keygen.
        want: u64,
    },
}
