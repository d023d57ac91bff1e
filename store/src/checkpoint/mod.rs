//! Hugging Face checkpoints read in place: which file holds which tensor.
//!
//! A checkpoint is a folder with an index (`*.safetensors.index.json`) or one or more `*.safetensors` without one. With an index it is
//! the index that counts: stray files are ignored, and only headers of files that hold table tensors are read. **Files of the index that
//! hold no table tensor may be absent**: whoever serves rows need not download the rest of the model.
//!
//! Three faults that look alike are told apart: the index does not name a tensor; the file that it names is missing or lacks it; another
//! file holds it.

mod header;
mod qwen;
mod v41;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use crate::config::{ModelConfig, find_config};
use crate::error::StoreError;
use crate::files::{FileSet, read_json_as};
use crate::json::Unique;
use crate::opened::{LayerConstants, Opened, SourceKind};

pub use header::{Dtype, HEADER_BYTES_MAX, HeaderFault};
pub(crate) use header::{Header, Tensor};

/// Largest index that is read, bytes (a model of 96,085 tensors has 9 MB).
const INDEX_BYTES_MAX: u64 = 256 << 20;

#[derive(Deserialize)]
struct Index {
    weight_map: Unique<String>,
}

/// Tensors by name, and the headers that were needed so far.
pub(crate) struct Checkpoint {
    /// The folder or file that was opened, for messages.
    pub(crate) root: PathBuf,
    index: Option<PathBuf>,
    /// Tensor name to path of the file that holds it.
    map: BTreeMap<String, PathBuf>,
    headers: BTreeMap<PathBuf, Header>,
}

impl Checkpoint {
    /// Reads the index of a folder, or the headers of its files if it has none. `None`: no safetensors here.
    pub(crate) fn of_folder(folder: &Path) -> Result<Option<Self>, StoreError> {
        let mut files = Vec::new();
        let mut indexes = Vec::new();
        for entry in fs::read_dir(folder).map_err(|e| StoreError::io(folder, "list", e))? {
            let path = entry.map_err(|e| StoreError::io(folder, "list", e))?.path();
            let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            if name.ends_with(".safetensors.index.json") {
                indexes.push(path);
            } else if name.ends_with(".safetensors") {
                files.push(path);
            }
        }
        indexes.sort();
        files.sort();
        // Two indexes side by side (a variant, a backup): the one with the usual name counts.
        let usual = folder.join("model.safetensors.index.json");
        if let Some(index) = indexes.iter().find(|&p| *p == usual).or(indexes.first()) {
            return Self::of_index(folder, index).map(Some);
        }
        if files.is_empty() { Ok(None) } else { Self::of_files(folder, files).map(Some) }
    }

