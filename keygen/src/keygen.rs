//! The address function: a validated spec that turns tokens into row ids.
//!
//! Both dialects are one loop. A window holds the ids of n positions, newest first; once a predecessor is missing or is
//! the dialect's barrier, it and everything older is the dialect's filler:
//!
//! | | id hashed | barrier | filler | does the current id cut its own window? |
//! |---|---|---|---|---|
//! | Engram | compressed | DEAD | pad | yes: a DEAD position hashes as all pad, and its rows are not used |
//! | Qwen PLE | raw | EOS | EOS | no |
//!
//! Per table and order, the mix is the xor of id x multiplier over the window; the heads of an order share it and
//! differ in their prime only.
//!
//! Invariants: immutable after `new`; for legal ids every mix is below 2^63, so signed and unsigned arithmetic agree.

use crate::derive;
use crate::prime::is_prime;
use crate::reciprocal::Reciprocal;
use crate::rng::splitmix64;
use crate::{Dialect, History, ORDERS_MAX, RowId, Spec, SpecError, Token, TokenMap, TokenOutOfRange, VOCAB_MAX};

/// Positions in the longest window.
const WINDOW_MAX: usize = ORDERS_MAX + 1;

/// A resolved id that stands for "blocked from here on" (Engram). No compressed id is negative.
pub(crate) const DEAD: i32 = -1;

/// The resolved ids that one token's rows follow from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Newest first; beyond `len` zero.
    ids: [i32; WINDOW_MAX],
    len: u8,
    dead: bool,
}

impl Window {
    /// The n ids, newest first: compressed (Engram) or raw (Qwen), with the filler where nothing counts.
    pub fn ids(&self) -> &[i32] {
        &self.ids[..usize::from(self.len)]
    }

    /// Whether the position is DEAD (Engram only): read nothing and deliver zeros.
    ///
    /// The rows of such a window are those of an all-pad window, as in the engines, which never use them.
    pub fn dead(&self) -> bool {
        self.dead
    }
}

/// One hash column of a table.
#[derive(Clone, Copy, Debug)]
struct Head {
    prime: Reciprocal,
    offset: RowId,
}

#[derive(Clone, Debug)]
struct Table {
    layer: u16,
    /// By lookback distance; beyond n zero.
    multipliers: [u64; WINDOW_MAX],
    /// Order-major: what the hot path reads, 24 B a column.
    heads: Vec<Head>,
    primes: Vec<u64>,
    offsets: Vec<RowId>,
    rows: u64,
}

/// A token resolved to what is hashed: the id itself, its compressed id, or DEAD. Of one keygen, and not checked again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Id(pub(crate) i32);

impl Id {
    /// As a word, for a queue between the one who checks tokens and the one who hashes them.
    #[inline]
    pub fn to_word(self) -> u32 {
        self.0 as u32
    }

    /// Back from [`Id::to_word`].
    #[inline]
    pub fn from_word(word: u32) -> Self {
        Self(word as i32)
    }
}

/// A validated spec, ready to hash. Immutable; share it by reference.
///
/// Memory: 4 B per raw id (Engram), and a few KiB.
#[derive(Clone, Debug)]
pub struct Keygen {
    spec: Spec,
    tables: Vec<Table>,
    /// n.
    window_len: usize,
    heads: usize,
    /// Raw id -> compressed id or DEAD. Empty for Qwen, whose ids are hashed as they are.
    resolved: Box<[i32]>,
    /// Legal raw ids are 0..vocab.
    vocab: u32,
    /// Size of the vocabulary that is hashed.
    hashed_vocab: u32,
    barrier: i32,
    filler: i32,
    fingerprint: u64,
}

