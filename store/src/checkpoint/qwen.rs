//! Qwen PLE tables in their checkpoint: one tensor per shard, spread over files in any order and at any offset.
//!
//! `<prefix>ple_embedding.ngram_embedding.shard_N.weight` BF16 or F8_E4M3 `[rows of the shard, width]`; FP8 has one scale for the whole
//! table. The number of a shard is parsed as an integer, because names sort as text. A table that is one tensor
//! (`ngram_embedding.weight`) is a table of one shard. The constants stand beside it: `layer_multipliers`, `ngram_heads_offsets`,
//! `ngram_heads_vocab_sizes`, I64.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{Checkpoint, Parts, Tensor, known_dtype, layer_of};
use crate::config::QwenConfig;
use crate::error::StoreError;
use crate::files::FileSet;
use crate::format::{RowFormat, RowScale, ValueType};
use crate::opened::LayerConstants;
use crate::table::{Part, Shard, Table};

const MARK: &str = "ple_embedding.ngram_embedding.";

/// Spellings of the scale of a whole table; all of them multiply.
const SCALES: [&str; 3] = ["weight_scale", "scale_weight", "weight_scale_inv"];

/// Longest constants tensor that is read, bytes.
const CONSTANT_BYTES_MAX: u64 = 1 << 20;

/// Most shards of a table.
const SHARDS_MAX: u64 = 1 << 16;

/// Prefix (up to and with [`MARK`]), shard number and what follows it.
fn parse(name: &str) -> Option<(&str, Option<u64>, &str)> {
    let at = name.find(MARK)? + MARK.len();
    let (prefix, rest) = name.split_at(at);
    match rest.strip_prefix("shard_") {
        Some(rest) => {
            let (number, suffix) = rest.split_once('.')?;
            let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
            digits.then(|| number.parse().ok()).flatten().map(|n| (prefix, Some(n), suffix))
        }
        None => Some((prefix, None, rest)),
    }
}

pub(super) fn present(checkpoint: &Checkpoint) -> bool {
    checkpoint.names().any(|n| parse(n).is_some())
}

