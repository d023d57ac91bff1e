//! Raw shards: `shard_000.bin`, `shard_001.bin`, ... rows back to back, as EngramDB writes and reads them (Store-I).
//!
//! `manifest.json` is optional; of it only `layout.{shards, rows_per_shard, width, elem_bytes}` is read, other keys are ignored. Without
//! it the caller gives the geometry. `badge_000.bin` is the same with the last group of rows padded with zeros to about 4 KiB. All files
//! but the last are exactly full; the last may hold fewer rows. Anything else is refused.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use crate::error::StoreError;
use crate::files::{FileSet, read_json};
use crate::format::RowFormat;
use crate::opened::{Opened, SourceKind};
use crate::table::{Part, Shard, Table};

/// EngramDB's manifest.
pub(crate) const RAW_MANIFEST: &str = "manifest.json";

/// The layer of a raw table whose folder does not tell (decoder layer 1 is the first n-gram layer of all known models).
const LAYER_DEFAULT: u16 = 1;

const MANIFEST_BYTES_MAX: u64 = 16 << 20;

/// Most shards of a raw table.
const SHARDS_MAX: u64 = 1 << 20;

/// Bytes up to which a badge file is padded.
const BADGE_BYTES: u64 = 4096;

/// Geometry of raw shards, for folders without a manifest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawGeometry {
    /// Zero-based decoder layer.
    pub layer: u16,
    /// Rows of the table; `None`: as many as the files hold.
    pub rows: Option<u64>,
    /// Bytes of a row.
    pub row_bytes: u32,
    /// Rows of every shard but the last.
    pub rows_per_shard: u64,
    /// What the bytes mean, if the caller knows; its row bytes must be `row_bytes`.
    pub format: Option<RowFormat>,
}

#[derive(Deserialize)]
struct RawLayout {
    shards: u64,
    rows_per_shard: u64,
    width: u64,
    #[serde(default = "one")]
    elem_bytes: u64,
}

fn one() -> u64 {
    1
}

/// Geometry as found in a manifest.
pub(crate) struct Found {
    geometry: RawGeometry,
    shards: Option<u64>,
    /// The manifest, for messages.
    path: PathBuf,
    layer_told: bool,
}

impl Found {
    pub(crate) fn with_layer(mut self, layer: u16) -> Self {
        (self.geometry.layer, self.layer_told) = (layer, true);
        self
    }
}

/// Whether a file name is that of a shard, and its number.
fn shard_number(name: &str) -> Option<(&'static str, u64)> {
    for prefix in ["shard_", "badge_"] {
        if let Some(digits) = name.strip_prefix(prefix).and_then(|n| n.strip_suffix(".bin")) {
            let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            return plain.then(|| digits.parse().ok()).flatten().map(|n| (prefix, n));
        }
    }
    None
}

/// Whether a folder holds raw shards (or at least their manifest).
pub(crate) fn present(folder: &Path) -> Result<bool, StoreError> {
    Ok(!list_shards(folder)?.is_empty() || read_geometry(folder)?.is_some())
}

/// Shard files by number.
fn list_shards(folder: &Path) -> Result<BTreeMap<u64, (&'static str, PathBuf)>, StoreError> {
    let mut shards = BTreeMap::new();
    for entry in fs::read_dir(folder).map_err(|e| StoreError::io(folder, "list", e))? {
        let path = entry.map_err(|e| StoreError::io(folder, "list", e))?.path();
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let Some((prefix, number)) = shard_number(&name) else { continue };
        if let Some((_, other)) = shards.insert(number, (prefix, path)) {
            let other = other.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            return Err(StoreError::ShardTwice { path: folder.into(), number, first: other, second: name });
        }
    }
    Ok(shards)
}

