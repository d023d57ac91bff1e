//! The model configuration of a checkpoint, as plain data.
//!
//! Only what addressing and layout need is read; nothing is derived here (that is keygen's work). Two shapes exist: Hugging Face's
//! `config.json` with a `text_config`, and DeepSeek's flat `inference/config.json`. A key that is missing and has no documented default
//! is an error that names it; a value out of range is never cut to fit.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::error::StoreError;
use crate::files::read_json;

/// Largest config.json that is read, bytes (real ones are below 100 KB).
pub(crate) const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// The configuration of a model with n-gram tables.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ModelConfig {
    /// Qwen3.8 PLE (`ple_*` keys).
    QwenPle(QwenConfig),
    /// DeepSeek-V4.1 Engram (`engram_*` keys).
    DeepseekV41(V41Config),
}

/// Keys of a Qwen PLE configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QwenConfig {
    /// Raw vocabulary size; enters the derivation of the multipliers.
    pub vocab_size: u64,
    /// Decoder layers of the model.
    pub num_hidden_layers: u32,
    /// Layers with a table, **one-based** as in the file (`[2]` is decoder layer 1).
    pub ple_layer_ids: Vec<u32>,
    /// Longest n-gram.
    pub ngram_size: u32,
    /// Hash columns of each order.
    pub heads_per_ngram: u32,
    /// Smallest number of rows of a column.
    pub ngram_vocab_size_base: u64,
    /// The total of rows is padded to a multiple of this.
    pub make_ngram_vocab_size_divisible_by: u64,
    /// Pieces into which the checkpoint cuts a table (default 512, as in the reference code).
    pub split_ngram_parts: u32,
    /// Values of all columns together (a row has `ple_embed_dim / columns`).
    pub ple_embed_dim: u32,
    /// The token that resets the history (the first one, if the file gives a list).
    pub eos_token_id: u32,
    /// Seed of the multipliers, if the file has one.
    pub seed: Option<u64>,
    /// Placeholder id of images.
    pub image_token_id: Option<u32>,
    /// Placeholder id of videos.
    pub video_token_id: Option<u32>,
    /// Declared storage type of the table, in derived packs.
    pub ple_embedding_dtype: Option<String>,
}

impl QwenConfig {
    /// Hash columns of a token: (orders 2..=n) x heads.
    pub fn columns(&self) -> u32 {
        self.ngram_size.saturating_sub(1).saturating_mul(self.heads_per_ngram)
    }

    /// Values of a row, if the width divides by the columns.
    pub fn row_values(&self) -> Option<u32> {
        let columns = self.columns();
        (columns > 0 && self.ple_embed_dim.is_multiple_of(columns)).then(|| self.ple_embed_dim / columns)
    }

    /// Zero-based decoder layers with a table, in the order of the file.
    pub fn layers(&self) -> Vec<u16> {
        self.ple_layer_ids.iter().map(|id| id.saturating_sub(1) as u16).collect()
    }
}

/// Keys of a DeepSeek-V4.1 Engram configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct V41Config {
    /// Raw vocabulary size.
    pub vocab_size: u64,
    /// Decoder layers of the model.
    pub num_hidden_layers: u32,
    /// Zero-based decoder layers with a table, in the order that their primes are taken.
    pub engram_layer_ids: Vec<u16>,
    /// Rows of each table; the checksum of the derived primes.
    pub engram_num_embeddings: Vec<u64>,
    /// Longest n-gram.
    pub engram_max_ngram_size: u32,
    /// Smallest number of rows of a column.
    pub engram_vocab_size: u64,
    /// Hash columns of each order.
    pub engram_n_heads: u32,
    /// Values of a row.
    pub engram_head_dim: u32,
    /// Raw id of the padding token.
    pub engram_pad_token_id: u32,
    /// Size of the compressed vocabulary.
    pub engram_compressed_vocab_size: u64,
    /// Seed of the multipliers, if the file has one (default 0).
    pub engram_seed: Option<u64>,
    /// Placeholder id of images; positions that carry it are dead.
    pub image_token_id: Option<u32>,
    /// Layers of the vision tower; 0 in text-only models.
    pub vision_layers: Option<u32>,
}

impl ModelConfig {
    /// Zero-based decoder layers with a table, in table order.
    pub fn layers(&self) -> Vec<u16> {
        match self {
            Self::QwenPle(c) => c.layers(),
            Self::DeepseekV41(c) => c.engram_layer_ids.clone(),
        }
    }

