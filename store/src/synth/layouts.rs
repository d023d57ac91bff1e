//! The files of each layout.
//!
//! Checkpoints are written as the real ones lie: Qwen's first file holds small tensors, then shards 0 and 1, so that data begin at odd
//! offsets; the next ones four shards each; the last one small tensors, two shards and another tensor behind them. V4.1 has one file per
//! table, small tensors first, then values, then scales. Stand-ins for tensors that are not tables are a few zeros.

use serde_json::{Map, Value, json};

use super::pieces::{FilePlan, Piece};
use super::{SynthLayout, SynthPlan, SynthTable};
use crate::config::{ModelConfig, QwenConfig};
use crate::error::StoreError;
use crate::format::{RowFormat, RowScale, ValueType};
use crate::manifest::{MAGIC, MANIFEST, Manifest, ManifestFile, ManifestLayout, ManifestTable, VERSION};
use crate::opened::LayerConstants;
use crate::raw::RAW_MANIFEST;

/// Most shards of a table.
const SHARDS_MAX: u64 = 1 << 16;

/// Shards in each file between the first and the last of a Qwen checkpoint.
const SHARDS_PER_FILE: usize = 4;

/// All files of the finished table, the manifest last.
pub(super) fn files(plan: &SynthPlan) -> Result<Vec<FilePlan>, StoreError> {
    plan.check()?;
    let mut manifest = Manifest {
        magic: MAGIC.into(),
        version: VERSION,
        reader_min: VERSION,
        layout: ManifestLayout::Packed,
        row_format: plan.row_format,
        tables: Vec::new(),
        self_proof: true,
        config: None,
        constants: plan.constants.clone(),
        spec: plan.spec_json.clone(),
    };
    let samples = plan.samples()?;
    for (index, table) in plan.tables.iter().enumerate() {
        manifest.tables.push(ManifestTable {
            layer: table.layer,
            rows: table.padded_rows,
            tag: table.tag,
            sparse_rows: samples.as_ref().map(|s| s[index].clone()),
            folder: None,
            rows_per_file: None,
            files: Vec::new(),
        });
    }
    let mut files = match plan.layout {
        SynthLayout::Packed => packed(plan, &mut manifest),
        SynthLayout::Shards => shards(plan, &mut manifest)?,
        SynthLayout::Safetensors => checkpoint(plan, &mut manifest)?,
    };
    if plan.layout != SynthLayout::Safetensors {
        manifest.config = plan.config.as_ref().map(ModelConfig::to_json);
    }
    files.push(FilePlan::literal(MANIFEST, pretty(&json!(manifest))));
    Ok(files)
}

fn pretty(value: &Value) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}

/// Whole rows of a table.
fn whole_rows(table: usize, first: u64, count: u64, format: RowFormat) -> Piece {
    Piece::Rows { table, first, count, start: 0, width: format.row_bytes() }
}

fn packed(plan: &SynthPlan, manifest: &mut Manifest) -> Vec<FilePlan> {
    let mut files = Vec::new();
    for (index, (table, entry)) in plan.tables.iter().zip(&mut manifest.tables).enumerate() {
        let pieces = vec![whole_rows(index, 0, table.padded_rows, plan.row_format)];
        let file = FilePlan { name: format!("layer_{}.bin", table.layer), pieces };
        entry.rows_per_file = Some(table.padded_rows);
        entry.files = vec![ManifestFile { name: file.name.clone(), len: file.len() }];
        files.push(file);
    }
    files
}

/// Rows of each shard, the last one short where the rows do not divide.
fn cut(rows: u64, per_shard: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..rows.div_ceil(per_shard)).map(move |i| (i * per_shard, per_shard.min(rows - i * per_shard)))
}

fn shards(plan: &SynthPlan, manifest: &mut Manifest) -> Result<Vec<FilePlan>, StoreError> {
    if plan.shards == 0 || u64::from(plan.shards) > SHARDS_MAX {
        return Err(plan.wrong(format!("{} shards; 1 to {SHARDS_MAX} are possible", plan.shards)));
    }
    manifest.layout = ManifestLayout::Shards;
    let elem = if plan.row_format.value == ValueType::Bf16 { 2 } else { 1 };
    let row_bytes = plan.row_format.row_bytes();
    let mut files = Vec::new();
    for (index, (table, entry)) in plan.tables.iter().zip(&mut manifest.tables).enumerate() {
        let folder = (plan.tables.len() > 1).then(|| format!("layer_{}", table.layer));
        let below = folder.as_ref().map_or(String::new(), |f| format!("{f}/"));
        let per_shard = table.padded_rows.div_ceil(plan.shards.into());
        let mut count = 0u64;
        for (first, rows) in cut(table.padded_rows, per_shard) {
            let pieces = vec![whole_rows(index, first, rows, plan.row_format)];
            files.push(FilePlan { name: format!("{below}shard_{count:03}.bin"), pieces });
            count += 1;
        }
        let layout = json!({
            "shards": count, "rows_per_shard": per_shard, "width": row_bytes / elem, "elem_bytes": elem,
            "total_rows": table.padded_rows,
        });
        let raw = json!({ "layout": layout, "layer": table.layer, "source": "engram-sched synth" });
        files.push(FilePlan::literal(format!("{below}{RAW_MANIFEST}"), pretty(&raw)));
        entry.folder = folder;
    }
    Ok(files)
}