    fn of_index(folder: &Path, index: &Path) -> Result<Self, StoreError> {
        let what = "the index of the checkpoint";
        let Some(Index { weight_map }) = read_json_as(index, what, INDEX_BYTES_MAX)? else {
            return Err(StoreError::FileMissing { path: index.into() });
        };
        let mut map = BTreeMap::new();
        for (tensor, file) in weight_map.0 {
            let inside = Path::new(&file).components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir));
            if file.is_empty() || !inside {
                return Err(StoreError::IndexPath { index: index.into(), tensor, file });
            }
            map.insert(tensor, folder.join(file));
        }
        Ok(Self { root: folder.into(), index: Some(index.into()), map, headers: BTreeMap::new() })
    }

    /// A checkpoint without an index: all the given files.
    pub(crate) fn of_files(root: &Path, files: Vec<PathBuf>) -> Result<Self, StoreError> {
        let mut checkpoint = Self { root: root.into(), index: None, map: BTreeMap::new(), headers: BTreeMap::new() };
        for path in files {
            let header = load_header(&path)?;
            for tensor in header.keys() {
                if let Some(first) = checkpoint.map.insert(tensor.clone(), path.clone()) {
                    return Err(StoreError::TensorTwice { tensor: tensor.clone(), first, second: path });
                }
            }
            checkpoint.headers.insert(path, header);
        }
        Ok(checkpoint)
    }

    /// All tensor names, in byte order (so `shard_10` comes before `shard_2`: parse the number).
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.map.keys().map(String::as_str)
    }

    pub(crate) fn has(&self, tensor: &str) -> bool {
        self.map.contains_key(tensor)
    }

    /// Where to point in messages about the whole: the index, else the folder or file.
    pub(crate) fn place(&self) -> &Path {
        self.index.as_deref().unwrap_or(&self.root)
    }

    /// The file of a tensor that [`Checkpoint::names`] gave.
    pub(crate) fn file_of(&self, tensor: &str) -> &Path {
        self.map.get(tensor).map_or(&self.root, PathBuf::as_path)
    }

    /// Refuses, all at once, files that hold any of `tensors` and are not on disk.
    pub(crate) fn need_files<'a>(&self, tensors: impl Iterator<Item = &'a str>) -> Result<(), StoreError> {
        let needed: BTreeSet<&PathBuf> = tensors.filter_map(|t| self.map.get(t)).collect();
        let missing = needed.into_iter().filter(|p| !p.exists()).map(|p| self.short(p)).collect::<Vec<_>>();
        match &self.index {
            Some(index) if !missing.is_empty() => {
                Err(StoreError::IndexFilesMissing { index: index.clone(), files: missing })
            }
            _ => Ok(()),
        }
    }

    /// Number of files that the index names and the disk lacks.
    pub(crate) fn absent_files(&self) -> usize {
        let all: BTreeSet<&PathBuf> = self.map.values().collect();
        all.into_iter().filter(|p| !p.exists()).count()
    }

    fn short(&self, path: &Path) -> String {
        path.strip_prefix(&self.root).unwrap_or(path).display().to_string()
    }

    /// The tensor and its file.
    ///
    /// # Errors
    /// Not in the index, file missing, file lacks it, another file has it: each its own [`StoreError`].
    pub(crate) fn tensor(&mut self, name: &str) -> Result<(Tensor, PathBuf), StoreError> {
        let Some(path) = self.map.get(name).cloned() else {
            return Err(match &self.index {
                Some(index) => StoreError::TensorNotInIndex { index: index.clone(), tensor: name.into() },
                None => StoreError::TensorMissing { path: self.root.clone(), tensor: name.into() },
            });
        };
        if !self.headers.contains_key(&path) {
            self.need_files(std::iter::once(name))?;
            self.headers.insert(path.clone(), load_header(&path)?);
        }
        if let Some(tensor) = self.headers.get(&path).and_then(|h| h.get(name)) {
            return Ok((tensor.clone(), path));
        }
        Err(self.misplaced(name, path))
    }

    /// The index is wrong about `name`: looks whether another file has it.
    fn misplaced(&self, tensor: &str, file: PathBuf) -> StoreError {
        let (tensor, index) = (tensor.to_owned(), self.place().to_path_buf());
        let others: BTreeSet<&PathBuf> = self.map.values().filter(|p| **p != file && p.exists()).collect();
        let holds = |path: &&PathBuf| match self.headers.get(*path) {
            Some(header) => header.contains_key(&tensor),
            None => load_header(path).is_ok_and(|header| header.contains_key(&tensor)),
        };
        match others.into_iter().find(holds) {
            Some(found) => StoreError::TensorElsewhere { index, tensor, file, found: found.clone() },
            None => StoreError::TensorNotInFile { file, tensor, index },
        }
    }

    /// Reads a small tensor whole.
    pub(crate) fn read(&mut self, name: &str, len_max: u64) -> Result<(Tensor, PathBuf, Vec<u8>), StoreError> {
        let (tensor, path) = self.tensor(name)?;
        if tensor.len > len_max {
            let expected = format!("at most {len_max} bytes");
            return Err(StoreError::TensorShape { path, tensor: name.into(), got: tensor.describe(), expected });
        }
        let mut bytes = vec![0; tensor.len as usize];
        let file = File::open(&path).map_err(|e| StoreError::file(&path, "open", e))?;
        file.read_exact_at(&mut bytes, tensor.offset).map_err(|e| StoreError::file(&path, "read", e))?;
        Ok((tensor, path, bytes))
    }
}

fn load_header(path: &Path) -> Result<Header, StoreError> {
    let file = File::open(path).map_err(|e| StoreError::file(path, "open", e))?;
    let meta = file.metadata().map_err(|e| StoreError::file(path, "look at", e))?;
    if !meta.is_file() {
        let saw = "a folder or device where a safetensors file should be".to_owned();
        return Err(StoreError::Unrecognized { path: path.into(), saw });
    }
    header::read_header(&file, meta.len(), path)
}

