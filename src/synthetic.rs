//! Plans of synthetic tables: a model's geometry, scaled to a byte budget or at full size with holes.

use crate::{OpenError, maps};
use engram_keygen::rng::{SPLITMIX_GAMMA, splitmix64};
use engram_keygen::{Dialect, Keygen, Spec};
use engram_store::{
    LayerConstants, ModelConfig, QwenConfig, RowFormat, RowScale, SparseSample, SynthLayout, SynthPlan, SynthTable,
    V41Config, ValueType,
};
use std::path::PathBuf;

/// Qwen's scale of its FP8 table, 209 * 2^-20, which is exact in bfloat16.
const QWEN_SCALE: f32 = 209.0 / 1_048_576.0;

/// Rows written in each table of a sparse plan, at random places.
const SPARSE_ROWS: u64 = 2000;

/// Files of each table in the raw layout.
const RAW_SHARDS: u32 = 16;

/// A synthetic table to be made for a model; [`plan`](Self::plan) gives what `synth` takes.
///
/// ```
/// use engram_sched::{Model, ModelOptions, Spec, SynthLayout, Synthetic, synth};
/// use std::ops::ControlFlow;
///
/// let dir = tempfile::tempdir()?;
/// let plan = Synthetic::new(Spec::qwen_ple(), 1 << 20).plan(dir.path().join("table"))?;
/// synth(&plan, &mut |_done, _all| ControlFlow::Continue(()))?;
/// let model = Model::open(dir.path().join("table"), &ModelOptions::default())?;
/// assert_eq!(model.tables()[0].row_bytes(), 160);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Synthetic {
    spec: Spec,
    bytes: Option<u64>,
    layout: SynthLayout,
    row_bytes: Option<u32>,
    seed: u64,
}

impl Synthetic {
    /// A table of about `bytes` bytes of rows, all tables of the model together: bases are scaled, the rest of the geometry stays.
    pub fn new(spec: Spec, bytes: u64) -> Self {
        Self { spec, bytes: Some(bytes), layout: SynthLayout::Packed, row_bytes: None, seed: 0 }
    }

    /// The full geometry in sparse files: a few thousand rows of each table are written, at their true offsets.
    pub fn sparse_full(spec: Spec) -> Self {
        Self { spec, bytes: None, layout: SynthLayout::Packed, row_bytes: None, seed: 0 }
    }

    /// The layout; packed records without it.
    pub fn layout(mut self, layout: SynthLayout) -> Self {
        self.layout = layout;
        self
    }

    /// Bytes of a row other than the spec's: for Qwen twice its 160 mean BF16.
    pub fn row_bytes(mut self, row_bytes: u32) -> Self {
        self.row_bytes = Some(row_bytes);
        self
    }

    /// Seed of the choice of rows that a sparse table writes; without effect on a table that is written in full.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The plan for a table in folder `out`.
    ///
    /// # Errors
    /// [`OpenError::Spec`] if the spec is none, [`OpenError::NoTokenMap`] if it compresses its vocabulary without saying to what size,
    /// [`OpenError::NoRowBytes`] if nothing says how wide a row is, and [`OpenError::BeyondFullSize`] for more bytes than the model has.
    pub fn plan(&self, out: impl Into<PathBuf>) -> Result<SynthPlan, OpenError> {
        let row_format = self.row_format();
        let full_bytes = self.full_bytes()?;
        let spec = match self.bytes {
            None => self.spec.clone(),
            Some(bytes) => {
                if bytes > full_bytes {
                    return Err(OpenError::BeyondFullSize { origin: self.spec.name.clone(), bytes, full_bytes });
                }
                let tables = self.spec.layer_ids.len().max(1) as u64;
                self.spec.scaled_to_rows(bytes / tables / u64::from(row_format.row_bytes().max(1)))
            }
        };
        let keygen = self.keygen(&spec)?;
        let tables: Vec<SynthTable> = (0..keygen.tables())
            .map(|table| SynthTable {
                layer: keygen.layer(table),
                rows: keygen.table_rows(table),
                padded_rows: keygen.table_rows_padded(table),
                tag: if spec.dialect == Dialect::QwenPle { 0 } else { u64::from(keygen.layer(table)) },
            })
            .collect();
        let constants = (0..keygen.tables())
            .map(|table| LayerConstants {
                layer: keygen.layer(table),
                multipliers: keygen.multipliers(table).to_vec(),
                offsets: keygen.offsets(table).to_vec(),
                primes: keygen.primes(table).to_vec(),
            })
            .collect();
        let sparse = self.bytes.is_none().then(|| SparseSample {
            rows: tables.iter().map(|table| sample(table.padded_rows, self.seed ^ u64::from(table.layer))).collect(),
        });
        let checkpoint = self.layout == SynthLayout::Safetensors;
        Ok(SynthPlan {
            out: out.into(),
            layout: self.layout,
            row_format,
            shards: RAW_SHARDS,
            config: checkpoint.then(|| config(&spec, &keygen, row_format)).flatten(),
            // No V4.1 checkpoint stores constants, and none carries a spec: both follow from its configuration.
            constants: if checkpoint && spec.dialect == Dialect::Engram { Vec::new() } else { constants },
            spec_json: (!checkpoint).then(|| spec.to_json()),
            sparse,
            tables,
        })
    }

