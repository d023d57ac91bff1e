//! Tiny checkpoints written by hand: an independent writer, so that tests can plant any fault.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use engram_store::{
    LayerConstants, ModelConfig, Opened, PlainReader, QwenConfig, RowFormat, SparseSample, StoreError, SynthLayout,
    SynthPlan, SynthTable, V41Config, open, self_proof,
};
use serde_json::{Map, Value, json};

/// A tensor of a test file.
#[derive(Clone)]
pub(crate) struct T {
    pub(crate) name: String,
    pub(crate) dtype: String,
    pub(crate) shape: Vec<u64>,
    pub(crate) data: Vec<u8>,
}

pub(crate) fn t(name: impl Into<String>, dtype: &str, shape: &[u64], data: Vec<u8>) -> T {
    T { name: name.into(), dtype: dtype.into(), shape: shape.into(), data }
}

/// Files by name.
pub(crate) type Files = BTreeMap<String, Vec<T>>;

/// The bytes of a safetensors file, and where its data begin. `pad` spaces lengthen the header.
pub(crate) fn safetensors(tensors: &[T], pad: usize) -> (Vec<u8>, usize) {
    let mut header = Map::new();
    let mut at = 0;
    for tensor in tensors {
        let end = at + tensor.data.len();
        let entry = json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [at, end]});
        header.insert(tensor.name.clone(), entry);
        at = end;
    }
    let text = format!("{}{}", Value::Object(header), " ".repeat(pad));
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    let start = bytes.len();
    for tensor in tensors {
        bytes.extend(&tensor.data);
    }
    (bytes, start)
}

/// Writes files, an index that names all their tensors, and a configuration.
pub(crate) fn write(dir: &Path, files: &Files, config: Option<&Value>) {
    let mut map = Map::new();
    for (name, tensors) in files {
        fs::write(dir.join(name), safetensors(tensors, 0).0).unwrap();
        for tensor in tensors {
            map.insert(tensor.name.clone(), name.clone().into());
        }
    }
    write_index(dir, map);
    if let Some(config) = config {
        fs::write(dir.join("config.json"), config.to_string()).unwrap();
    }
}

pub(crate) fn write_index(dir: &Path, map: Map<String, Value>) {
    let index = json!({"metadata": {"total_size": 0}, "weight_map": map});
    fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
}

pub(crate) const PLE: &str = "model.language_model.layers.1.ple.ple_embedding.";
pub(crate) const SCALE_BITS: u16 = 0x3951;
pub(crate) const PRIMES: [u64; 16] = [3, 5, 7, 2, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 6];
pub(crate) const ROWS: u64 = 80;

pub(crate) fn shard(n: usize) -> String {
    format!("{PLE}ngram_embedding.shard_{n}.weight")
}

fn i64s(values: impl IntoIterator<Item = u64>) -> Vec<u8> {
    values.into_iter().flat_map(u64::to_le_bytes).collect()
}

pub(crate) fn offsets() -> Vec<u64> {
    PRIMES.iter().scan(0, |sum, p| Some(std::mem::replace(sum, *sum + p))).collect()
}

pub(crate) fn qwen_config(parts: u32, values: u32) -> QwenConfig {
    QwenConfig {
        vocab_size: 512,
        num_hidden_layers: 4,
        ple_layer_ids: vec![2],
        ngram_size: 3,
        heads_per_ngram: 8,
        ngram_vocab_size_base: 3,
        make_ngram_vocab_size_divisible_by: 8,
        split_ngram_parts: parts,
        ple_embed_dim: values * 16,
        eos_token_id: 500,
        seed: None,
        image_token_id: Some(510),
        video_token_id: None,
        ple_embedding_dtype: None,
    }
}

pub(crate) fn v41_config(rows: &[u64]) -> V41Config {
    V41Config {
        vocab_size: 1024,
        num_hidden_layers: 40,
        engram_layer_ids: vec![1, 14],
        engram_num_embeddings: rows.into(),
        engram_max_ngram_size: 4,
        engram_vocab_size: 64,
        engram_n_heads: 8,
        engram_head_dim: 64,
        engram_pad_token_id: 2,
        engram_compressed_vocab_size: 509,
        engram_seed: None,
        image_token_id: Some(1008),
        vision_layers: Some(32),
    }
}

/// Rows `first..first + count` in a format, tag 0.
pub(crate) fn rows(first: u64, count: u64, format: RowFormat) -> Vec<u8> {
    let mut bytes = vec![0; (count * u64::from(format.row_bytes())) as usize];
    for (row, out) in (first..).zip(bytes.chunks_exact_mut(format.row_bytes() as usize)) {
        self_proof::fill_row(0, row, format, out);
    }
    bytes
}

/// A Qwen FP8 table of 80 rows of 10 bytes in 4 shards over 3 files, and its configuration.
pub(crate) fn qwen() -> (Files, Value) {
    let format = RowFormat::qwen_fp8(10, SCALE_BITS);
    let part = |n: usize| t(shard(n), "F8_E4M3", &[20, 10], rows(n as u64 * 20, 20, format));
    let files = Files::from([
        (
            "a.safetensors".into(),
            vec![
                t(format!("{PLE}layer_multipliers"), "I64", &[3], i64s([11, 13, 17])),
                t(format!("{PLE}ngram_embedding.weight_scale"), "BF16", &[1], SCALE_BITS.to_le_bytes().into()),
                part(0),
            ],
        ),
        ("b.safetensors".into(), vec![part(2), part(1)]),
        (
            "c.safetensors".into(),
            vec![
                t(format!("{PLE}ngram_heads_offsets"), "I64", &[16], i64s(offsets())),
                t(format!("{PLE}ngram_heads_vocab_sizes"), "I64", &[16], i64s(PRIMES)),
                part(3),
            ],
        ),
    ]);
    (files, ModelConfig::QwenPle(qwen_config(4, 10)).to_json())
}