impl Keygen {
    /// Checks the spec and derives its constants.
    ///
    /// `map` is the token map of an Engram model; without it (and with none declared) ids are hashed as they are. Qwen
    /// takes none. The digest of the map is not checked here.
    ///
    /// # Errors
    /// A [`SpecError`] that names the field: a size out of bounds, lists that do not fit together, a declared constant
    /// that differs from the derived one, rows that are not the sum of the primes, products that reach 2^63, a map of
    /// another length or vocabulary.
    pub fn new(spec: &Spec, map: Option<TokenMap>) -> Result<Self, SpecError> {
        derive::shape(spec)?;
        check_layers(spec)?;
        check_fields(spec)?;
        let vocabulary = Vocabulary::new(spec, map)?;
        let multipliers = multipliers(spec, vocabulary.hashed)?;
        let primes = primes(spec)?;

        let mut tables = Vec::with_capacity(spec.layer_ids.len());
        for (i, &layer) in spec.layer_ids.iter().enumerate() {
            let mut padded = [0; WINDOW_MAX];
            padded[..spec.max_ngram].copy_from_slice(&multipliers[i]);
            let mut rows = 0;
            let mut offsets = Vec::with_capacity(spec.columns());
            for prime in &primes[i] {
                offsets.push(rows);
                rows += prime;
            }
            if let Some(declared) = &spec.rows
                && declared[i] != rows
            {
                return Err(SpecError::RowsMismatch { layer, declared: declared[i], derived: rows });
            }
            let head = |(&prime, &offset): (&u64, &u64)| Head { prime: Reciprocal::new(prime), offset };
            let heads = primes[i].iter().zip(&offsets).map(head).collect();
            tables.push(Table { layer, multipliers: padded, heads, primes: primes[i].clone(), offsets, rows });
        }
        let mut keygen = Self {
            spec: spec.clone(),
            tables,
            window_len: spec.max_ngram,
            heads: spec.heads,
            resolved: vocabulary.resolved,
            vocab: vocabulary.raw,
            hashed_vocab: vocabulary.hashed,
            barrier: vocabulary.barrier,
            filler: vocabulary.filler,
            fingerprint: 0,
        };
        keygen.fingerprint = keygen.compute_fingerprint();
        Ok(keygen)
    }

    /// The spec this was made from.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Number of tables; table i belongs to layer `spec().layer_ids[i]`.
    pub fn tables(&self) -> usize {
        self.tables.len()
    }

    /// The zero-based decoder layer of a table.
    ///
    /// # Panics
    /// If there is no such table, like every method that takes one.
    pub fn layer(&self, table: usize) -> u16 {
        self.tables[table].layer
    }

    /// The layer at which a table's rows are needed: its own unless the spec says otherwise.
    pub fn deadline_layer(&self, table: usize) -> u16 {
        self.spec.deadline_layers.as_ref().map_or(self.tables[table].layer, |layers| layers[table])
    }

    /// Rows of a table that can be addressed: row ids are below it. The sum of the primes.
    pub fn table_rows(&self, table: usize) -> u64 {
        self.tables[table].rows
    }

    /// Rows of a table as stored: [`Keygen::table_rows`] rounded up to the spec's divisor (Qwen 128).
    pub fn table_rows_padded(&self, table: usize) -> u64 {
        self.tables[table].rows.next_multiple_of(self.spec.row_divisor.unwrap_or(1))
    }

    /// n-gram orders, n - 1: order index 0 = bigram.
    pub fn orders(&self) -> usize {
        self.window_len - 1
    }

    /// Hash heads per order.
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// Rows of a token and table: orders x heads.
    pub fn columns(&self) -> usize {
        self.orders() * self.heads
    }

    /// Predecessors that a row can depend on, n - 1.
    pub fn history_len(&self) -> usize {
        self.window_len - 1
    }

    /// Legal raw ids are `0..vocab`: the length of the map, or the size of the vocabulary.
    pub fn vocab(&self) -> u32 {
        self.vocab
    }

    /// Size of the vocabulary that is hashed: compressed (Engram) or raw (Qwen).
    pub fn hashed_vocab(&self) -> u32 {
        self.hashed_vocab
    }

    /// The id that stands for missing predecessors: compressed pad (Engram), EOS (Qwen).
    pub fn filler(&self) -> i32 {
        self.filler
    }

    /// The multipliers of a table, `[n]`, index = lookback distance.
    pub fn multipliers(&self, table: usize) -> &[u64] {
        &self.tables[table].multipliers[..self.window_len]
    }

    /// The primes of a table, `[columns]`, order-major.
    pub fn primes(&self, table: usize) -> &[u64] {
        &self.tables[table].primes
    }

    /// The first row of each head, `[columns]`: exclusive prefix sums of the primes.
    pub fn offsets(&self, table: usize) -> &[RowId] {
        &self.tables[table].offsets
    }

