//! `engram-sched.json`: the manifest of packed records, and the card of synthetic tables in any layout.
//!
//! For packed records it is the geometry. Beside shards or a checkpoint that we wrote it only adds what those formats cannot say: the spec
//! blob and that the rows prove themselves; the geometry is then read from the format itself, so that synthetic tables take the same path
//! as real ones.
//!
//! # Versions
//! `version` is the format written, `reader_min` the oldest reader that understands it. A reader opens everything with
//! `reader_min <= VERSION` and ignores keys that it does not know; a writer that adds what old readers may ignore raises `version` alone,
//! one that changes the meaning of old keys raises both.

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::checkpoint::{Checkpoint, open_checkpoint};
use crate::config::ModelConfig;
use crate::error::StoreError;
use crate::files::{FileSet, read_json_as};
use crate::format::RowFormat;
use crate::opened::{LayerConstants, Opened, SourceKind};
use crate::raw;
use crate::self_proof::SelfProof;
use crate::table::{Part, Shard, Table};

/// Name of the manifest.
pub const MANIFEST: &str = "engram-sched.json";

/// Version of the format that this crate writes and reads.
pub const VERSION: u32 = 1;

pub(crate) const MAGIC: &str = "engram-sched table";

/// Largest manifest that is read, bytes.
const MANIFEST_BYTES_MAX: u64 = 256 << 20;

/// Only what decides whether the rest may be read.
#[derive(Deserialize)]
struct Head {
    magic: String,
    version: u32,
    reader_min: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ManifestLayout {
    Packed,
    Shards,
    Safetensors,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) magic: String,
    pub(crate) version: u32,
    pub(crate) reader_min: u32,
    pub(crate) layout: ManifestLayout,
    pub(crate) row_format: RowFormat,
    pub(crate) tables: Vec<ManifestTable>,
    /// Present if the rows prove themselves: then every table has a tag.
    #[serde(default)]
    pub(crate) self_proof: bool,
    /// A `config.json`, for layouts that have none of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) config: Option<Value>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) constants: Vec<LayerConstants>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) spec: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ManifestTable {
    pub(crate) layer: u16,
    pub(crate) rows: u64,
    #[serde(default)]
    pub(crate) tag: u64,
    /// Rows that were written, if not all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sparse_rows: Option<Vec<u64>>,
    /// Folder of the table's shards, below the manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) folder: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rows_per_file: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) files: Vec<ManifestFile>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ManifestFile {
    pub(crate) name: String,
    /// Bytes.
    pub(crate) len: u64,
}

/// Reads and checks the manifest of a folder; `None` if it has none.
pub(crate) fn read(folder: &Path) -> Result<Option<Manifest>, StoreError> {
    let path = folder.join(MANIFEST);
    let what = "the manifest";
    let Some(value) = read_json_as::<Value>(&path, what, MANIFEST_BYTES_MAX)? else { return Ok(None) };
    let json = |source| StoreError::Json { path: path.clone(), what, source };
    let head = Head::deserialize(&value).map_err(json)?;
    if head.magic != MAGIC {
        let why = format!("is not a manifest of this program (magic {:?})", head.magic);
        return Err(StoreError::Manifest { path, why });
    }
    if head.reader_min > VERSION {
        let (version, reader_min) = (head.version, head.reader_min);
        return Err(StoreError::ManifestVersion { path, version, reader_min, ours: VERSION });
    }
    Manifest::deserialize(value).map(Some).map_err(json)
}

/// A name inside of the folder, nothing else.
fn inside(path: &Path, folder: &Path, name: &str) -> Result<PathBuf, StoreError> {
    let plain = !name.is_empty() && Path::new(name).components().all(|c| matches!(c, Component::Normal(_)));
    if plain {
        return Ok(folder.join(name));
    }
    Err(StoreError::Manifest { path: path.into(), why: format!("names {name:?}, which is not inside the folder") })
}