/// The tensors of one table, by prefix.
#[derive(Default)]
struct Names {
    shards: BTreeMap<u64, String>,
    whole: Option<String>,
    scales: Vec<String>,
    /// Tensors that only quantised packs have, with the name of the format.
    foreign: Option<(String, &'static str)>,
}

pub(super) fn open(
    checkpoint: &mut Checkpoint,
    config: Option<&QwenConfig>,
    place: &Path,
    files: &mut FileSet,
) -> Result<Parts, StoreError> {
    let mut by_prefix: BTreeMap<String, Names> = BTreeMap::new();
    for name in checkpoint.names() {
        let Some((prefix, number, suffix)) = parse(name) else { continue };
        let names = by_prefix.entry(prefix.to_owned()).or_default();
        match (number, suffix) {
            (Some(number), "weight") => {
                if let Some(first) = names.shards.insert(number, name.to_owned()) {
                    let (path, second) = (checkpoint.place().into(), name.to_owned());
                    return Err(StoreError::ShardTwice { path, number, first, second });
                }
            }
            (_, "weight_packed") => names.foreign = Some((name.to_owned(), "INT6_G32")),
            (_, "trellis") => names.foreign = Some((name.to_owned(), "EXL3")),
            (Some(_), "weight_scale") | (None, "weight_scale_2") => {
                names.foreign.get_or_insert((name.to_owned(), "NVFP4"));
            }
            (None, "weight") => names.whole = Some(name.to_owned()),
            (None, suffix) if SCALES.contains(&suffix) => names.scales.push(name.to_owned()),
            _ => {}
        }
    }
    let tables = in_order(checkpoint, by_prefix, config, place)?;
    let mut parts =
        Parts { tables: Vec::new(), constants: Vec::new(), format: RowFormat::opaque(0), notes: Vec::new() };
    for (layer, prefix, names) in tables {
        let (table, format, constants) =
            open_table(checkpoint, layer, &prefix, names, config, files, &mut parts.notes)?;
        if !parts.tables.is_empty() && parts.format != format {
            return Err(StoreError::Differ {
                path: checkpoint.place().into(),
                first: format!("that of layer {} has {}", parts.tables[0].layer(), parts.format),
                second: format!("the table of layer {layer} has {format}"),
            });
        }
        parts.format = format;
        parts.tables.push(table);
        parts.constants.push(constants);
    }
    Ok(parts)
}

/// Gives each table its layer and puts them in the order of the configuration.
fn in_order(
    checkpoint: &Checkpoint,
    by_prefix: BTreeMap<String, Names>,
    config: Option<&QwenConfig>,
    place: &Path,
) -> Result<Vec<(u16, String, Names)>, StoreError> {
    let wrong = |why: String| StoreError::Config { path: place.into(), key: "ple_layer_ids".into(), why };
    let layers = config.map(QwenConfig::layers);
    let mut tables: Vec<(u16, String, Names)> = Vec::new();
    let alone = by_prefix.len() == 1;
    for (prefix, names) in by_prefix {
        let only = layers.as_ref().filter(|l| alone && l.len() == 1).map(|l| l[0]);
        let layer = layer_of(&prefix).or(only).ok_or_else(|| {
            wrong(format!("does not tell the layer of {prefix}*, whose name holds no layers.N either"))
        })?;
        if let Some((_, other, _)) = tables.iter().find(|(l, ..)| *l == layer) {
            let (first, second, path) = (format!("{other}*"), format!("{prefix}*"), checkpoint.place().into());
            return Err(StoreError::TableTwice { path, layer, first, second });
        }
        tables.push((layer, prefix, names));
    }
    let Some(layers) = layers else {
        tables.sort_by_key(|(layer, ..)| *layer);
        return Ok(tables);
    };
    if let Some((layer, ..)) = tables.iter().find(|(l, ..)| !layers.contains(l)) {
        return Err(wrong(format!(
            "(one-based) does not list decoder layer {layer}, for which the checkpoint holds a table"
        )));
    }
    if let Some(layer) = layers.iter().find(|&l| !tables.iter().any(|(t, ..)| t == l)) {
        return Err(super::no_tensor(checkpoint, &format!("...layers.{layer}.ple.{MARK}shard_0.weight")));
    }
    tables.sort_by_key(|(layer, ..)| layers.iter().position(|l| l == layer));
    Ok(tables)
}

fn open_table(
    checkpoint: &mut Checkpoint,
    layer: u16,
    prefix: &str,
    mut names: Names,
    config: Option<&QwenConfig>,
    files: &mut FileSet,
    notes: &mut Vec<String>,
) -> Result<(Table, RowFormat, LayerConstants), StoreError> {
    let base = prefix.strip_suffix("ngram_embedding.").unwrap_or(prefix);
    let constant_names =
        ["layer_multipliers", "ngram_heads_offsets", "ngram_heads_vocab_sizes"].map(|n| format!("{base}{n}"));
    let all = names.shards.values().chain(&names.whole).chain(&names.scales).chain(&constant_names);
    checkpoint.need_files(all.map(String::as_str))?;
    if let Some((tensor, format)) = &names.foreign {
        let first = names.shards.values().chain(&names.whole).next().cloned();
        let u8 = first.is_none_or(|first| checkpoint.tensor(&first).is_ok_and(|(t, _)| t.dtype.as_str() == "U8"));
        let format = if *format == "NVFP4" && !u8 { "FP8 with a scale for each shard" } else { format };
        return Err(unsupported(checkpoint.file_of(tensor), format));
    }
    let constants = read_constants(checkpoint, layer, &constant_names)?;
    if let Some(whole) = names.whole.take() {
        if let Some((number, shard)) = names.shards.first_key_value() {
            let (path, number, first) = (checkpoint.place().into(), *number, shard.clone());
            return Err(StoreError::ShardTwice { path, number, first, second: whole });
        }
        names.shards.insert(0, whole);
    } else if let Some(config) = config {
        complete(checkpoint, prefix, &names, config.split_ngram_parts.into(), padded_rows(&constants, Some(config)))?;
    }
    let last = names.shards.last_key_value().map_or(0, |(n, _)| *n);
    complete(checkpoint, prefix, &names, last.saturating_add(1), None)?;

    let mut shards: Vec<(String, Tensor, PathBuf)> = Vec::new();
    for name in names.shards.into_values() {
        let (tensor, path) = checkpoint.tensor(&name)?;
        known_dtype(&name, &tensor, &path)?;
        shards.push((name, tensor, path));
    }
    let (value, width) = shard_type(&shards, config)?;
    // Trailing shards without rows occur when the rows do not fill all parts.
    while shards.len() > 1 && shards.last().is_some_and(|(_, t, _)| t.shape[0] == 0) {
        shards.pop();
    }
    let per_shard = shards[0].1.shape[0];
    let mut list = Vec::new();
    let count = shards.len();
    for (index, (_, tensor, path)) in shards.iter().enumerate() {
        let rows = tensor.shape[0];
        if rows > per_shard || rows == 0 || (rows != per_shard && index + 1 < count) {
            return Err(differ(&shards[0], &shards[index]));
        }
        list.push(Shard { file: files.add(path)?, offset: tensor.offset, rows });
    }
    let rows = list.iter().fold(0u64, |sum, s| sum.saturating_add(s.rows));
    let path = shards[0].2.clone();
    if let Some(expected) = padded_rows(&constants, config) {
        if rows != expected {
            let by = "the sum of ngram_heads_vocab_sizes, padded as the configuration says";
            return Err(StoreError::RowsWrong { path, layer, got: rows, expected, by });
        }
    } else if let Some(least) = constants.rows_addressed().filter(|&least| rows < least) {
        let by = "the sum of ngram_heads_vocab_sizes, at least";
        return Err(StoreError::RowsWrong { path, layer, got: rows, expected: least, by });
    }
    let scale = read_scale(checkpoint, prefix, value, &names.scales, notes)?;
    let bytes = width * if value == ValueType::Bf16 { 2 } else { 1 };
    let format = RowFormat { value, value_bytes: bytes, scale };
    let part = Part { bytes, stride: bytes.into(), rows_per_shard: per_shard, shards: list };
    Ok((Table::new(layer, rows, vec![part], files.as_slice())?, format, constants))
}

/// Refuses missing shard numbers below `expected` (fewer are right if they hold all `padded` rows; that is checked by the caller).
fn complete(
    checkpoint: &mut Checkpoint,
    prefix: &str,
    names: &Names,
    expected: u64,
    padded: Option<u64>,
) -> Result<(), StoreError> {
    let path = checkpoint.place().to_path_buf();
    let what = format!("{prefix}shard_*");
    if expected > SHARDS_MAX {
        return Err(StoreError::Geometry {
            path,
            why: format!("{what}: {expected} shards, at most {SHARDS_MAX} are possible"),
        });
    }
    let found = names.shards.len() as u64;
    let missing: Vec<String> = (0..expected).filter(|n| !names.shards.contains_key(n)).map(|n| n.to_string()).collect();
    if let (Some((&last, _)), true) = (names.shards.last_key_value(), found > 0)
        && last >= expected
    {
        let why = format!("{what}: shard {last} exists, but split_ngram_parts is {expected}");
        return Err(StoreError::Geometry { path, why });
    }
    if missing.is_empty() {
        return Ok(());
    }
    // A table too small for its parts leaves the last ones out; only full coverage of the rows tells that from a loss.
    let contiguous = names.shards.keys().copied().eq(0..found);
    if let (true, Some(padded), Some(first)) = (contiguous, padded, names.shards.get(&0)) {
        let per_shard = checkpoint.tensor(&first.clone())?.0.shape.first().copied().unwrap_or(0);
        if per_shard == padded.div_ceil(expected) && padded.div_ceil(per_shard.max(1)) == found {
            return Ok(());
        }
    }
    let mut text = missing.iter().take(8).cloned().collect::<Vec<_>>().join(", ");
    if missing.len() > 8 {
        text.push_str(&format!(" and {} more", missing.len() - 8));
    }
    Err(StoreError::ShardsMissing { path, what, found, expected, missing: text })
}

/// Type of the values and width of all shards, which must agree.
fn shard_type(
    shards: &[(String, Tensor, PathBuf)],
    config: Option<&QwenConfig>,
) -> Result<(ValueType, u32), StoreError> {
    let (name0, first, path0) = &shards[0];
    for other @ (_, tensor, _) in &shards[1..] {
        if tensor.dtype != first.dtype || tensor.shape.get(1..) != first.shape.get(1..) {
            return Err(differ(&shards[0], other));
        }
    }
    let wanted = config.and_then(QwenConfig::row_values);
    let value = match first.dtype.as_str() {
        "BF16" => ValueType::Bf16,
        "F8_E4M3" => ValueType::F8E4m3,
        "U8" => {
            let width = first.shape.get(1).copied().unwrap_or(0);
            let nf4 = wanted.is_some_and(|w| width > u64::from(w / 2));
            return Err(unsupported(path0, if nf4 { "NF4" } else { "NVFP4" }));
        }
        other => return Err(unsupported(path0, other)),
    };
    match *first.shape.as_slice() {
        [rows, width] if rows > 0 && (1..=1 << 20).contains(&width) && wanted.is_none_or(|w| u64::from(w) == width) => {
            Ok((value, width as u32))
        }
        _ => Err(StoreError::TensorShape {
            path: path0.clone(),
            tensor: name0.clone(),
            got: first.describe(),
            expected: format!("{} [rows, {}]", first.dtype, wanted.map_or("width".into(), |w| w.to_string())),
        }),
    }
}

/// Two shards that must agree and do not.
fn differ((name, tensor, _): &(String, Tensor, PathBuf), other: &(String, Tensor, PathBuf)) -> StoreError {
    let says = |name: &str, tensor: &Tensor| format!("{name} is {}", tensor.describe());
    StoreError::Differ { path: other.2.clone(), first: says(name, tensor), second: says(&other.0, &other.1) }
}

fn unsupported(path: &Path, format: &str) -> StoreError {
    StoreError::Unsupported {
        path: path.into(),
        what: format!("a PLE table stored as {format}"),
        remedy: "use the BF16 or FP8 checkpoint of the model",
    }
}

/// Rows with their padding, if constants and configuration tell.
fn padded_rows(constants: &LayerConstants, config: Option<&QwenConfig>) -> Option<u64> {
    let divisor = config?.make_ngram_vocab_size_divisible_by;
    constants.rows_addressed()?.checked_next_multiple_of(divisor)
}

/// The three constants tensors; those that the checkpoint lacks stay empty.
fn read_constants(checkpoint: &mut Checkpoint, layer: u16, names: &[String; 3]) -> Result<LayerConstants, StoreError> {
    let mut lists = [Vec::new(), Vec::new(), Vec::new()];
    let mut place = PathBuf::new();
    for (name, list) in names.iter().zip(&mut lists) {
        if !checkpoint.has(name) {
            continue;
        }
        let (tensor, path, bytes) = checkpoint.read(name, CONSTANT_BYTES_MAX)?;
        if tensor.dtype.as_str() != "I64" || tensor.shape.len() != 1 || bytes.is_empty() {
            let (got, expected) = (tensor.describe(), "I64 [n]".into());
            return Err(StoreError::TensorShape { path, tensor: name.clone(), got, expected });
        }
        for (index, chunk) in bytes.as_chunks::<8>().0.iter().enumerate() {
            let number = i64::from_le_bytes(*chunk);
            let number = u64::try_from(number).map_err(|_| StoreError::Constants {
                path: path.clone(),
                tensor: name.clone(),
                why: format!("holds {number} at position {index}; constants are not negative"),
            })?;
            list.push(number);
        }
        place = path;
    }
    let [multipliers, offsets, primes] = lists;
    let constants = LayerConstants { layer, multipliers, offsets, primes };
    if let Some(why) = constants.inconsistency() {
        return Err(StoreError::Constants { path: place, tensor: names[1].clone(), why });
    }
    Ok(constants)
}

/// The scale of the whole table: required for FP8, refused for BF16.
fn read_scale(
    checkpoint: &mut Checkpoint,
    prefix: &str,
    value: ValueType,
    names: &[String],
    notes: &mut Vec<String>,
) -> Result<RowScale, StoreError> {
    let bad = |path: &Path, tensor: &str, why: &str| StoreError::ScaleBad {
        path: path.into(),
        tensor: tensor.into(),
        why: why.into(),
    };
    let Some(name) = names.first() else {
        if value == ValueType::Bf16 {
            return Ok(RowScale::None);
        }
        let (path, tensor) = (checkpoint.place().into(), format!("{prefix}shard_*.weight"));
        let tried = SCALES.map(|s| format!("{prefix}{s}")).join(", ");
        return Err(StoreError::ScaleMissing { path, tensor, tried });
    };
    if value == ValueType::Bf16 {
        let why = "belongs to an FP8 table, but the shards are BF16: the checkpoint is mixed from two";
        return Err(bad(checkpoint.file_of(name), name, why));
    }
    if let Some(second) = names.get(1) {
        return Err(bad(checkpoint.file_of(second), second, &format!("stands beside {name}; one of them is wrong")));
    }
    let (tensor, path, bytes) = checkpoint.read(name, 64)?;
    known_dtype(name, &tensor, &path)?;
    if tensor.shape.iter().product::<u64>() != 1 {
        let (got, expected) = (tensor.describe(), "BF16 [1]".into());
        return Err(StoreError::TensorShape { path, tensor: name.clone(), got, expected });
    }
    let bits = match (tensor.dtype.as_str(), bytes.as_slice()) {
        ("BF16", &[a, b]) => u16::from_le_bytes([a, b]),
        ("F32", &[a, b, c, d]) => {
            let wide = f32::from_le_bytes([a, b, c, d]);
            let bits = crate::decode::bf16_from_f32(wide);
            if crate::decode::f32_from_bf16(bits) != wide {
                notes.push(format!("{name} is F32 {wide}, rounded to BF16 as the reference does"));
            }
            bits
        }
        _ => {
            let (got, expected) = (tensor.describe(), "BF16 [1]".into());
            return Err(StoreError::TensorShape { path, tensor: name.clone(), got, expected });
        }
    };
    let scale = crate::decode::f32_from_bf16(bits);
    if !(scale.is_finite() && scale > 0.0) {
        return Err(bad(&path, name, &format!("is {scale}; a scale is positive and finite")));
    }
    if !name.ends_with(".weight_scale") {
        notes.push(format!("the scale is spelled {name}; it multiplies, like weight_scale"));
    }
    Ok(RowScale::GlobalBf16(bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_as_numbers() {
        let p = "model.language_model.layers.1.ple.ple_embedding.ngram_embedding.";
        assert_eq!(parse(&format!("{p}shard_007.weight")), Some((p, Some(7), "weight")));
        assert_eq!(parse(&format!("{p}shard_100.weight_packed")), Some((p, Some(100), "weight_packed")));
        assert_eq!(parse(&format!("{p}weight_scale")), Some((p, None, "weight_scale")));
        assert_eq!(parse(&format!("{p}shard_x.weight")), None);
        assert_eq!(parse(&format!("{p}shard_.weight")), None);
        assert_eq!(parse(&format!("{p}shard_99999999999999999999.weight")), None);
        assert_eq!(parse("model.ngram_embeddings.embedders.0.weight"), None);
    }
}