    /// A 64-bit digest of everything row ids depend on: two keygens with the same give the same rows.
    ///
    /// Stable across machines and runs; no protection against forgery.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Whether `token` is legal, `0 <= token < vocab`. The face asks this once, before anything is consumed.
    ///
    /// # Errors
    /// If it is not.
    #[inline]
    pub fn check(&self, token: Token) -> Result<(), TokenOutOfRange> {
        // A negative id becomes huge.
        if (token as u32) < self.vocab { Ok(()) } else { Err(TokenOutOfRange { token, vocab: self.vocab }) }
    }

    /// Checks a token and resolves it to the id that is hashed.
    ///
    /// `live = false` marks a masked position, whose id need not be legal; see [`Keygen::push`].
    ///
    /// # Errors
    /// If a live token is outside the vocabulary.
    #[inline]
    pub fn id(&self, token: Token, live: bool) -> Result<Id, TokenOutOfRange> {
        if live {
            self.check(token)?;
        }
        Ok(Id(self.resolve(token, live)))
    }

    /// The id that is hashed for `token`, or DEAD.
    #[inline]
    pub(crate) fn resolve(&self, token: Token, live: bool) -> i32 {
        assert!(!live || (token as u32) < self.vocab, "a live token must have passed `Keygen::check`");
        match self.spec.dialect {
            // Not looked up: a masked id may be anything.
            Dialect::Engram if !live => DEAD,
            Dialect::Engram => self.resolved[token as usize],
            Dialect::QwenPle => token,
        }
    }

    /// Appends `token` to the history and gives the window of its position. Allocates nothing.
    ///
    /// `live = false` marks a masked position, whose id need not be legal. Engram: the position is DEAD. Qwen: the id
    /// it carries is hashed like any other; one outside the vocabulary is hashed as two's complement, unsigned (see
    /// [`Keygen::rows_signed_unchecked`] for how engines differ there), so substitute the placeholder before.
    ///
    /// # Panics
    /// If a live token has not passed [`Keygen::check`], or the history was made for another keygen.
    #[inline]
    pub fn push(&self, history: &mut History, token: Token, live: bool) -> Window {
        let id = self.resolve(token, live);
        let window = self.window(history, 0, id);
        history.append(Id(id));
        window
    }

    /// The window of a position that `history` keeps, together with the ids before it. `None` if it does not.
    ///
    /// # Panics
    /// If the history was made for another keygen.
    #[inline]
    pub fn window_at(&self, history: &History, pos: u64) -> Option<Window> {
        let age = history.window_age(pos)?;
        Some(self.window(history, age, history.back(age)?))
    }

    /// The window of the id `age` positions back, 1 = the newest, 0 = the next.
    #[inline]
    fn window(&self, history: &History, age: usize, id: i32) -> Window {
        history.assert_keygen(self);
        let dead = self.spec.dialect == Dialect::Engram && id == DEAD;
        let mut ids = [0; WINDOW_MAX];
        ids[0] = if dead { self.filler } else { id };
        let mut blocked = dead;
        for (lookback, slot) in ids[..self.window_len].iter_mut().enumerate().skip(1) {
            let previous = history.back(age + lookback).unwrap_or(self.barrier);
            blocked |= previous == self.barrier;
            *slot = if blocked { self.filler } else { previous };
        }
        Window { ids, len: self.window_len as u8, dead }
    }

    /// The 64-bit mix of each order, index 0 = bigram; beyond [`Keygen::orders`] zero.
    ///
    /// The rows of an order are a function of its mix, so the mix identifies the group of them.
    #[inline]
    pub fn mixes(&self, table: usize, window: &Window) -> [u64; ORDERS_MAX] {
        let multipliers = &self.tables[table].multipliers;
        let mut out = [0; ORDERS_MAX];
        // Sign extension makes the products of an unchecked (masked Qwen) id those of two's complement.
        let product = |s: usize| (i64::from(window.ids[s]) as u64).wrapping_mul(multipliers[s]);
        let mut mix = product(0);
        for (order, out) in out[..self.window_len - 1].iter_mut().enumerate() {
            mix ^= product(order + 1);
            *out = mix;
        }
        out
    }

