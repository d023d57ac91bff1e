//! What a model's addresses depend on, as data.
//!
//! One structure for both dialects, with built-in values for the models that exist and a TOML or JSON form for those
//! that do not yet: a new geometry is a file, not a release. Nothing here is believed: [`crate::Keygen::new`] checks
//! all of it once.
//!
//! Invariants: plain data, no derived state; unknown fields of a file are refused (a misspelt `dead_ids` must not pass
//! as an empty one); `from_json(to_json(s)) == s`.

use crate::derive;
use crate::{SpecError, Token};
use serde::{Deserialize, Serialize};

/// The address function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// DeepSeek Engram (V4.1 and the paper's demo): compressed ids, a pad id for what is missing, sticky DEAD
    /// positions, multipliers from numpy's PCG64.
    Engram,
    /// Qwen3.8 PLE: raw ids, EOS for what is missing, EOS cuts the window, multipliers from splitmix64.
    QwenPle,
}

impl Dialect {
    /// The name used in spec files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Engram => "engram",
            Self::QwenPle => "qwen_ple",
        }
    }
}

/// Which token map the model uses. Length and vocabulary are checked here, the digest by whoever loads the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenMapSpec {
    /// Entries, one per raw id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub len: Option<u32>,
    /// SHA-256 of the entries as little-endian i32, lower-case hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// File name of the map, relative to the spec file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

/// The bytes of one row. Not interpreted here: rows are delivered unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowSpec {
    /// Bytes of the values.
    pub value_bytes: u32,
    /// Bytes of the scales that belong to this row alone, 0 if there are none.
    #[serde(default)]
    pub scale_bytes: u32,
    /// Type of the values, e.g. `e4m3fn`, `bf16`, `f32`.
    #[serde(default)]
    pub value: String,
    /// Type of the scales and their block, e.g. `ue8m0/32`; empty if there are none.
    #[serde(default)]
    pub scale: String,
    /// How values and scales lie in the files, e.g. `split`, `packed264`; empty if the reader finds out.
    #[serde(default)]
    pub layout: String,
}

impl RowSpec {
    /// Bytes of one logical row, values and scales.
    pub const fn bytes(&self) -> u64 {
        self.value_bytes as u64 + self.scale_bytes as u64
    }
}

/// Where one table lies, for readers that do not discover it. Not interpreted here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableSource {
    /// File name, relative to the spec file.
    pub file: String,
    /// Name of the tensor with the values.
    #[serde(default)]
    pub weight: String,
    /// Name of the tensor with the scales, if it is a separate one.
    #[serde(default)]
    pub scale: String,
}

/// Everything that row ids depend on, and the declared figures they are checked against.
///
/// ```
/// use engram_keygen::{Keygen, Spec};
/// let spec = Spec::from_toml(r#"
///     dialect = "qwen_ple"
///     layer_ids = [1]
///     max_ngram = 3
///     heads = 8
///     bases = [101]
///     vocab = 512
///     eos = 500
/// "#).unwrap();
/// assert_eq!(Keygen::new(&spec, None).unwrap().primes(0)[..3], [101, 103, 107]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// A name for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The address function.
    pub dialect: Dialect,
    /// Zero-based decoder layers, one table each; this is the order of the tables everywhere.
    pub layer_ids: Vec<u16>,
    /// The order in which the layers take their primes (and, for Qwen, their `ple_index`); `layer_ids` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table_order: Option<Vec<u16>>,
    /// n, tokens in the longest n-gram: orders are 2..=n.
    pub max_ngram: usize,
    /// Hash heads per order.
    pub heads: usize,
    /// Least rows of a head: one value, or one for each order.
    pub bases: Vec<u64>,
    /// Raw ids of the model. Qwen: enters the multipliers. Engram: compared with the length of the token map.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vocab: Option<u32>,
    /// V, compressed ids (Engram): enters the multipliers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compressed_vocab: Option<u32>,
    /// The token map (Engram); absent = ids are hashed as they are unless a map is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_map: Option<TokenMapSpec>,
    /// What stands for a missing predecessor (Engram), as a compressed id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pad_compressed: Option<u32>,
    /// The same as a raw id, for configs that hold that one (`engram_pad_token_id`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pad_raw: Option<u32>,
    /// The id that cuts windows and stands for a missing predecessor (Qwen).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eos: Option<u32>,
    /// Raw ids whose positions are DEAD (Engram): V4.1's image token.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dead_ids: Vec<Token>,
    /// The image placeholder, for engines' profiles. Not hashed specially.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_id: Option<Token>,
    /// The video placeholder, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub video_id: Option<Token>,
    /// Seed of the multipliers; if absent 0 (Engram) or 1234 (Qwen), as in the engines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Added to the seed per layer id (Engram) or per PLE layer (Qwen); 10007 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer_seed_stride: Option<u64>,
    /// Multipliers as the checkpoint holds them, per table `[n]`, index = lookback distance. Compared with the derived
    /// ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multipliers: Option<Vec<Vec<u64>>>,
    /// Primes as the checkpoint holds them, per table `[(n - 1) * heads]`, order-major. Compared with the derived ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primes: Option<Vec<Vec<u64>>>,
    /// Use `multipliers` and `primes` even where they differ from the derived ones.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub trust_overrides: bool,
    /// Addressed rows per table: a checksum of the primes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<Vec<u64>>,
    /// The table is padded to a multiple of this many rows (Qwen `make_ngram_vocab_size_divisible_by`); 1 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row_divisor: Option<u64>,
    /// Tensors that a table is split into (Qwen `split_ngram_parts`); 1 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<u32>,
    /// Decoder layers of the model, for deadlines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_layers: Option<u16>,
    /// Layer at which each table's rows are needed; `layer_ids` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_layers: Option<Vec<u16>>,
    /// Bytes of a row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row: Option<RowSpec>,
    /// Where the tables lie, in the order of `layer_ids`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<TableSource>,
}