/// Refuses a table tensor of a type that the format does not know.
fn known_dtype(name: &str, tensor: &Tensor, path: &Path) -> Result<(), StoreError> {
    match tensor.dtype.bits() {
        Some(_) => Ok(()),
        None => Err(StoreError::DtypeUnknown {
            path: path.into(),
            tensor: name.into(),
            dtype: tensor.dtype.as_str().into(),
        }),
    }
}

/// The zero-based decoder layer in a tensor name: the number behind the last `layers.`.
fn layer_of(name: &str) -> Option<u16> {
    let rest = &name[name.rfind("layers.")? + "layers.".len()..];
    rest[..rest.find('.').unwrap_or(rest.len())].parse().ok()
}

/// Opens the tables of a checkpoint. `None` if it holds none that this crate knows.
///
/// `folder` is where `config.json` and `tokenizer.json` are looked for.
pub(crate) fn open_checkpoint(mut checkpoint: Checkpoint, folder: &Path) -> Result<Option<Opened>, StoreError> {
    let found = find_config(folder)?;
    let (config, config_path) = found.map_or((None, None), |(c, p)| (Some(c), Some(p)));
    let is_qwen = qwen::present(&checkpoint);
    let is_v41 = v41::present(&checkpoint);
    let mut files = FileSet::default();
    let place = config_path.as_deref().unwrap_or(folder);
    let parts = match (&config, is_qwen, is_v41) {
        (Some(ModelConfig::QwenPle(c)), true, _) => qwen::open(&mut checkpoint, Some(c), place, &mut files)?,
        (Some(ModelConfig::DeepseekV41(c)), _, true) => v41::open(&mut checkpoint, Some(c), place, &mut files)?,
        (None, true, false) => qwen::open(&mut checkpoint, None, place, &mut files)?,
        (None, false, true) => v41::open(&mut checkpoint, None, place, &mut files)?,
        (Some(ModelConfig::QwenPle(_)), false, _) => {
            return Err(no_tensor(&checkpoint, "...ple_embedding.ngram_embedding.shard_0.weight"));
        }
        (Some(ModelConfig::DeepseekV41(c)), _, false) => {
            let layer = c.engram_layer_ids.first().copied().unwrap_or_default();
            return Err(no_tensor(&checkpoint, &format!("layers.{layer}.engram.embed.weight")));
        }
        (None, _, _) => return Ok(None),
    };
    let mut opened = Opened::new(folder, SourceKind::Safetensors, parts.format);
    (opened.tables, opened.constants, opened.notes) = (parts.tables, parts.constants, parts.notes);
    opened.files = files.into_files();
    let absent = checkpoint.absent_files();
    if absent > 0 {
        opened
            .notes
            .push(format!("{absent} file(s) of the index that hold no table are not here; rows do not need them"));
    }
    if config.is_none() {
        opened.notes.push("no config.json with n-gram keys: the spec must come from elsewhere".into());
    }
    opened.config = config;
    Ok(Some(opened))
}

fn no_tensor(checkpoint: &Checkpoint, tensor: &str) -> StoreError {
    match &checkpoint.index {
        Some(index) => StoreError::TensorNotInIndex { index: index.clone(), tensor: tensor.into() },
        None => StoreError::TensorMissing { path: checkpoint.root.clone(), tensor: tensor.into() },
    }
}

/// What a model's reader found.
struct Parts {
    tables: Vec<crate::table::Table>,
    constants: Vec<LayerConstants>,
    format: crate::format::RowFormat,
    notes: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_parsed_from_any_prefix() {
        assert_eq!(layer_of("model.language_model.layers.1.ple."), Some(1));
        assert_eq!(layer_of("layers.14.engram.embed.weight"), Some(14));
        assert_eq!(layer_of("vision.layers.3.text.layers.20.ple.x"), Some(20));
        assert_eq!(layer_of("layers.x.ple"), None);
        assert_eq!(layer_of("ple.ple_embedding."), None);
        assert_eq!(layer_of("layers.70000.ple"), None);
    }
}