/// A tensor to write: name, type, shape, content.
struct TensorPlan {
    name: String,
    dtype: &'static str,
    shape: Vec<u64>,
    pieces: Vec<Piece>,
}

impl TensorPlan {
    fn new(name: String, dtype: &'static str, shape: &[u64], piece: Piece) -> Self {
        Self { name, dtype, shape: shape.into(), pieces: vec![piece] }
    }

    /// A stand-in of zeros; `bytes` an element.
    fn stand_in(name: String, dtype: &'static str, shape: &[u64], bytes: u64) -> Self {
        Self::new(name, dtype, shape, Piece::Zeros(shape.iter().product::<u64>() * bytes))
    }

    fn i64(name: String, values: &[u64]) -> Self {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self::new(name, "I64", &[values.len() as u64], Piece::Literal(bytes))
    }
}

/// A safetensors file: header padded to 8 bytes with spaces, tensors back to back in the given order.
fn safetensors(name: String, tensors: Vec<TensorPlan>, index: &mut Map<String, Value>) -> FilePlan {
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({ "format": "pt" }));
    let mut pieces = Vec::new();
    let mut at = 0;
    for tensor in tensors {
        let data = FilePlan { name: String::new(), pieces: tensor.pieces };
        let offsets = [at, at + data.len()];
        at = offsets[1];
        header.insert(
            tensor.name.clone(),
            json!({ "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": offsets }),
        );
        index.insert(tensor.name, name.clone().into());
        pieces.extend(data.pieces);
    }
    let mut json = Value::Object(header).to_string().into_bytes();
    json.resize(json.len().next_multiple_of(8), b' ');
    let start = [&(json.len() as u64).to_le_bytes()[..], &json].concat();
    pieces.insert(0, Piece::Literal(start));
    FilePlan { name, pieces }
}

fn checkpoint(plan: &SynthPlan, manifest: &mut Manifest) -> Result<Vec<FilePlan>, StoreError> {
    manifest.layout = ManifestLayout::Safetensors;
    let config = plan.config.as_ref().ok_or_else(|| plan.wrong("a checkpoint needs a model configuration"))?;
    if !config.layers().iter().copied().eq(plan.tables.iter().map(|t| t.layer)) {
        return Err(plan.wrong("the tables are not those of the layers of the configuration, in that order"));
    }
    let mut groups = Vec::new();
    for (index, table) in plan.tables.iter().enumerate() {
        let constants = plan.constants.get(index);
        groups.extend(match config {
            ModelConfig::QwenPle(config) => qwen_files(plan, index, table, config, constants)?,
            ModelConfig::DeepseekV41(config) => {
                let expected = config.engram_num_embeddings.get(index);
                if expected != Some(&table.padded_rows) {
                    return Err(plan.wrong("rows of a table differ from engram_num_embeddings"));
                }
                vec![v41_file(plan, index, table)?]
            }
        });
    }
    let count = groups.len();
    let mut map = Map::new();
    let mut files: Vec<FilePlan> = groups
        .into_iter()
        .enumerate()
        .map(|(i, tensors)| safetensors(format!("model-{:05}-of-{count:05}.safetensors", i + 1), tensors, &mut map))
        .collect();
    let data: u64 = files.iter().flat_map(|f| f.pieces.get(1..)).flatten().map(Piece::len).sum();
    let index = json!({ "metadata": { "total_size": data }, "weight_map": map });
    files.push(FilePlan::literal("model.safetensors.index.json", pretty(&index)));
    files.push(FilePlan::literal("config.json", pretty(&config.to_json())));
    Ok(files)
}