impl Spec {
    /// Qwen3.8-Flash-Next PLE: 16 rows of 160 B (FP8) a token from one table of 320,001,446 rows, at layer 1.
    ///
    /// Source: the model's `config.json` (`ple_layer_ids = [2]` there is one-based) and the multipliers of its
    /// checkpoint.
    pub fn qwen_ple() -> Self {
        Self {
            name: "qwen3.8-flash-next-ple".into(),
            dialect: Dialect::QwenPle,
            layer_ids: vec![1],
            max_ngram: 3,
            heads: 8,
            bases: vec![20_000_000],
            vocab: Some(248_320),
            eos: Some(248_044),
            image_id: Some(248_056),
            video_id: Some(248_057),
            seed: Some(1234),
            multipliers: Some(vec![vec![23_703_573_157_769, 20_109_073_645_365, 8_052_911_324_071]]),
            rows: Some(vec![320_001_446]),
            row_divisor: Some(128),
            parts: Some(128),
            num_layers: Some(48),
            row: Some(RowSpec { value_bytes: 160, value: "e4m3fn".into(), ..RowSpec::default() }),
            ..Self::empty(Dialect::QwenPle)
        }
    }

    /// DeepSeek-V4.1-Flash Engram: 48 rows of 264 B a token from two tables of 384 M rows, at layers 1 and 14.
    ///
    /// Needs the model's token map (129,280 entries, 99,092 compressed ids). Source: the model's `config.json`; the
    /// multipliers are in no checkpoint and are derived.
    pub fn deepseek_v41() -> Self {
        Self {
            name: "deepseek-v4.1-flash-engram".into(),
            layer_ids: vec![1, 14],
            max_ngram: 4,
            heads: 8,
            bases: vec![16_000_000],
            vocab: Some(129_280),
            compressed_vocab: Some(99_092),
            token_map: Some(TokenMapSpec {
                len: Some(129_280),
                sha256: Some("c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481".into()),
                file: None,
            }),
            pad_compressed: Some(2),
            dead_ids: vec![129_264],
            image_id: Some(129_264),
            seed: Some(0),
            rows: Some(vec![384_006_168, 384_016_682]),
            num_layers: Some(40),
            row: Some(RowSpec {
                value_bytes: 256,
                scale_bytes: 8,
                value: "e4m3fn".into(),
                scale: "ue8m0/32".into(),
                layout: String::new(),
            }),
            ..Self::empty(Dialect::Engram)
        }
    }

    /// The paper's demo (arXiv 2601.07372): 32 rows of 64 floats a token from two tables of 10.3 M rows, at layers 1
    /// and 15.
    ///
    /// Hashes ids of a vocabulary of 98,627 as they are, or through a map onto it. No position is DEAD but masked ones.
    pub fn demo() -> Self {
        Self {
            name: "engram-demo".into(),
            layer_ids: vec![1, 15],
            max_ngram: 3,
            heads: 8,
            bases: vec![646_400],
            compressed_vocab: Some(98_627),
            pad_compressed: Some(2),
            seed: Some(0),
            rows: Some(vec![10_344_164, 10_348_242]),
            row: Some(RowSpec { value_bytes: 256, value: "f32".into(), ..RowSpec::default() }),
            ..Self::empty(Dialect::Engram)
        }
    }

