//! Opening a folder: what it holds is told by its content, not by its name.
//!
//! Order of discovery: our manifest; the caller's geometry (raw shards without a manifest); safetensors; raw shards; a folder of raw
//! tables; a Hugging Face cache entry. What is opened is complete: all files that hold rows exist, are as long as the geometry says, and
//! every row has its extents. Headers and constants are read, row data never.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::checkpoint::{Checkpoint, open_checkpoint};
use crate::config::ModelConfig;
use crate::error::StoreError;
use crate::format::RowFormat;
use crate::manifest;
use crate::raw::{self, RawGeometry};
use crate::self_proof::SelfProof;
use crate::table::{DataFile, Table};

/// Slack of a file's room on disk, bytes.
const PAGE: u64 = 4096;

/// How the rows are laid out on disk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum SourceKind {
    /// A Hugging Face checkpoint, read in place.
    Safetensors,
    /// `shard_000.bin` and so on, rows back to back.
    RawShards,
    /// Our own records: one extent a row.
    Packed,
}

impl SourceKind {
    /// A name for messages and reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Safetensors => "safetensors checkpoint",
            Self::RawShards => "raw shards",
            Self::Packed => "packed records",
        }
    }
}

/// Constants of one table as the checkpoint stores them; a list that it does not store is empty.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LayerConstants {
    /// Zero-based decoder layer.
    pub layer: u16,
    /// Multiplier of each position of the window, the token itself first.
    #[serde(default)]
    pub multipliers: Vec<u64>,
    /// First row of each hash column.
    #[serde(default)]
    pub offsets: Vec<u64>,
    /// Rows (the prime) of each hash column.
    #[serde(default)]
    pub primes: Vec<u64>,
}

impl LayerConstants {
    /// Rows of all columns together, without padding; `None` if the primes are not stored.
    pub fn rows_addressed(&self) -> Option<u64> {
        if self.primes.is_empty() {
            return None;
        }
        self.primes.iter().try_fold(0u64, |sum, &p| sum.checked_add(p))
    }

    /// Why the lists contradict each other, if they do.
    pub(crate) fn inconsistency(&self) -> Option<String> {
        if self.primes.contains(&0) {
            return Some("stands beside a column of no rows".into());
        }
        if !self.primes.is_empty() && self.rows_addressed().is_none() {
            return Some("stands beside columns of more than 2^64 rows".into());
        }
        if self.offsets.is_empty() || self.primes.is_empty() {
            return None;
        }
        if self.offsets.len() != self.primes.len() {
            return Some(format!("has {} columns, the column sizes have {}", self.offsets.len(), self.primes.len()));
        }
        let mut sum = 0u64;
        for (column, (&offset, &prime)) in self.offsets.iter().zip(&self.primes).enumerate() {
            if offset != sum {
                return Some(format!("says {offset} for column {column}, the sizes before it sum to {sum}"));
            }
            sum += prime;
        }
        None
    }
}

/// What a folder holds.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Opened {
    /// The folder (or single file) that was opened.
    pub root: PathBuf,
    /// How the rows are laid out.
    pub source: SourceKind,
    /// Files that hold rows, one entry per inode.
    pub files: Vec<DataFile>,
    /// One table per layer, in the order of the configuration or manifest.
    pub tables: Vec<Table>,
    /// The model's configuration, if there is one.
    pub config: Option<ModelConfig>,
    /// Constants found in checkpoint tensors or the manifest, in table order; empty if there are none.
    pub constants: Vec<LayerConstants>,
    /// A spec that a manifest of ours carries; its meaning belongs to the face.
    pub spec_json: Option<String>,
    /// What the bytes of a row mean; the same for all tables.
    pub row_format: RowFormat,
    /// Set if the rows prove their own identity (synthetic tables).
    pub self_proof: Option<SelfProof>,
    /// `tokenizer.json` beside the table, if there is one.
    pub tokenizer_json: Option<PathBuf>,
    /// Remarks that an operator should see: what was ignored, assumed or is unusual.
    pub notes: Vec<String>,
}

impl Opened {
    pub(crate) fn new(root: &Path, source: SourceKind, row_format: RowFormat) -> Self {
        Self {
            root: root.into(),
            source,
            files: Vec::new(),
            tables: Vec::new(),
            config: None,
            constants: Vec::new(),
            spec_json: None,
            row_format,
            self_proof: None,
            tokenizer_json: None,
            notes: Vec::new(),
        }
    }

    /// Notes files that take less room than they are long: preallocated and never written, or half a download.
    fn note_holes(&mut self) -> Result<(), StoreError> {
        let mut sparse = Vec::new();
        for file in &self.files {
            let meta = fs::metadata(&file.path).map_err(|e| StoreError::file(&file.path, "look at", e))?;
            if meta.blocks() * 512 + PAGE < file.len {
                sparse.push(&file.path);
            }
        }
        if let Some(first) = sparse.first() {
            self.notes.push(format!(
                "{} file(s) take less room on disk than they are long, {} for one: rows in holes read as zeros (verify finds them)",
                sparse.len(),
                first.display()
            ));
        }
        Ok(())
    }