    /// Bytes of all rows of the model at full size, all tables together.
    ///
    /// # Errors
    /// As [`plan`](Self::plan).
    pub fn full_bytes(&self) -> Result<u64, OpenError> {
        let row_bytes = self.row_format().row_bytes();
        if row_bytes == 0 {
            return Err(OpenError::NoRowBytes { origin: self.spec.name.clone() });
        }
        let keygen = self.keygen(&self.spec)?;
        let rows: u64 = (0..keygen.tables()).map(|table| keygen.table_rows_padded(table)).sum();
        Ok(rows.saturating_mul(u64::from(row_bytes)))
    }

    fn keygen(&self, spec: &Spec) -> Result<Keygen, OpenError> {
        let map = if maps::needs_map(spec) { maps::stand_in(spec)?.map } else { None };
        Keygen::new(spec, map).map_err(|source| OpenError::Spec { origin: self.spec.name.clone(), source })
    }

    fn row_format(&self) -> RowFormat {
        let row = self.spec.row.clone().unwrap_or_default();
        let declared = u32::try_from(row.bytes()).unwrap_or(0);
        let row_bytes = self.row_bytes.unwrap_or(declared);
        let qwen = self.spec.dialect == Dialect::QwenPle;
        let fp8 = row.value == "e4m3fn";
        if row_bytes == declared && fp8 && row.scale == "ue8m0/32" {
            RowFormat { value: ValueType::F8E4m3, value_bytes: row.value_bytes, scale: RowScale::Ue8m0Per32 }
        } else if row_bytes == declared && fp8 && qwen {
            RowFormat::qwen_fp8(row_bytes, (QWEN_SCALE.to_bits() >> 16) as u16)
        } else if qwen && (row.value == "bf16" || fp8 && row_bytes == 2 * declared) {
            RowFormat::qwen_bf16(row_bytes / 2)
        } else {
            RowFormat::opaque(row_bytes)
        }
    }
}

/// Distinct places in a table, spread by splitmix64.
fn sample(rows: u64, seed: u64) -> Vec<u64> {
    let mut state = seed;
    (0..SPARSE_ROWS.min(rows))
        .map(|_| {
            let drawn = splitmix64(state);
            state = state.wrapping_add(SPLITMIX_GAMMA);
            ((u128::from(drawn) * u128::from(rows)) >> 64) as u64
        })
        .collect()
}

