//! DeepSeek-V4.1 Engram tables in their checkpoint: values and scales in two tensors, so a row has two parts.
//!
//! `layers.{i}.engram.embed.weight` F8_E4M3 `[rows, 256]` and `layers.{i}.engram.embed.scale` F8_E8M0 `[rows, 8]`. No constants are
//! stored; the row counts of the configuration are the checksum.

use std::path::Path;

use super::{Checkpoint, Parts, known_dtype, layer_of};
use crate::config::V41Config;
use crate::error::StoreError;
use crate::files::FileSet;
use crate::format::RowFormat;
use crate::table::{Part, Shard, Table};

const WEIGHT: &str = ".engram.embed.weight";
const SCALE: &str = ".engram.embed.scale";

pub(super) fn present(checkpoint: &Checkpoint) -> bool {
    checkpoint.names().any(is_weight)
}

fn is_weight(name: &str) -> bool {
    name.ends_with(WEIGHT) && layer_of(name).is_some()
}

pub(super) fn open(
    checkpoint: &mut Checkpoint,
    config: Option<&V41Config>,
    place: &Path,
    files: &mut FileSet,
) -> Result<Parts, StoreError> {
    let mut found: Vec<(u16, String)> =
        checkpoint.names().filter(|n| is_weight(n)).filter_map(|n| Some((layer_of(n)?, n.to_owned()))).collect();
    found.sort();
    for pair in found.windows(2) {
        if pair[0].0 == pair[1].0 {
            let (first, second) = (pair[0].1.clone(), pair[1].1.clone());
            return Err(StoreError::TableTwice { path: checkpoint.place().into(), layer: pair[0].0, first, second });
        }
    }
    if let Some(config) = config {
        let why = |layer| format!("does not list layer {layer}, for which the checkpoint holds a table");
        if let Some((layer, _)) = found.iter().find(|(layer, _)| !config.engram_layer_ids.contains(layer)) {
            return Err(StoreError::Config { path: place.into(), key: "engram_layer_ids".into(), why: why(*layer) });
        }
        // Table order is the order of the configuration.
        let position = |layer: &u16| config.engram_layer_ids.iter().position(|id| id == layer);
        found.sort_by_key(|(layer, _)| position(layer));
    }
    let layers = match config {
        Some(config) => config.engram_layer_ids.clone(),
        None => found.iter().map(|(layer, _)| *layer).collect(),
    };
    let prefix = found.first().map_or("", |(_, name)| &name[..name.rfind("layers.").unwrap_or(0)]).to_owned();
    let names: Vec<(String, String)> = layers
        .iter()
        .map(|layer| {
            let held = found.iter().find(|(l, _)| l == layer).map(|(_, n)| n.clone());
            let weight = held.unwrap_or_else(|| format!("{prefix}layers.{layer}{WEIGHT}"));
            let scale = format!("{}{SCALE}", weight.strip_suffix(WEIGHT).unwrap_or(&weight));
            (weight, scale)
        })
        .collect();
    checkpoint.need_files(names.iter().flat_map(|(w, s)| [w.as_str(), s.as_str()]))?;

    let mut tables = Vec::new();
    let mut format: Option<(RowFormat, String)> = None;
    for (index, (&layer, (weight, scale))) in layers.iter().zip(&names).enumerate() {
        let (values, path) = checkpoint.tensor(weight)?;
        known_dtype(weight, &values, &path)?;
        let bad = |tensor: &str, got: &super::Tensor, path: &Path, expected: String| StoreError::TensorShape {
            path: path.into(),
            tensor: tensor.into(),
            got: got.describe(),
            expected,
        };
        let (rows, width) = match (values.dtype.as_str(), values.shape.as_slice()) {
            ("F8_E4M3", &[rows, width]) if width > 0 && width % 32 == 0 && width <= 1 << 20 => (rows, width),
            _ => return Err(bad(weight, &values, &path, "F8_E4M3 [rows, a multiple of 32]".into())),
        };
        if let Some(config) = config {
            if u64::from(config.engram_head_dim) != width {
                return Err(bad(weight, &values, &path, format!("F8_E4M3 [rows, {}]", config.engram_head_dim)));
            }
            let expected = config.engram_num_embeddings[index];
            if rows != expected {
                let by = "engram_num_embeddings of the configuration";
                return Err(StoreError::RowsWrong { path, layer, got: rows, expected, by });
            }
        }
        if !checkpoint.has(scale) {
            let place = checkpoint.place().to_path_buf();
            return Err(StoreError::ScaleMissing { path: place, tensor: weight.clone(), tried: scale.clone() });
        }
        let (scales, scale_path) = checkpoint.tensor(scale)?;
        known_dtype(scale, &scales, &scale_path)?;
        if scales.dtype.as_str() != "F8_E8M0" || scales.shape != [rows, width / 32] {
            return Err(bad(scale, &scales, &scale_path, format!("F8_E8M0 [{rows}, {}]", width / 32)));
        }
        let this = RowFormat::v41(width as u32);
        match &format {
            Some((first, name)) if *first != this => {
                let (first, second) = (format!("{name} has {first}"), format!("{weight} has {this}"));
                return Err(StoreError::Differ { path, first, second });
            }
            Some(_) => {}
            None => format = Some((this, weight.clone())),
        }
        let part = |bytes: u64, file, offset| Part {
            bytes: bytes as u32,
            stride: bytes,
            rows_per_shard: rows,
            shards: vec![Shard { file, offset, rows }],
        };
        let parts = vec![
            part(width, files.add(&path)?, values.offset),
            part(width / 32, files.add(&scale_path)?, scales.offset),
        ];
        tables.push(Table::new(layer, rows, parts, files.as_slice())?);
    }
    let format = format.map_or(RowFormat::v41(256), |(format, _)| format);
    Ok(Parts { tables, constants: Vec::new(), format, notes: Vec::new() })
}