    /// The rows of one order's heads for a mix, offsets included. `order` 0 = bigram.
    ///
    /// Exact for every 64-bit mix, taken as unsigned.
    ///
    /// # Panics
    /// If there is no such order, or `out.len()` is not [`Keygen::heads`].
    #[inline]
    pub fn rows(&self, table: usize, order: usize, mix: u64, out: &mut [RowId]) {
        let heads = &self.tables[table].heads[order * self.heads..(order + 1) * self.heads];
        assert!(out.len() == heads.len(), "one row id for each head");
        for (row, head) in out.iter_mut().zip(heads) {
            *row = head.offset + head.prime.rem(mix);
        }
    }

    /// All rows of a token and table, order-major, offsets included.
    ///
    /// # Panics
    /// If `out.len()` is not [`Keygen::columns`].
    #[inline]
    pub fn token_rows(&self, table: usize, window: &Window, out: &mut [RowId]) {
        assert!(out.len() == self.columns(), "one row id for each column");
        let mixes = self.mixes(table, window);
        // Not `chunks_exact_mut`: it divides.
        let mut rest = out;
        for (order, &mix) in mixes[..self.orders()].iter().enumerate() {
            let (rows, later) = rest.split_at_mut(self.heads);
            self.rows(table, order, mix, rows);
            rest = later;
        }
    }

    /// The rows that torch and numpy give for **any** ids, also illegal ones: position `pos` of the sequence `ids`,
    /// signed.
    ///
    /// Not for serving. Engines refuse no id: torch and numpy wrap products as `i64` and take the floored remainder, so
    /// an id beyond the vocabulary or below zero has rows, too, and the published vectors hold some. This product
    /// refuses such ids ([`Keygen::check`]), and its hot path is unsigned; hence this separate, slow, direct form of
    /// the definition. For legal ids it equals the hot path.
    ///
    /// `ids` are raw, from the start of the sequence (or from n - 1 ids before `pos`), all live. Negative ids pass the
    /// token map unchanged, as in the paper's demo, but for -1, which is DEAD in the published vectors. `out` has
    /// [`Keygen::columns`] entries.
    ///
    /// # Panics
    /// If `pos` is not in `ids`, an Engram id is beyond the token map, or `out` has another length.
    pub fn rows_signed_unchecked(&self, table: usize, ids: &[Token], pos: usize, out: &mut [RowId]) {
        assert!(out.len() == self.columns(), "one row id for each column");
        let engram = self.spec.dialect == Dialect::Engram;
        // `None`: blocked.
        let id_at = |age: usize| {
            let raw = ids[pos.checked_sub(age)?];
            if !engram {
                return (age == 0 || raw != self.barrier).then_some(i64::from(raw));
            }
            // Negative ids pass the map unchanged; the vectors let -1 mean DEAD thereafter, as the reference has one
            // array for both.
            let id = usize::try_from(raw).map_or(raw, |index| self.resolved[index]);
            (id != DEAD).then_some(i64::from(id))
        };
        let table = &self.tables[table];
        let filler = i64::from(self.filler);
        let mut blocked = false;
        let mut mix = 0_i64;
        for age in 0..self.window_len {
            let id = if blocked { None } else { id_at(age) };
            blocked = id.is_none();
            mix ^= id.unwrap_or(filler).wrapping_mul(table.multipliers[age] as i64);
            if age > 0 {
                let columns = (age - 1) * self.heads..age * self.heads;
                let heads = table.primes[columns.clone()].iter().zip(&table.offsets[columns.clone()]);
                for (row, (&prime, &offset)) in out[columns].iter_mut().zip(heads) {
                    // Primes are below 2^42, so they are positive as i64, and the floored remainder is not negative.
                    *row = offset + mix.rem_euclid(prime as i64) as u64;
                }
            }
        }
    }

    fn compute_fingerprint(&self) -> u64 {
        let mut digest = 0;
        let mut absorb = |word: u64| digest = splitmix64(digest ^ word);
        absorb(self.spec.dialect as u64);
        for number in [self.window_len, self.heads, self.tables.len(), self.resolved.len()] {
            absorb(number as u64);
        }
        absorb(u64::from(self.vocab));
        absorb(self.barrier as u64);
        absorb(self.filler as u64);
        for table in &self.tables {
            absorb(u64::from(table.layer));
            table.multipliers.iter().chain(&table.primes).for_each(|&word| absorb(word));
        }
        self.resolved.iter().for_each(|&id| absorb(id as u64));
        digest
    }
}