/// The geometry in a folder's `manifest.json`; `None` if there is no such file or it is of something else.
pub(crate) fn read_geometry(folder: &Path) -> Result<Option<Found>, StoreError> {
    let path = folder.join(RAW_MANIFEST);
    let Some(value) = read_json(&path, "the manifest", MANIFEST_BYTES_MAX)? else { return Ok(None) };
    let Some(layout) = value.get("layout") else { return Ok(None) };
    let json = |source| StoreError::Json { path: path.clone(), what: "the manifest's layout", source };
    let layout = RawLayout::deserialize(layout).map_err(json)?;
    let row_bytes = layout.width.checked_mul(layout.elem_bytes).and_then(|n| u32::try_from(n).ok());
    let why = || format!("width {} x elem_bytes {} is no row size", layout.width, layout.elem_bytes);
    let row_bytes = row_bytes.ok_or_else(|| StoreError::Geometry { path: path.clone(), why: why() })?;
    let told = value.get("layer").and_then(Value::as_u64).and_then(|n| u16::try_from(n).ok());
    let layer = told.or_else(|| layer_of_folder(folder));
    let geometry = RawGeometry {
        layer: layer.unwrap_or(LAYER_DEFAULT),
        rows: None,
        row_bytes,
        rows_per_shard: layout.rows_per_shard,
        format: None,
    };
    Ok(Some(Found { geometry, shards: Some(layout.shards), path, layer_told: layer.is_some() }))
}

/// The layer in a folder's name: `layer_14`, `layer-14`, `layer14`.
fn layer_of_folder(folder: &Path) -> Option<u16> {
    let name = folder.file_name()?.to_str()?.to_ascii_lowercase();
    name.strip_prefix("layer")?.trim_start_matches(['_', '-']).parse().ok()
}

/// Opens a folder of shards as one table.
pub(crate) fn open(folder: &Path, geometry: Option<&RawGeometry>) -> Result<Opened, StoreError> {
    let manifest = read_geometry(folder)?;
    let found = match (geometry, manifest) {
        (None, None) => return Err(StoreError::GeometryNeeded { path: folder.into() }),
        (None, Some(found)) => found,
        (Some(given), None) => Found { geometry: *given, shards: None, path: folder.into(), layer_told: true },
        (Some(given), Some(found)) => {
            let said = found.geometry;
            if (given.row_bytes, given.rows_per_shard) != (said.row_bytes, said.rows_per_shard) {
                let why = format!(
                    "asked for rows of {} B, {} a shard; the manifest says {} B, {} a shard",
                    given.row_bytes, given.rows_per_shard, said.row_bytes, said.rows_per_shard
                );
                return Err(StoreError::Geometry { path: found.path, why });
            }
            Found { geometry: *given, layer_told: true, ..found }
        }
    };
    let format = found.geometry.format.unwrap_or(RowFormat::opaque(found.geometry.row_bytes));
    let mut files = FileSet::default();
    let mut opened = Opened::new(folder, SourceKind::RawShards, format);
    opened.tables.push(open_table(folder, &found, &mut files)?);
    if !found.layer_told {
        opened.notes.push(format!("the manifest does not tell the layer: {LAYER_DEFAULT} is assumed"));
    }
    opened.files = files.into_files();
    Ok(opened)
}

/// Opens a folder whose subfolders are raw tables; `None` if none is.
pub(crate) fn open_many(folder: &Path) -> Result<Option<Opened>, StoreError> {
    let mut places = Vec::new();
    for entry in fs::read_dir(folder).map_err(|e| StoreError::io(folder, "list", e))? {
        let path = entry.map_err(|e| StoreError::io(folder, "list", e))?.path();
        if path.is_dir()
            && let Some(found) = read_geometry(&path)?
            && !list_shards(&path)?.is_empty()
        {
            places.push((path, found));
        }
    }
    if places.is_empty() {
        return Ok(None);
    }
    places.sort_by_key(|(_, found)| found.geometry.layer);
    let format = RowFormat::opaque(places[0].1.geometry.row_bytes);
    let mut files = FileSet::default();
    let mut opened = Opened::new(folder, SourceKind::RawShards, format);
    for (index, (place, found)) in places.iter().enumerate() {
        let why = if places.len() > 1 && !found.layer_told {
            "its layer is not told: name the folder layer_N".to_owned()
        } else if index > 0 && places[index - 1].1.geometry.layer == found.geometry.layer {
            format!("a second table of layer {}", found.geometry.layer)
        } else if found.geometry.row_bytes != format.row_bytes() {
            format!("rows of {} B beside a table of {} B", found.geometry.row_bytes, format.row_bytes())
        } else {
            opened.tables.push(open_table(place, found, &mut files)?);
            continue;
        };
        return Err(StoreError::Geometry { path: place.clone(), why });
    }
    opened.files = files.into_files();
    Ok(Some(opened))
}