    /// Reads the keys from a parsed `config.json`. `None` if it belongs to a model without n-gram tables; `path` is named in errors.
    ///
    /// # Errors
    /// [`StoreError::Config`] if a needed key is missing or impossible.
    pub fn from_json(value: &Value, path: &Path) -> Result<Option<Self>, StoreError> {
        let keys = Keys { path, top: value.as_object(), text: value.get("text_config").and_then(Value::as_object) };
        let vision = || {
            let nested = value.get("vision_config").and_then(|v| v.get("num_hidden_layers"));
            nested.or_else(|| keys.get("vision_n_layers")).and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok())
        };
        if keys.get("ple_layer_ids").is_some() {
            let config = QwenConfig {
                vocab_size: keys.need("vocab_size")?,
                num_hidden_layers: keys.need("num_hidden_layers")?,
                ple_layer_ids: keys.need_list("ple_layer_ids")?,
                ngram_size: keys.need("ngram_size")?,
                heads_per_ngram: keys.need("heads_per_ngram")?,
                ngram_vocab_size_base: keys.need("ngram_vocab_size_base")?,
                make_ngram_vocab_size_divisible_by: keys.need("make_ngram_vocab_size_divisible_by")?,
                split_ngram_parts: keys.opt("split_ngram_parts")?.unwrap_or(512),
                ple_embed_dim: keys.need("ple_embed_dim")?,
                eos_token_id: keys.first("eos_token_id")?,
                seed: keys.opt("seed")?,
                image_token_id: keys.opt("image_token_id")?,
                video_token_id: keys.opt("video_token_id")?,
                ple_embedding_dtype: keys.get("ple_embedding_dtype").and_then(Value::as_str).map(str::to_owned),
            };
            keys.check(!config.ple_layer_ids.is_empty(), "ple_layer_ids", "lists no layer")?;
            let one_based = config.ple_layer_ids.iter().all(|&id| (1..=u32::from(u16::MAX)).contains(&id));
            keys.check(one_based, "ple_layer_ids", "is one-based: ids from 1 to 65535 are possible")?;
            keys.check(config.split_ngram_parts > 0, "split_ngram_parts", "must be at least 1")?;
            let divisor = config.make_ngram_vocab_size_divisible_by;
            keys.check(divisor > 0, "make_ngram_vocab_size_divisible_by", "must be at least 1")?;
            let even = config.row_values().is_some_and(|v| v > 0);
            keys.check(even, "ple_embed_dim", "does not divide by (ngram_size - 1) x heads_per_ngram")?;
            return Ok(Some(Self::QwenPle(config)));
        }
        if keys.get("engram_layer_ids").is_some() {
            let pad = if keys.get("engram_pad_token_id").is_some() { "engram_pad_token_id" } else { "engram_pad_id" };
            let depth = if keys.get("num_hidden_layers").is_some() { "num_hidden_layers" } else { "n_layers" };
            let config = V41Config {
                vocab_size: keys.need("vocab_size")?,
                num_hidden_layers: keys.need(depth)?,
                engram_layer_ids: keys.need_list("engram_layer_ids")?,
                engram_num_embeddings: keys.need_list("engram_num_embeddings")?,
                engram_max_ngram_size: keys.need("engram_max_ngram_size")?,
                engram_vocab_size: keys.need("engram_vocab_size")?,
                engram_n_heads: keys.need("engram_n_heads")?,
                engram_head_dim: keys.need("engram_head_dim")?,
                engram_pad_token_id: keys.need(pad)?,
                engram_compressed_vocab_size: keys.need("engram_compressed_vocab_size")?,
                engram_seed: keys.opt("engram_seed")?,
                image_token_id: keys.opt("image_token_id")?,
                vision_layers: vision(),
            };
            keys.check(!config.engram_layer_ids.is_empty(), "engram_layer_ids", "lists no layer")?;
            let same = config.engram_layer_ids.len() == config.engram_num_embeddings.len();
            keys.check(same, "engram_num_embeddings", "must have one entry for each of engram_layer_ids")?;
            let width = config.engram_head_dim > 0 && config.engram_head_dim.is_multiple_of(32);
            keys.check(width, "engram_head_dim", "must be a multiple of 32, the block of the scales")?;
            return Ok(Some(Self::DeepseekV41(config)));
        }
        Ok(None)
    }

    /// The same keys as a `config.json` in Hugging Face's shape, for synthetic checkpoints and manifests.
    pub fn to_json(&self) -> Value {
        match self {
            Self::QwenPle(c) => {
                let mut text = json!({
                    "model_type": "qwen4_exp_text", "vocab_size": c.vocab_size, "num_hidden_layers": c.num_hidden_layers,
                    "ple_layer_ids": c.ple_layer_ids, "ngram_size": c.ngram_size, "heads_per_ngram": c.heads_per_ngram,
                    "ngram_vocab_size_base": c.ngram_vocab_size_base,
                    "make_ngram_vocab_size_divisible_by": c.make_ngram_vocab_size_divisible_by,
                    "split_ngram_parts": c.split_ngram_parts, "ple_embed_dim": c.ple_embed_dim,
                    "eos_token_id": c.eos_token_id,
                });
                put(&mut text, "seed", c.seed);
                put(&mut text, "ple_embedding_dtype", c.ple_embedding_dtype.clone());
                let mut top = json!({
                    "architectures": ["Qwen4ExpForConditionalGeneration"], "model_type": "qwen4_exp", "text_config": text,
                });
                put(&mut top, "image_token_id", c.image_token_id);
                put(&mut top, "video_token_id", c.video_token_id);
                top
            }
            Self::DeepseekV41(c) => {
                let mut text = json!({
                    "model_type": "deepseek_v41_text", "vocab_size": c.vocab_size, "num_hidden_layers": c.num_hidden_layers,
                    "engram_layer_ids": c.engram_layer_ids, "engram_num_embeddings": c.engram_num_embeddings,
                    "engram_max_ngram_size": c.engram_max_ngram_size, "engram_vocab_size": c.engram_vocab_size,
                    "engram_n_heads": c.engram_n_heads, "engram_head_dim": c.engram_head_dim,
                    "engram_pad_token_id": c.engram_pad_token_id,
                    "engram_compressed_vocab_size": c.engram_compressed_vocab_size,
                });
                put(&mut text, "engram_seed", c.engram_seed);
                let mut top = json!({
                    "architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "text_config": text,
                });
                put(&mut top, "image_token_id", c.image_token_id);
                put(&mut top, "vision_config", c.vision_layers.map(|n| json!({ "num_hidden_layers": n })));
                top
            }
        }
    }
}