/// The tensors of the files of one Qwen table.
fn qwen_files(
    plan: &SynthPlan,
    index: usize,
    table: &SynthTable,
    config: &QwenConfig,
    constants: Option<&LayerConstants>,
) -> Result<Vec<Vec<TensorPlan>>, StoreError> {
    let format = plan.row_format;
    let (dtype, width) = match (format.value, format.scale) {
        (ValueType::Bf16, RowScale::None) => ("BF16", format.values()),
        (ValueType::F8E4m3, RowScale::GlobalBf16(_)) => ("F8_E4M3", format.values()),
        _ => return Err(plan.wrong("a Qwen checkpoint has BF16 rows, or FP8 rows with one scale")),
    };
    if config.row_values() != Some(width) {
        return Err(plan.wrong(format!("rows of {width} values, the configuration says {:?}", config.row_values())));
    }
    let parts = u64::from(config.split_ngram_parts);
    let per_shard = table.padded_rows.div_ceil(parts.max(1));
    if parts == 0 || parts > SHARDS_MAX || table.padded_rows.div_ceil(per_shard) != parts {
        return Err(plan.wrong(format!("{} rows do not fill {parts} shards", table.padded_rows)));
    }
    let ple = format!("model.language_model.layers.{}.ple.", table.layer);
    let emb = format!("{ple}ple_embedding.");
    let mut shards = cut(table.padded_rows, per_shard).enumerate().map(|(i, (first, rows))| {
        let name = format!("{emb}ngram_embedding.shard_{i}.weight");
        TensorPlan::new(name, dtype, &[rows, width.into()], whole_rows(index, first, rows, format))
    });
    let mut first = Vec::new();
    let mut last = Vec::new();
    if let Some(c) = constants {
        first.push(TensorPlan::i64(format!("{emb}layer_multipliers"), &c.multipliers));
        last.push(TensorPlan::i64(format!("{emb}ngram_heads_offsets"), &c.offsets));
        last.push(TensorPlan::i64(format!("{emb}ngram_heads_vocab_sizes"), &c.primes));
    }
    first.push(TensorPlan::stand_in(format!("{ple}key_proj.weight"), "BF16", &[3, width.into()], 2));
    first.push(TensorPlan::stand_in(format!("{ple}norm_key.weight"), "BF16", &[5], 2));
    if let RowScale::GlobalBf16(bits) = format.scale {
        let piece = Piece::Literal(bits.to_le_bytes().into());
        first.push(TensorPlan::new(format!("{emb}ngram_embedding.weight_scale"), "BF16", &[1], piece));
    }
    last.push(TensorPlan::stand_in(format!("{ple}conv1d.weight"), "BF16", &[7, 1, 4], 2));

    // 0 and 1 | four each | the last two, as in the released files; fewer where there are fewer.
    let tail = if parts >= 4 { 2 } else { 1 };
    let mut left = parts as usize;
    first.extend(shards.by_ref().take(if left > tail { tail } else { 0 }));
    left -= if left > tail { tail } else { 0 };
    let mut groups = vec![first];
    while left > tail {
        let now = SHARDS_PER_FILE.min(left - tail);
        groups.push(shards.by_ref().take(now).collect());
        left -= now;
    }
    last.extend(shards);
    last.push(TensorPlan::stand_in(format!("{ple}value_proj.weight"), "BF16", &[2, width.into()], 2));
    groups.push(last);
    Ok(groups)
}

/// The tensors of the file of one V4.1 table.
fn v41_file(plan: &SynthPlan, index: usize, table: &SynthTable) -> Result<Vec<TensorPlan>, StoreError> {
    let format = plan.row_format;
    let values = format.value_bytes;
    if (format.value, format.scale) != (ValueType::F8E4m3, RowScale::Ue8m0Per32) || !values.is_multiple_of(32) {
        return Err(plan.wrong("a V4.1 checkpoint has FP8 rows with one scale for every 32 values"));
    }
    let p = format!("layers.{}.engram.", table.layer);
    let (rows, scales) = (table.padded_rows, format.scale_bytes());
    let part = |start, width| Piece::Rows { table: index, first: 0, count: rows, start, width };
    Ok(vec![
        TensorPlan::stand_in(format!("{p}wkv.weight"), "F8_E4M3", &[5, 32], 1),
        TensorPlan::stand_in(format!("{p}wkv.scale"), "F8_E8M0", &[5, 1], 1),
        TensorPlan::stand_in(format!("{p}q_weight"), "BF16", &[4, 5], 2),
        TensorPlan::stand_in(format!("{p}k_weight"), "BF16", &[4, 5], 2),
        TensorPlan::new(format!("{p}embed.weight"), "F8_E4M3", &[rows, values.into()], part(0, values)),
        TensorPlan::new(format!("{p}embed.scale"), "F8_E8M0", &[rows, scales.into()], part(values, scales)),
    ])
}