/// What ids are legal and what they are hashed as.
struct Vocabulary {
    raw: u32,
    hashed: u32,
    resolved: Box<[i32]>,
    barrier: i32,
    filler: i32,
}

impl Vocabulary {
    fn new(spec: &Spec, map: Option<TokenMap>) -> Result<Self, SpecError> {
        match spec.dialect {
            Dialect::Engram => Self::engram(spec, map),
            Dialect::QwenPle => Self::qwen(spec, map),
        }
    }

    fn qwen(spec: &Spec, map: Option<TokenMap>) -> Result<Self, SpecError> {
        let dialect = spec.dialect.name();
        if let Some(map) = map {
            return Err(SpecError::MapUnexpected { dialect, len: map.len() });
        }
        let missing = |field, remedy| SpecError::Missing { field, dialect, remedy };
        let vocab = spec.vocab.ok_or(missing("vocab", "take vocab_size of the model's text_config"))?;
        derive::within("vocab", u64::from(vocab), 1, u64::from(VOCAB_MAX))?;
        let eos = spec.eos.ok_or(missing("eos", "take eos_token_id of the model's text_config"))?;
        let eos = legal("eos", i64::from(eos), vocab)?;
        Ok(Self { raw: vocab, hashed: vocab, resolved: Box::default(), barrier: eos, filler: eos })
    }

    fn engram(spec: &Spec, map: Option<TokenMap>) -> Result<Self, SpecError> {
        let dialect = spec.dialect.name();
        let missing = |field, remedy| SpecError::Missing { field, dialect, remedy };
        let v = spec.compressed_vocab.ok_or(missing(
            "compressed_vocab",
            "take engram_compressed_vocab_size of the model's config; the multipliers depend on it",
        ))?;
        derive::within("compressed_vocab", u64::from(v), 1, u64::from(VOCAB_MAX))?;
        let mut resolved: Box<[i32]> = match &map {
            Some(map) => map.ids().into(),
            None if spec.token_map.is_some() => return Err(SpecError::MapMissing),
            None => (0..v as i32).collect(),
        };
        let declared = [("token_map.len", spec.token_map.as_ref().and_then(|m| m.len)), ("vocab", spec.vocab)];
        for (field, want) in declared {
            if let Some(want) = want
                && resolved.len() != want as usize
            {
                // Without a map it is the identity on V ids that does not fit: what lacks is the map.
                let mismatch = SpecError::MapLength { field, got: resolved.len(), want: u64::from(want) };
                return Err(if map.is_none() { SpecError::MapMissing } else { mismatch });
            }
        }
        if let Some(map) = &map
            && map.compressed_vocab() != v
        {
            return Err(SpecError::MapVocab { got: map.compressed_vocab(), want: v });
        }
        let raw = resolved.len() as u32;
        let pad = spec.pad_compressed.map(|pad| legal("pad_compressed", i64::from(pad), v)).transpose()?;
        let pad_raw = match spec.pad_raw {
            Some(pad) => Some(resolved[legal("pad_raw", i64::from(pad), raw)? as usize]),
            None => None,
        };
        let filler = match (pad, pad_raw) {
            (Some(declared), Some(mapped)) if declared != mapped => {
                let raw = spec.pad_raw.unwrap_or_default();
                return Err(SpecError::PadMismatch { raw, mapped: mapped as u32, declared: declared as u32 });
            }
            (Some(pad), _) | (None, Some(pad)) => pad,
            (None, None) => return Err(missing("pad_compressed", "take it, or pad_raw from engram_pad_token_id")),
        };
        for &id in &spec.dead_ids {
            resolved[legal("dead_ids", i64::from(id), raw)? as usize] = DEAD;
        }
        Ok(Self { raw, hashed: v, resolved, barrier: DEAD, filler })
    }
}

/// The id as `i32` if it lies in the vocabulary.
fn legal(field: &'static str, id: i64, vocab: u32) -> Result<i32, SpecError> {
    match i32::try_from(id) {
        Ok(small) if (0..i64::from(vocab)).contains(&id) => Ok(small),
        _ => Err(SpecError::IdOutOfRange { field, id, vocab }),
    }
}