    /// Bytes of all rows of all tables.
    pub fn row_bytes_total(&self) -> u64 {
        self.tables.iter().map(|t| t.rows().saturating_mul(t.row_bytes().into())).fold(0, u64::saturating_add)
    }
}

/// Opens the tables of a folder, or of a single safetensors file.
///
/// `geometry` describes raw shards that have no manifest; with it, nothing but raw shards is looked for.
///
/// # Errors
/// [`StoreError`], which names the file, what is wrong with it and what to do. Nothing is opened in part.
pub fn open(path: &Path, geometry: Option<&RawGeometry>) -> Result<Opened, StoreError> {
    let meta = fs::metadata(path).map_err(|e| StoreError::io(path, "open", e))?;
    let mut opened = if meta.is_dir() { open_folder(path, geometry)? } else { open_file(path)? };
    let folder = if meta.is_dir() { opened.root.clone() } else { path.parent().unwrap_or(path).to_path_buf() };
    let tokenizer = folder.join("tokenizer.json");
    if tokenizer.is_file() {
        opened.tokenizer_json = Some(tokenizer);
    }
    opened.note_holes()?;
    Ok(opened)
}

fn open_folder(path: &Path, geometry: Option<&RawGeometry>) -> Result<Opened, StoreError> {
    if let Some(manifest) = manifest::read(path)? {
        return manifest::open(path, manifest);
    }
    if let Some(geometry) = geometry {
        return raw::open(path, Some(geometry));
    }
    let listing = Listing::of(path)?;
    if let Some(checkpoint) = Checkpoint::of_folder(path)? {
        return open_checkpoint(checkpoint, path)?.ok_or_else(|| StoreError::Unrecognized {
            path: path.into(),
            saw:
                "safetensors without n-gram tables: no ple_embedding.ngram_embedding.* and no *.engram.embed.* tensors"
                    .into(),
        });
    }
    if raw::present(path)? {
        return raw::open(path, None);
    }
    if let Some(opened) = raw::open_many(path)? {
        return Ok(opened);
    }
    if let Some(snapshot) = listing.only_snapshot(path)? {
        let mut opened = open_folder(&snapshot, None)?;
        opened.notes.push(format!("a Hugging Face cache entry: opened its snapshot {}", snapshot.display()));
        return Ok(opened);
    }
    if listing.names.is_empty() {
        return Err(StoreError::Empty { path: path.into() });
    }
    if listing.names.iter().any(|n| n.ends_with(".gguf")) {
        return Err(gguf(path));
    }
    Err(StoreError::Unrecognized { path: path.into(), saw: listing.summary() })
}

/// A single file: its content tells what it is (files in a Hugging Face cache have no extension).
fn open_file(path: &Path) -> Result<Opened, StoreError> {
    let mut start = Vec::new();
    let file = fs::File::open(path).map_err(|e| StoreError::io(path, "open", e))?;
    file.take(9).read_to_end(&mut start).map_err(|e| StoreError::io(path, "read", e))?;
    let unknown = |saw: &str| StoreError::Unrecognized { path: path.into(), saw: saw.into() };
    if start.starts_with(b"GGUF") {
        return Err(gguf(path));
    }
    let by_name = path.extension().is_some_and(|e| e == "safetensors");
    if start.get(8) != Some(&b'{') && !by_name {
        return Err(unknown("a file that is neither safetensors nor a folder"));
    }
    let checkpoint = Checkpoint::of_files(path, vec![path.into()])?;
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut opened =
        open_checkpoint(checkpoint, folder)?.ok_or_else(|| unknown("a safetensors file without n-gram tables"))?;
    opened.root = path.into();
    Ok(opened)
}

fn gguf(path: &Path) -> StoreError {
    StoreError::Unsupported {
        path: path.into(),
        what: "GGUF".into(),
        remedy: "use the safetensors checkpoint that the GGUF was made from",
    }
}

/// Names in a folder, for discovery and for the message when nothing is found.
struct Listing {
    names: Vec<String>,
}

impl Listing {
    fn of(path: &Path) -> Result<Self, StoreError> {
        let mut names = Vec::new();
        for entry in fs::read_dir(path).map_err(|e| StoreError::io(path, "list", e))? {
            let entry = entry.map_err(|e| StoreError::io(path, "list", e))?;
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(Self { names })
    }

    /// The snapshot of a cache entry (`snapshots/<revision>`), if there is exactly one.
    fn only_snapshot(&self, path: &Path) -> Result<Option<PathBuf>, StoreError> {
        if self.names.binary_search_by(|n| n.as_str().cmp("snapshots")).is_err() {
            return Ok(None);
        }
        let snapshots = path.join("snapshots");
        let revisions = if snapshots.is_dir() { Self::of(&snapshots)?.names } else { return Ok(None) };
        match revisions.as_slice() {
            [one] => Ok(Some(snapshots.join(one))),
            many => Err(StoreError::Unrecognized {
                path: path.into(),
                saw: format!("a Hugging Face cache entry with {} snapshots: give one of snapshots/*", many.len()),
            }),
        }
    }

    fn summary(&self) -> String {
        let first = self.names.iter().take(4).map(String::as_str).collect::<Vec<_>>().join(", ");
        match self.names.len() {
            n if n > 4 => format!("it has {first} and {} more", n - 4),
            _ => format!("it has {first}"),
        }
    }
}