/// Adds a key to a JSON object if there is a value for it.
fn put(object: &mut Value, key: &str, value: Option<impl Into<Value>>) {
    if let (Some(map), Some(value)) = (object.as_object_mut(), value) {
        map.insert(key.to_owned(), value.into());
    }
}

/// Reads `config.json` of a folder, or `inference/config.json` if the first has no n-gram keys.
///
/// Gives the configuration and the file it came from; `None` if neither exists or neither has such keys.
///
/// # Errors
/// [`StoreError`] if a file is not JSON or a needed key is missing or impossible.
pub(crate) fn find_config(folder: &Path) -> Result<Option<(ModelConfig, PathBuf)>, StoreError> {
    for name in ["config.json", "inference/config.json"] {
        let path = folder.join(name);
        let Some(value) = read_json(&path, "the model configuration", CONFIG_BYTES_MAX)? else { continue };
        if let Some(config) = ModelConfig::from_json(&value, &path)? {
            return Ok(Some((config, path)));
        }
    }
    Ok(None)
}

/// Keys of `text_config` first, then of the top level (both forms exist).
struct Keys<'a> {
    path: &'a Path,
    top: Option<&'a Map<String, Value>>,
    text: Option<&'a Map<String, Value>>,
}

impl<'a> Keys<'a> {
    fn get(&self, key: &str) -> Option<&'a Value> {
        let find = |map: Option<&'a Map<String, Value>>| map.and_then(|m| m.get(key)).filter(|v| !v.is_null());
        find(self.text).or_else(|| find(self.top))
    }

    fn error(&self, key: &str, why: impl Into<String>) -> StoreError {
        StoreError::Config { path: self.path.into(), key: key.into(), why: why.into() }
    }

    fn check(&self, good: bool, key: &str, why: &str) -> Result<(), StoreError> {
        if good { Ok(()) } else { Err(self.error(key, why)) }
    }

    fn number<T: TryFrom<u64>>(&self, key: &str, value: &Value) -> Result<T, StoreError> {
        let number = value.as_u64().and_then(|n| T::try_from(n).ok());
        number.ok_or_else(|| self.error(key, format!("is {value}, which is no whole number in its range")))
    }

    fn need<T: TryFrom<u64>>(&self, key: &str) -> Result<T, StoreError> {
        self.number(key, self.get(key).ok_or_else(|| self.error(key, "is missing"))?)
    }

    fn opt<T: TryFrom<u64>>(&self, key: &str) -> Result<Option<T>, StoreError> {
        self.get(key).map(|value| self.number(key, value)).transpose()
    }

    /// A number, or the first one of a list.
    fn first<T: TryFrom<u64>>(&self, key: &str) -> Result<T, StoreError> {
        match self.get(key) {
            Some(Value::Array(list)) => {
                self.number(key, list.first().ok_or_else(|| self.error(key, "is an empty list"))?)
            }
            Some(value) => self.number(key, value),
            None => Err(self.error(key, "is missing")),
        }
    }

    fn need_list<T: TryFrom<u64>>(&self, key: &str) -> Result<Vec<T>, StoreError> {
        let value = self.get(key).ok_or_else(|| self.error(key, "is missing"))?;
        let list = value.as_array().ok_or_else(|| self.error(key, "is not a list"))?;
        list.iter().map(|value| self.number(key, value)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qwen() -> QwenConfig {
        QwenConfig {
            vocab_size: 248_320,
            num_hidden_layers: 48,
            ple_layer_ids: vec![2],
            ngram_size: 3,
            heads_per_ngram: 8,
            ngram_vocab_size_base: 20_000_000,
            make_ngram_vocab_size_divisible_by: 128,
            split_ngram_parts: 128,
            ple_embed_dim: 2560,
            eos_token_id: 248_044,
            seed: None,
            image_token_id: Some(248_056),
            video_token_id: Some(248_057),
            ple_embedding_dtype: None,
        }
    }

    fn v41() -> V41Config {
        V41Config {
            vocab_size: 129_280,
            num_hidden_layers: 40,
            engram_layer_ids: vec![1, 14],
            engram_num_embeddings: vec![384_006_168, 384_016_682],
            engram_max_ngram_size: 4,
            engram_vocab_size: 16_000_000,
            engram_n_heads: 8,
            engram_head_dim: 256,
            engram_pad_token_id: 2,
            engram_compressed_vocab_size: 99_092,
            engram_seed: None,
            image_token_id: Some(129_264),
            vision_layers: Some(32),
        }
    }

    #[test]
    fn both_models_survive_a_round_trip() {
        for config in [ModelConfig::QwenPle(qwen()), ModelConfig::DeepseekV41(v41())] {
            assert_eq!(ModelConfig::from_json(&config.to_json(), Path::new("c")).unwrap(), Some(config.clone()));
            assert_eq!(config.layers()[0], 1);
        }
        assert_eq!(qwen().row_values(), Some(160));
    }

    #[test]
    fn the_flat_form_has_its_own_names() {
        let value = json!({
            "vocab_size": 1024, "n_layers": 40, "image_token_id": 1008, "vision_n_layers": 0, "engram_pad_id": 2,
            "engram_layer_ids": [1, 14], "engram_num_embeddings": [10, 20], "engram_max_ngram_size": 4,
            "engram_vocab_size": 64, "engram_n_heads": 8, "engram_head_dim": 256, "engram_compressed_vocab_size": 509,
        });
        let Some(ModelConfig::DeepseekV41(c)) = ModelConfig::from_json(&value, Path::new("c")).unwrap() else {
            panic!("not taken for V4.1")
        };
        assert_eq!((c.num_hidden_layers, c.engram_pad_token_id, c.vision_layers), (40, 2, Some(0)));
    }

    #[test]
    fn what_is_missing_or_impossible_is_named() {
        let says = |change: &dyn Fn(&mut Map<String, Value>)| {
            let mut value = ModelConfig::QwenPle(qwen()).to_json();
            change(value["text_config"].as_object_mut().unwrap());
            ModelConfig::from_json(&value, Path::new("dir/config.json")).unwrap_err().to_string()
        };
        let missing = says(&|m| drop(m.remove("ngram_size")));
        assert!(missing.contains("dir/config.json") && missing.contains("ngram_size is missing"), "{missing}");
        for (key, value) in [
            ("ngram_size", json!(-3)),
            ("eos_token_id", json!([])),
            ("ple_layer_ids", json!([0])),
            ("ple_layer_ids", json!([])),
            ("ple_layer_ids", json!(2)),
            ("ple_embed_dim", json!(2561)),
            ("split_ngram_parts", json!(0)),
            ("make_ngram_vocab_size_divisible_by", json!(0)),
            ("heads_per_ngram", json!(4_294_967_296u64)),
        ] {
            let text = says(&|m| drop(m.insert(key.into(), value.clone())));
            assert!(text.contains(key), "{text}");
        }
    }

    #[test]
    fn other_models_are_no_error() {
        assert_eq!(ModelConfig::from_json(&json!({"model_type": "llama"}), Path::new("c")).unwrap(), None);
        assert_eq!(ModelConfig::from_json(&json!([1]), Path::new("c")).unwrap(), None);
    }

    #[test]
    fn a_list_of_eos_gives_its_first() {
        let mut value = ModelConfig::QwenPle(qwen()).to_json();
        value["text_config"]["eos_token_id"] = json!([7, 8]);
        let Some(ModelConfig::QwenPle(c)) = ModelConfig::from_json(&value, Path::new("c")).unwrap() else { panic!() };
        assert_eq!(c.eos_token_id, 7);
    }
}