fn check_layers(spec: &Spec) -> Result<(), SpecError> {
    let tables = spec.layer_ids.len();
    if let Some(layers) = &spec.deadline_layers {
        derive::length("deadline_layers", layers.len(), tables, "table")?;
    }
    if let Some(rows) = &spec.rows {
        derive::length("rows", rows.len(), tables, "table")?;
    }
    if !spec.tables.is_empty() {
        derive::length("tables", spec.tables.len(), tables, "table")?;
    }
    if let Some(num_layers) = spec.num_layers {
        let deadlines = spec.deadline_layers.iter().flatten().map(|&layer| ("deadline_layers", layer));
        for (field, layer) in spec.layer_ids.iter().map(|&layer| ("layer_ids", layer)).chain(deadlines) {
            if layer >= num_layers {
                return Err(SpecError::LayerBeyondModel { field, layer, num_layers });
            }
        }
    }
    Ok(())
}

/// Refuses fields of the other dialect, and storage figures that nothing could be laid out by.
fn check_fields(spec: &Spec) -> Result<(), SpecError> {
    let foreign = match spec.dialect {
        Dialect::Engram => vec![("eos", spec.eos.is_some())],
        Dialect::QwenPle => vec![
            ("compressed_vocab", spec.compressed_vocab.is_some()),
            ("token_map", spec.token_map.is_some()),
            ("pad_compressed", spec.pad_compressed.is_some()),
            ("pad_raw", spec.pad_raw.is_some()),
            ("dead_ids", !spec.dead_ids.is_empty()),
        ],
    };
    if let Some((field, _)) = foreign.into_iter().find(|(_, present)| *present) {
        return Err(SpecError::NotOfDialect { field, dialect: spec.dialect.name() });
    }
    derive::within("row_divisor", spec.row_divisor.unwrap_or(1), 1, 1 << 32)?;
    derive::within("parts", u64::from(spec.parts.unwrap_or(1)), 1, u64::from(u32::MAX))
}

/// The multipliers to use: derived, or declared if they agree or are trusted.
fn multipliers(spec: &Spec, vocab: u32) -> Result<Vec<Vec<u64>>, SpecError> {
    let derived = derive::multipliers(spec, vocab)?;
    let Some(declared) = &spec.multipliers else { return Ok(derived) };
    derive::length("multipliers", declared.len(), derived.len(), "table")?;
    for ((layer, declared), derived) in spec.layer_ids.iter().copied().zip(declared).zip(&derived) {
        derive::length("multipliers (of a table)", declared.len(), derived.len(), "position of the window")?;
        for (index, (&value, &derived)) in declared.iter().zip(derived).enumerate() {
            if value.is_multiple_of(2) {
                return Err(SpecError::MultiplierEven { layer, index, value });
            }
            // The derived ones satisfy this by their bound; only declared ones can break it.
            let largest_id = u128::from(vocab - 1).max(1);
            if u128::from(value) * largest_id >= 1 << 63 {
                return Err(SpecError::ProductOverflow { layer, index, value, vocab });
            }
            if value != derived && !spec.trust_overrides {
                return Err(SpecError::MultiplierMismatch { layer, index, declared: value, derived });
            }
        }
    }
    Ok(declared.clone())
}

/// The primes to use: derived, or declared if they agree or are trusted.
fn primes(spec: &Spec) -> Result<Vec<Vec<u64>>, SpecError> {
    let derived = derive::primes(spec)?;
    let Some(declared) = &spec.primes else { return Ok(derived) };
    derive::length("primes", declared.len(), derived.len(), "table")?;
    let mut taken = std::collections::HashSet::new();
    for ((layer, declared), derived) in spec.layer_ids.iter().copied().zip(declared).zip(&derived) {
        derive::length("primes (of a table)", declared.len(), derived.len(), "column")?;
        for (column, (&value, &derived)) in declared.iter().zip(derived).enumerate() {
            // Derived primes lie a little above their base, so twice the greatest base is ample.
            derive::within("primes", value, derive::BASE_MIN, 2 * crate::BASE_MAX)?;
            if !is_prime(value) {
                return Err(SpecError::NotPrime { layer, column, value });
            }
            if !taken.insert(value) {
                return Err(SpecError::PrimeRepeated { layer, column, value });
            }
            if value != derived && !spec.trust_overrides {
                return Err(SpecError::PrimeMismatch { layer, column, declared: value, derived });
            }
        }
    }
    Ok(declared.clone())
}