/// Opens what a manifest describes.
pub(crate) fn open(folder: &Path, manifest: Manifest) -> Result<Opened, StoreError> {
    let path = folder.join(MANIFEST);
    let wrong = |why: String| StoreError::Manifest { path: path.clone(), why };
    if manifest.tables.is_empty() {
        return Err(wrong("lists no table".into()));
    }
    for (index, table) in manifest.tables.iter().enumerate() {
        if manifest.tables[..index].iter().any(|t| t.layer == table.layer) {
            return Err(wrong(format!("lists layer {} twice", table.layer)));
        }
    }
    let mut opened = match manifest.layout {
        ManifestLayout::Packed => open_packed(folder, &path, &manifest)?,
        ManifestLayout::Shards => open_shards(folder, &path, &manifest)?,
        ManifestLayout::Safetensors => {
            let missing = || wrong("says that this is a checkpoint, but there are no safetensors".into());
            let checkpoint = Checkpoint::of_folder(folder)?.ok_or_else(missing)?;
            open_checkpoint(checkpoint, folder)?.ok_or_else(missing)?
        }
    };
    // What the format says and what the manifest says must be the same tables.
    let said = manifest.tables.iter().map(|t| (t.layer, t.rows));
    if !opened.tables.iter().map(|t| (t.layer(), t.rows())).eq(said) || opened.row_format != manifest.row_format {
        return Err(wrong("describes other tables than the files beside it hold".into()));
    }
    if manifest.self_proof {
        let sparse = manifest.tables.iter().any(|t| t.sparse_rows.is_some());
        let rows = |t: &ManifestTable| t.sparse_rows.clone().unwrap_or_default();
        for table in &manifest.tables {
            let list = table.sparse_rows.as_deref().unwrap_or_default();
            if list.windows(2).any(|w| w[0] >= w[1]) || list.last().is_some_and(|&r| r >= table.rows) {
                return Err(wrong(format!("lists sample rows of layer {} out of order or range", table.layer)));
            }
        }
        opened.self_proof = Some(SelfProof {
            tags: manifest.tables.iter().map(|t| t.tag).collect(),
            sparse_rows: sparse.then(|| manifest.tables.iter().map(rows).collect()),
        });
        if sparse {
            opened.notes.push("a sparse table: only a sample of its rows was written, the others are holes".into());
        }
    }
    if opened.config.is_none() {
        opened.config = match &manifest.config {
            Some(value) => ModelConfig::from_json(value, &path)?,
            None => None,
        };
    }
    if opened.constants.is_empty() {
        opened.constants = manifest.constants;
    }
    opened.spec_json = manifest.spec;
    if manifest.version > VERSION {
        opened.notes.push(format!(
            "the manifest is of format {}, newer than {VERSION}: new keys are ignored",
            manifest.version
        ));
    }
    Ok(opened)
}

fn open_packed(folder: &Path, path: &Path, manifest: &Manifest) -> Result<Opened, StoreError> {
    let wrong = |why: String| StoreError::Manifest { path: path.into(), why };
    let mut files = FileSet::default();
    let mut opened = Opened::new(folder, SourceKind::Packed, manifest.row_format);
    let bytes = manifest.row_format.row_bytes();
    if bytes == 0 {
        return Err(wrong("gives rows of no bytes".into()));
    }
    for table in &manifest.tables {
        let per_file = table.rows_per_file.unwrap_or(table.rows);
        if table.rows == 0 || per_file == 0 || table.files.len() as u64 != table.rows.div_ceil(per_file) {
            return Err(wrong(format!("gives layer {} files that do not hold its rows", table.layer)));
        }
        let mut shards = Vec::new();
        for (index, entry) in table.files.iter().enumerate() {
            let rows = per_file.min(table.rows - index as u64 * per_file);
            let data = inside(path, folder, &entry.name)?;
            let file = files.add(&data)?;
            let expected = rows.checked_mul(bytes.into()).filter(|&n| n == entry.len).ok_or_else(|| {
                wrong(format!("gives {} another length than {rows} rows of {bytes} bytes take", entry.name))
            })?;
            if files.len(file) != expected {
                return Err(StoreError::FileLength { path: data, len: files.len(file), expected });
            }
            shards.push(Shard { file, offset: 0, rows });
        }
        let part = Part { bytes, stride: bytes.into(), rows_per_shard: per_file, shards };
        opened.tables.push(Table::new(table.layer, table.rows, vec![part], files.as_slice())?);
    }
    opened.files = files.into_files();
    Ok(opened)
}

fn open_shards(folder: &Path, path: &Path, manifest: &Manifest) -> Result<Opened, StoreError> {
    let mut files = FileSet::default();
    let mut opened = Opened::new(folder, SourceKind::RawShards, manifest.row_format);
    for table in &manifest.tables {
        let place = match &table.folder {
            Some(name) => inside(path, folder, name)?,
            None => folder.to_path_buf(),
        };
        let geometry = raw::read_geometry(&place)?
            .ok_or_else(|| StoreError::FileMissing { path: place.join(raw::RAW_MANIFEST) })?;
        let geometry = geometry.with_layer(table.layer);
        opened.tables.push(raw::open_table(&place, &geometry, &mut files)?);
    }
    if opened.tables.iter().any(|t| t.row_bytes() != manifest.row_format.row_bytes()) {
        let why = "describes rows of another width than the shards hold".into();
        return Err(StoreError::Manifest { path: path.into(), why });
    }
    opened.files = files.into_files();
    Ok(opened)
}