/// V4.1 tables of 30 and 40 rows of 64 + 2 bytes, one file each, and a file that holds no table.
pub(crate) fn v41() -> (Files, Value) {
    let format = RowFormat::v41(64);
    let table = |layer: u64, count: u64| {
        let (mut values, mut scales) = (Vec::new(), Vec::new());
        for row in 0..count {
            let mut bytes = [0; 66];
            self_proof::fill_row(layer, row, format, &mut bytes);
            values.extend(&bytes[..64]);
            scales.extend(&bytes[64..]);
        }
        let p = format!("layers.{layer}.engram.");
        vec![
            t(format!("{p}q_weight"), "BF16", &[3], vec![0; 6]),
            t(format!("{p}embed.weight"), "F8_E4M3", &[count, 64], values),
            t(format!("{p}embed.scale"), "F8_E8M0", &[count, 2], scales),
        ]
    };
    let files = Files::from([
        ("model-00001-of-00003.safetensors".into(), vec![t("head.weight", "F32", &[1], vec![0; 4])]),
        ("model-00002-of-00003.safetensors".into(), table(1, 30)),
        ("model-00003-of-00003.safetensors".into(), table(14, 40)),
    ]);
    (files, ModelConfig::DeepseekV41(v41_config(&[30, 40])).to_json())
}

/// The models whose tables are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Model {
    QwenFp8,
    QwenBf16,
    V41,
}

pub(crate) const MODELS: [Model; 3] = [Model::QwenFp8, Model::QwenBf16, Model::V41];
pub(crate) const LAYOUTS: [SynthLayout; 3] = [SynthLayout::Packed, SynthLayout::Shards, SynthLayout::Safetensors];

/// A plan at tiny scale.
pub(crate) fn plan(model: Model, layout: SynthLayout, out: &Path) -> SynthPlan {
    let qwen = |row_format| SynthPlan {
        out: out.into(),
        layout,
        tables: vec![SynthTable { layer: 1, rows: 78, padded_rows: ROWS, tag: 0 }],
        row_format,
        shards: 7,
        config: Some(ModelConfig::QwenPle(qwen_config(16, 10))),
        constants: vec![LayerConstants {
            layer: 1,
            multipliers: vec![11, 13, 17],
            offsets: offsets(),
            primes: PRIMES.into(),
        }],
        spec_json: Some(r#"{"dialect":"qwen-ple"}"#.into()),
        sparse: None,
    };
    match model {
        Model::QwenFp8 => qwen(RowFormat::qwen_fp8(10, SCALE_BITS)),
        Model::QwenBf16 => qwen(RowFormat::qwen_bf16(10)),
        Model::V41 => SynthPlan {
            tables: vec![
                SynthTable { layer: 1, rows: 30, padded_rows: 30, tag: 1 },
                SynthTable { layer: 14, rows: 40, padded_rows: 40, tag: 14 },
            ],
            row_format: RowFormat::v41(64),
            config: Some(ModelConfig::DeepseekV41(v41_config(&[30, 40]))),
            constants: Vec::new(),
            ..qwen(RowFormat::v41(64))
        },
    }
}

/// The same plan, sparse, with the given rows of each table.
pub(crate) fn sparse(plan: SynthPlan, rows: Vec<Vec<u64>>) -> SynthPlan {
    SynthPlan { sparse: Some(SparseSample { rows }), ..plan }
}

/// Writes a checkpoint into a new folder and opens it.
pub(crate) fn with_dir(files: &Files, config: Option<&Value>) -> (tempfile::TempDir, Result<Opened, StoreError>) {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), files, config);
    let opened = open(dir.path(), None);
    (dir, opened)
}

/// The error of a changed Qwen checkpoint.
pub(crate) fn qwen_error(change: impl FnOnce(&mut Files, &mut Value)) -> StoreError {
    let (mut files, mut config) = qwen();
    change(&mut files, &mut config);
    let (_dir, opened) = with_dir(&files, Some(&config));
    opened.unwrap_err()
}

pub(crate) fn v41_error(change: impl FnOnce(&mut Files, &mut Value)) -> StoreError {
    let (mut files, mut config) = v41();
    change(&mut files, &mut config);
    let (_dir, opened) = with_dir(&files, Some(&config));
    opened.unwrap_err()
}

/// The message names all of these.
pub(crate) fn says(error: &StoreError, words: &[&str]) {
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "no {word:?} in: {text}");
    }
}

pub(crate) fn tensor<'a>(files: &'a mut Files, name: &str) -> &'a mut T {
    files.values_mut().flatten().find(|t| t.name == name).unwrap()
}

pub(crate) fn remove(files: &mut Files, name: &str) {
    files.values_mut().for_each(|f| f.retain(|t| t.name != name));
}

/// Every row is read and proves itself.
pub(crate) fn check_rows(opened: &Opened, tags: &[u64]) {
    let reader = PlainReader::open(opened).unwrap();
    for (index, (table, &tag)) in opened.tables.iter().zip(tags).enumerate() {
        let mut bytes = vec![0; table.row_bytes() as usize];
        for row in 0..table.rows() {
            reader.read_row(index, row, &mut bytes).unwrap();
            assert!(self_proof::check_row(tag, row, opened.row_format, &bytes), "table {index} row {row}");
        }
    }
}