/// The configuration of a checkpoint with this geometry; `None` for models that have no checkpoint.
fn config(spec: &Spec, keygen: &Keygen, row_format: RowFormat) -> Option<ModelConfig> {
    let vocab_size = u64::from(keygen.vocab());
    let num_hidden_layers = u32::from(spec.num_layers?);
    let base = *spec.bases.first()?;
    match spec.dialect {
        Dialect::QwenPle => Some(ModelConfig::QwenPle(QwenConfig {
            vocab_size,
            num_hidden_layers,
            ple_layer_ids: spec.layer_ids.iter().map(|&layer| u32::from(layer) + 1).collect(),
            ngram_size: spec.max_ngram as u32,
            heads_per_ngram: spec.heads as u32,
            ngram_vocab_size_base: base,
            make_ngram_vocab_size_divisible_by: spec.row_divisor.unwrap_or(1),
            split_ngram_parts: spec.parts.unwrap_or(1),
            ple_embed_dim: row_format.values() * spec.columns() as u32,
            eos_token_id: spec.eos?,
            seed: spec.seed,
            image_token_id: spec.image_id.and_then(|id| id.try_into().ok()),
            video_token_id: spec.video_id.and_then(|id| id.try_into().ok()),
            ple_embedding_dtype: None,
        })),
        Dialect::Engram => Some(ModelConfig::DeepseekV41(V41Config {
            vocab_size,
            num_hidden_layers,
            engram_layer_ids: spec.layer_ids.clone(),
            engram_num_embeddings: (0..keygen.tables()).map(|table| keygen.table_rows(table)).collect(),
            engram_max_ngram_size: spec.max_ngram as u32,
            engram_vocab_size: base,
            engram_n_heads: spec.heads as u32,
            engram_head_dim: row_format.values(),
            engram_pad_token_id: spec.pad_raw.or(spec.pad_compressed)?,
            engram_compressed_vocab_size: u64::from(spec.compressed_vocab?),
            engram_seed: spec.seed,
            image_token_id: spec.image_id.and_then(|id| id.try_into().ok()),
            vision_layers: None,
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_keep_the_row_and_scale_the_rest() {
        let plan = Synthetic::new(Spec::qwen_ple(), 16 << 20).plan("t").unwrap();
        assert_eq!(plan.row_format.row_bytes(), 160);
        let bytes = plan.tables[0].padded_rows * 160;
        assert!((15 << 20..17 << 20).contains(&bytes), "{bytes}");
        let plan = Synthetic::new(Spec::qwen_ple(), 16 << 20).row_bytes(320).plan("t").unwrap();
        assert_eq!((plan.row_format.value, plan.row_format.row_bytes()), (ValueType::Bf16, 320));
        let plan = Synthetic::new(Spec::deepseek_v41(), 16 << 20).layout(SynthLayout::Safetensors).plan("t").unwrap();
        assert_eq!((plan.tables.len(), plan.row_format.row_bytes()), (2, 264));
        assert!(matches!(plan.config, Some(ModelConfig::DeepseekV41(_))));
    }

    #[test]
    fn more_than_all_rows_and_rows_without_a_width_are_refused() {
        let full = Synthetic::new(Spec::qwen_ple(), 1).full_bytes().unwrap();
        assert_eq!(full, 320_001_536 * 160);
        assert_eq!(Synthetic::new(Spec::qwen_ple(), full).plan("t").unwrap().tables[0].padded_rows, 320_001_536);
        let error = Synthetic::new(Spec::qwen_ple(), full + 1).plan("t").unwrap_err();
        assert!(matches!(error, OpenError::BeyondFullSize { full_bytes, .. } if full_bytes == full), "{error}");
        let spec = Spec { row: None, ..Spec::qwen_ple() };
        for synthetic in [Synthetic::new(spec.clone(), 1 << 20), Synthetic::sparse_full(spec)] {
            let error = synthetic.plan("t").unwrap_err();
            assert!(matches!(error, OpenError::NoRowBytes { .. }), "{error}");
            assert!(synthetic.row_bytes(160).plan("t").is_ok());
        }
    }

    #[test]
    fn the_full_geometry_is_sparse() {
        let plan = Synthetic::sparse_full(Spec::qwen_ple()).plan("t").unwrap();
        assert_eq!(plan.tables[0].padded_rows, 320_001_536);
        let rows = &plan.sparse.unwrap().rows[0];
        assert!(rows.len() == 2000 && rows.iter().all(|&row| row < 320_001_536));
        assert!(rows.iter().any(|&row| row * 160 > 1 << 32));
    }
}