/// Checks and composes the table of one folder.
pub(crate) fn open_table(folder: &Path, found: &Found, files: &mut FileSet) -> Result<Table, StoreError> {
    let RawGeometry { layer, rows, row_bytes, rows_per_shard, format } = found.geometry;
    let bad = |why: String| StoreError::Geometry { path: found.path.clone(), why };
    if row_bytes == 0 || rows_per_shard == 0 || rows == Some(0) {
        return Err(bad("rows, row bytes and rows per shard must be at least 1".into()));
    }
    if let Some(format) = format.filter(|f| f.row_bytes() != row_bytes) {
        return Err(bad(format!("{format} takes {} bytes a row, not {row_bytes}", format.row_bytes())));
    }
    let stride = u64::from(row_bytes);
    let full = rows_per_shard.checked_mul(stride).ok_or_else(|| bad("a shard exceeds 2^64 bytes".into()))?;
    let shards = list_shards(folder)?;
    let expected = match (rows, found.shards) {
        (Some(rows), _) => rows.div_ceil(rows_per_shard),
        (None, Some(shards)) => shards,
        (None, None) => shards.last_key_value().map_or(0, |(n, _)| n.saturating_add(1)),
    };
    if expected == 0 || expected > SHARDS_MAX {
        return Err(bad(format!("{expected} shards; 1 to {SHARDS_MAX} are possible")));
    }
    let missing: Vec<String> =
        (0..expected).filter(|n| !shards.contains_key(n)).take(9).map(|n| n.to_string()).collect();
    if !missing.is_empty() {
        return Err(StoreError::ShardsMissing {
            path: folder.into(),
            what: "shard_*.bin".into(),
            found: shards.range(..expected).count() as u64,
            expected,
            missing: missing.join(", "),
        });
    }
    if let Some((number, (_, path))) = shards.range(expected..).next() {
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        return Err(bad(format!("{name} is shard {number}, but there should be only {expected}")));
    }
    let mut list = Vec::new();
    for (number, (prefix, path)) in shards {
        let file = files.add(&path)?;
        let len = files.len(file);
        let is_last = number + 1 == expected;
        let here = match rows {
            Some(rows) if is_last => rows - number * rows_per_shard,
            // The last shard may be short; how short, only its length tells.
            None if is_last => (len / stride).clamp(1, rows_per_shard),
            _ => rows_per_shard,
        };
        let want = if here == rows_per_shard { full } else { here * stride };
        let padding = if prefix == "badge_" { (BADGE_BYTES / stride).max(1) * stride } else { 1 };
        if len < want || len - want >= padding {
            return Err(StoreError::FileLength { path, len, expected: want });
        }
        list.push(Shard { file, offset: 0, rows: here });
    }
    let rows = list.iter().fold(0u64, |sum, s| sum.saturating_add(s.rows));
    let part = Part { bytes: row_bytes, stride, rows_per_shard, shards: list };
    Ok(Table::new(layer, rows, vec![part], files.as_slice())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_shards_and_folders() {
        assert_eq!(shard_number("shard_000.bin"), Some(("shard_", 0)));
        assert_eq!(shard_number("badge_1000.bin"), Some(("badge_", 1000)));
        assert_eq!(shard_number("shard_.bin"), None);
        assert_eq!(shard_number("shard_1.bin.tmp"), None);
        assert_eq!(layer_of_folder(Path::new("x/layer_14")), Some(14));
        assert_eq!(layer_of_folder(Path::new("layer1")), Some(1));
        assert_eq!(layer_of_folder(Path::new("table")), None);
    }
}
