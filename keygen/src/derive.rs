//! The constants of the hash, derived from a spec: multipliers, primes.
//!
//! Checkpoints hold them (Qwen) or do not (V4.1). Either way they are computed here and compared with what is declared,
//! because a wrong constant reads plausible rows of the wrong n-grams.
//!
//! Invariants: a function of the spec alone; every size is bounded before anything is computed from it.

use crate::prime::is_prime;
use crate::rng::{Pcg64, SPLITMIX_GAMMA, splitmix64};
use crate::{BASE_MAX, Dialect, HEADS_MAX, ORDERS_MAX, Spec, SpecError, TABLES_MAX, VOCAB_MAX};

/// The least base: the least prime.
pub(crate) const BASE_MIN: u64 = 2;

/// Seeds of neighbouring layers differ by this (`PRIME_1` of the engines).
const LAYER_SEED_STRIDE: u64 = 10_007;

/// The seed that transformers, vLLM and SGLang use where Qwen's config has none.
const QWEN_SEED: u64 = 1234;

/// Refuses a number outside `min..=max` by the name of its field.
pub(crate) fn within(field: &'static str, value: u64, min: u64, max: u64) -> Result<(), SpecError> {
    if (min..=max).contains(&value) { Ok(()) } else { Err(SpecError::Limit { field, value, min, max }) }
}

/// Refuses a list of another length than `want`.
pub(crate) fn length(field: &'static str, got: usize, want: usize, per: &'static str) -> Result<(), SpecError> {
    if got == want { Ok(()) } else { Err(SpecError::Length { field, got, want, per }) }
}

/// Refuses sizes that are out of bounds and lists that do not fit together; what passes can be derived from.
pub(crate) fn shape(spec: &Spec) -> Result<(), SpecError> {
    within("max_ngram", spec.max_ngram as u64, 2, ORDERS_MAX as u64 + 1)?;
    within("heads", spec.heads as u64, 1, HEADS_MAX as u64)?;
    within("layer_ids (their number)", spec.layer_ids.len() as u64, 1, TABLES_MAX as u64)?;
    for &base in &spec.bases {
        within("bases", base, BASE_MIN, BASE_MAX)?;
    }
    if spec.bases.len() != 1 {
        length("bases", spec.bases.len(), spec.max_ngram - 1, "n-gram order (or a single one for all)")?;
    }
    if spec.dialect == Dialect::QwenPle && spec.bases.iter().any(|&base| base != spec.bases[0]) {
        // Its primes run on from order to order; what they would do with two bases is nowhere defined.
        return Err(SpecError::Length { field: "bases", got: spec.bases.len(), want: 1, per: "model of this dialect" });
    }
    for (i, layer) in spec.layer_ids.iter().enumerate() {
        if spec.layer_ids[..i].contains(layer) {
            return Err(SpecError::DuplicateLayer { layer: *layer });
        }
    }
    if let Some(order) = &spec.table_order {
        let sorted = |layers: &[u16]| {
            let mut layers = layers.to_vec();
            layers.sort_unstable();
            layers
        };
        if sorted(order) != sorted(&spec.layer_ids) {
            return Err(SpecError::TableOrder { order: order.clone(), layers: spec.layer_ids.clone() });
        }
    }
    Ok(())
}

/// The place of each table in `table_order`: the table that takes its primes first has 0.
fn ranks(spec: &Spec) -> impl Iterator<Item = usize> {
    let order = spec.table_order.as_ref().unwrap_or(&spec.layer_ids);
    spec.layer_ids.iter().map(|layer| order.iter().position(|l| l == layer).unwrap_or(0))
}

/// The primes of each table, `[tables][orders * heads]`, order-major.
///
/// For each layer in table order and each order, from the order's base upwards, the next primes that no head has taken.
/// For Qwen this is the same as "number 16k+1 to 16k+16 from the base" of the engines, as all its orders have one base.
pub(crate) fn primes(spec: &Spec) -> Result<Vec<Vec<u64>>, SpecError> {
    shape(spec)?;
    let mut by_rank = Vec::with_capacity(spec.layer_ids.len());
    let mut taken = std::collections::HashSet::new();
    // Where the next free prime of a base is at the earliest: all before it are composite or taken. Without this, many
    // tables would test the same numbers again and again.
    let mut next_free = std::collections::HashMap::new();
    for _ in &spec.layer_ids {
        let mut table = Vec::with_capacity(spec.columns());
        for order in 0..spec.max_ngram - 1 {
            let base = spec.bases[if spec.bases.len() == 1 { 0 } else { order }];
            let from = next_free.entry(base).or_insert(base);
            for _ in 0..spec.heads {
                // Ends: there are far more primes above BASE_MAX than heads, and the limits keep the search below 2^64.
                let found = (*from..).find(|&n| is_prime(n) && !taken.contains(&n)).unwrap_or(u64::MAX);
                taken.insert(found);
                table.push(found);
                *from = found + 1;
            }
        }
        by_rank.push(table);
    }
    Ok(ranks(spec).map(|rank| by_rank[rank].clone()).collect())
}

/// The multipliers of each table, `[tables][n]`, index = lookback distance. `vocab` is the size of the hashed
/// vocabulary: V for Engram, the raw vocabulary for Qwen.
///
/// Source: `spec/deepseek-engram.md` 1.3 and `spec/qwen-ple.md` 1.3. With the bound `floor(floor((2^63-1)/vocab)/2)` a
/// multiplier `2r + 1` is at most `(2^63-1)/vocab`, so that no product of a legal id reaches 2^63.
pub(crate) fn multipliers(spec: &Spec, vocab: u32) -> Result<Vec<Vec<u64>>, SpecError> {
    shape(spec)?;
    within("vocab", u64::from(vocab), 1, u64::from(VOCAB_MAX))?;
    let bound = i64::MAX as u64 / u64::from(vocab) / 2;
    let stride = spec.layer_seed_stride.unwrap_or(LAYER_SEED_STRIDE);
    let odd = |r: u64| 2 * r + 1;
    Ok(match spec.dialect {
        Dialect::Engram => {
            let seed = spec.seed.unwrap_or(0);
            let draw = |&layer: &u16| {
                let mut g = Pcg64::new(seed.wrapping_add(stride.wrapping_mul(u64::from(layer))));
                (0..spec.max_ngram).map(|_| odd(g.bounded(bound))).collect()
            };
            spec.layer_ids.iter().map(draw).collect()
        }
        Dialect::QwenPle => {
            let seed = spec.seed.unwrap_or(QWEN_SEED);
            let mix = |ple_index: usize| {
                let base = seed.wrapping_add(stride.wrapping_mul(ple_index as u64));
                let at = |i: usize| splitmix64(base.wrapping_add(SPLITMIX_GAMMA.wrapping_mul(i as u64 + 1)));
                (0..spec.max_ngram).map(|i| odd(at(i) % bound)).collect()
            };
            ranks(spec).map(mix).collect()
        }
    })
}