    /// A spec without geometry, to be filled with `..Spec::empty(dialect)`. Refused by [`crate::Keygen::new`] as it is.
    pub fn empty(dialect: Dialect) -> Self {
        Self {
            name: String::new(),
            dialect,
            layer_ids: Vec::new(),
            table_order: None,
            max_ngram: 0,
            heads: 0,
            bases: Vec::new(),
            vocab: None,
            compressed_vocab: None,
            token_map: None,
            pad_compressed: None,
            pad_raw: None,
            eos: None,
            dead_ids: Vec::new(),
            image_id: None,
            video_id: None,
            seed: None,
            layer_seed_stride: None,
            multipliers: None,
            primes: None,
            trust_overrides: false,
            rows: None,
            row_divisor: None,
            parts: None,
            num_layers: None,
            deadline_layers: None,
            row: None,
            tables: Vec::new(),
        }
    }

    /// Reads a spec file in TOML.
    ///
    /// # Errors
    /// [`SpecError::Parse`] with the place, also for a field that does not exist. The geometry itself is checked by
    /// [`crate::Keygen::new`].
    pub fn from_toml(text: &str) -> Result<Self, SpecError> {
        toml::from_str(text).map_err(|e| SpecError::Parse { format: "TOML", message: e.to_string() })
    }

    /// Reads a spec in JSON.
    ///
    /// # Errors
    /// As [`Spec::from_toml`].
    pub fn from_json(text: &str) -> Result<Self, SpecError> {
        serde_json::from_str(text).map_err(|e| SpecError::Parse { format: "JSON", message: e.to_string() })
    }

    /// The spec in JSON, indented; absent fields are left out. [`Spec::from_json`] gives the same spec back.
    pub fn to_json(&self) -> String {
        // Serialising fails for maps with keys that are no strings and for failing writers; this is neither.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Hash columns of a token and table: orders x heads.
    pub fn columns(&self) -> usize {
        self.max_ngram.saturating_sub(1).saturating_mul(self.heads)
    }

    /// The same model with smaller bases, so that no table has more than about `rows_per_table_max` rows.
    ///
    /// Orders, heads, row widths, multipliers and vocabulary stay; primes and the declared rows are computed anew. A
    /// spec that is small enough keeps its bases. The least table has primes from 2; less cannot be had. A spec that
    /// cannot be derived is returned as it is, for [`crate::Keygen::new`] to refuse.
    ///
    /// ```
    /// use engram_keygen::{Keygen, Spec};
    /// let keygen = Keygen::new(&Spec::qwen_ple().scaled_to_rows(100_000), None).unwrap();
    /// assert!((90_000..=100_000).contains(&keygen.table_rows(0)));
    /// ```
    pub fn scaled_to_rows(&self, rows_per_table_max: u64) -> Self {
        let mut scaled = Self { primes: None, rows: None, ..self.clone() };
        let rows = |spec: &Self| -> Result<Vec<u64>, SpecError> {
            Ok(derive::primes(spec)?.iter().map(|table| table.iter().sum()).collect())
        };
        let largest = |rows: &[u64]| rows.iter().copied().max().unwrap_or(0);
        let Ok(mut got) = rows(&scaled) else { return self.clone() };
        let full = largest(&got);
        let mut target = rows_per_table_max;
        // Rows grow with the target about one to one, so each round takes off the excess that the last one left: a few
        // rounds.
        while largest(&got) > rows_per_table_max && scaled.bases.iter().any(|&base| base > derive::BASE_MIN) {
            let shrink = |&base: &u64| {
                let base = u128::from(base) * u128::from(target) / u128::from(full);
                u64::try_from(base).unwrap_or(u64::MAX).max(derive::BASE_MIN)
            };
            scaled.bases = self.bases.iter().map(shrink).collect();
            let Ok(smaller) = rows(&scaled) else { return self.clone() };
            target = target.saturating_sub(largest(&smaller).saturating_sub(rows_per_table_max));
            got = smaller;
        }
        scaled.rows = Some(got);
        scaled
    }
}
