//! Making synthetic tables: rows that prove themselves, in every layout that can be opened.
//!
//! A plan becomes a list of files, a file a list of pieces (a header, zeros, rows); one writer fills them all, whole or sparse. Everything
//! is written into a folder beside the target, `.<name>.partial-<pid>`, and renamed at the end: at no time does the target hold half a
//! table. Whatever ends the work early (error, full disk, the caller, a panic) removes the partial folder.

mod layouts;
mod out;
mod pieces;

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::config::ModelConfig;
use crate::error::StoreError;
use crate::format::RowFormat;
use crate::opened::LayerConstants;
use out::Partial;
use pieces::{FilePlan, Source, Writer};

/// The layout of a synthetic table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum SynthLayout {
    /// Packed records with a manifest.
    Packed,
    /// Raw shards with an EngramDB manifest.
    Shards,
    /// A checkpoint: config.json, index, safetensors files.
    Safetensors,
}

/// One table of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SynthTable {
    /// Zero-based decoder layer.
    pub layer: u16,
    /// Rows that the hash addresses.
    pub rows: u64,
    /// Rows that are stored, padding included (>= `rows`); all of them get content.
    pub padded_rows: u64,
    /// Tag of the content rule: 0 for Qwen, the layer for V4.1.
    pub tag: u64,
}

/// Which rows of a sparse table are written.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SparseSample {
    /// Rows to write in each table beside the first, the last, the ends of its shards and those around byte 2^31 and 2^32, which are
    /// always written.
    /// One list for each table; order and repetition do not matter; rows beyond the table are refused.
    pub rows: Vec<Vec<u64>>,
}

/// A synthetic table to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SynthPlan {
    /// Folder to make; it must not exist, or be empty.
    pub out: PathBuf,
    /// Layout.
    pub layout: SynthLayout,
    /// Tables in order.
    pub tables: Vec<SynthTable>,
    /// What a row is.
    pub row_format: RowFormat,
    /// Shards of a table in the raw layout (at least 1; the checkpoint layout takes `split_ngram_parts` of the configuration).
    pub shards: u32,
    /// Configuration to write; required for the checkpoint layout.
    pub config: Option<ModelConfig>,
    /// Constants to write (into tensors for Qwen checkpoints, else into the manifest).
    pub constants: Vec<LayerConstants>,
    /// Opaque spec to carry in the manifest.
    pub spec_json: Option<String>,
    /// Write only a sample of the rows, at their true offsets in files of the true size.
    pub sparse: Option<SparseSample>,
}

/// What [`synth`](fn@synth) made.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Summary {
    /// The folder.
    pub out: PathBuf,
    /// Files in it.
    pub files: u64,
    /// Length of all files, bytes.
    pub bytes: u64,
    /// Bytes that were written; less than `bytes` for a sparse table.
    pub bytes_written: u64,
    /// Rows that were written, of all tables.
    pub rows_written: u64,
    /// Partial folders of earlier calls for this target that were killed; they were removed first.
    pub leftovers_removed: Vec<PathBuf>,
}

impl SynthPlan {
    /// Length of all files of the finished table, bytes (for a sparse table: logical, not on disk).
    ///
    /// # Errors
    /// [`StoreError::Plan`] if the plan cannot be carried out.
    pub fn bytes_total(&self) -> Result<u64, StoreError> {
        Ok(layouts::files(self)?.iter().map(FilePlan::len).sum())
    }

    /// Bytes that the finished table takes on disk; an upper bound for a sparse one.
    ///
    /// # Errors
    /// [`StoreError::Plan`] if the plan cannot be carried out.
    pub fn bytes_needed(&self) -> Result<u64, StoreError> {
        let files = layouts::files(self)?;
        let samples = self.samples()?;
        Ok(files.iter().map(|f| f.bytes_needed(samples.as_deref())).sum())
    }

    /// For a sparse plan, the rows of each table that are written, ascending.
    ///
    /// # Errors
    /// [`StoreError::Plan`] if a row is beyond its table or the lists do not match the tables.
    pub fn samples(&self) -> Result<Option<Vec<Vec<u64>>>, StoreError> {
        let Some(sparse) = &self.sparse else { return Ok(None) };
        if sparse.rows.len() != self.tables.len() {
            return Err(self.wrong(format!(
                "{} lists of sample rows for {} tables",
                sparse.rows.len(),
                self.tables.len()
            )));
        }
        let mut all = Vec::new();
        for (table, rows) in self.tables.iter().zip(&sparse.rows) {
            let end = table.padded_rows;
            if let Some(row) = rows.iter().find(|&&row| row >= end) {
                return Err(self.wrong(format!("sample row {row} of layer {}, which has {end} rows", table.layer)));
            }
            let mut rows = rows.clone();
            rows.extend(self.landmarks(table));
            rows.sort_unstable();
            rows.dedup();
            all.push(rows);
        }
        Ok(Some(all))
    }

    /// Rows that every sparse table writes: the ends, the ends of its shards, and those around bytes 2^31 and 2^32 of the table as one
    /// array (of whole rows, and of values alone).
    fn landmarks(&self, table: &SynthTable) -> Vec<u64> {
        let mut rows = vec![0, table.rows.saturating_sub(1), table.padded_rows.saturating_sub(1)];
        for bytes in [self.row_format.row_bytes(), self.row_format.value_bytes] {
            for border in [1u64 << 31, 1 << 32] {
                let row = border / u64::from(bytes.max(1));
                rows.extend([row.saturating_sub(1), row, row + 1]);
            }
        }
        let parts = match (self.layout, &self.config) {
            (SynthLayout::Packed, _) | (SynthLayout::Safetensors, Some(ModelConfig::DeepseekV41(_)) | None) => 1,
            (SynthLayout::Safetensors, Some(ModelConfig::QwenPle(config))) => config.split_ngram_parts,
            (SynthLayout::Shards, _) => self.shards,
        };
        let per_shard = table.padded_rows.div_ceil(u64::from(parts.max(1)));
        let borders = (1..u64::from(parts.min(1024))).map(|i| i.saturating_mul(per_shard));
        rows.extend(borders.flat_map(|row| [row.saturating_sub(1), row]));
        rows.retain(|&row| row < table.padded_rows);
        rows
    }

    fn wrong(&self, why: impl Into<String>) -> StoreError {
        StoreError::Plan { path: self.out.clone(), why: why.into() }
    }

    /// What holds for every layout.
    fn check(&self) -> Result<(), StoreError> {
        if self.tables.is_empty() {
            return Err(self.wrong("it has no tables"));
        }
        if self.row_format.row_bytes() == 0 {
            return Err(self.wrong("its rows have no bytes"));
        }
        for (index, table) in self.tables.iter().enumerate() {
            if table.rows == 0 || table.padded_rows < table.rows {
                return Err(self.wrong(format!("layer {} has no rows, or more rows than places", table.layer)));
            }
            if table.padded_rows.checked_mul(self.row_format.row_bytes().into()).is_none_or(|n| n > i64::MAX as u64) {
                return Err(self.wrong(format!("layer {} exceeds 2^63 bytes", table.layer)));
            }
            if self.tables[..index].iter().any(|t| t.layer == table.layer) {
                return Err(self.wrong(format!("layer {} occurs twice", table.layer)));
            }
        }
        if !self.constants.is_empty() && self.constants.len() != self.tables.len() {
            return Err(self.wrong("constants must be given for every table or for none"));
        }
        Ok(())
    }
}

/// Makes a synthetic table.
///
/// `progress` is called with the bytes done and the bytes to do, at the beginning, after every MiB at the latest and at the end; it stops the work by
/// giving `Break`. The target appears whole, by a rename, after its data are on disk. Partial folders that killed processes left beside it,
/// for the same target, are removed first.
///
/// # Errors
/// [`StoreError::Plan`] for an impossible plan, [`StoreError::OutExists`], [`StoreError::NoSpace`] if less than twice the size is free,
/// [`StoreError::Write`] and [`StoreError::Cancelled`], after both of which nothing is left behind.
pub fn synth(plan: &SynthPlan, progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>) -> Result<Summary, StoreError> {
    let files = layouts::files(plan)?;
    let samples = plan.samples()?;
    let need = files.iter().map(|f| f.bytes_needed(samples.as_deref())).sum();
    let out = check_out(&plan.out)?;
    // Before the space is counted: they may be what fills the disk.
    let leftovers_removed = out::remove_leftovers(&out);
    check_space(&out, need)?;
    let partial = Partial::create(&out)?;
    let source = Source { tables: &plan.tables, format: plan.row_format };
    let mut writer = Writer::new(source, samples.as_deref(), &files, progress);
    for file in &files {
        writer.write(partial.path(), file).map_err(|e| e.at(&out))?;
    }
    let (bytes_written, rows_written) = writer.finish();
    partial.publish()?;
    Ok(Summary {
        out,
        files: files.len() as u64,
        bytes: files.iter().map(FilePlan::len).sum(),
        bytes_written,
        rows_written,
        leftovers_removed,
    })
}

/// Refuses a target that holds something; gives the path with a file name (`.` and `x/..` have none).
fn check_out(out: &Path) -> Result<PathBuf, StoreError> {
    let taken = || StoreError::OutExists { path: out.into() };
    match fs::read_dir(out) {
        Ok(mut entries) => {
            if entries.next().is_some() {
                return Err(taken());
            }
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) if e.kind() == std::io::ErrorKind::NotADirectory => return Err(taken()),
        Err(e) => return Err(StoreError::io(out, "look at", e)),
    }
    if fs::symlink_metadata(out).is_ok_and(|m| m.is_symlink()) {
        return Err(taken());
    }
    match out.file_name() {
        Some(_) => Ok(out.into()),
        None => fs::canonicalize(out).map_err(|e| StoreError::io(out, "resolve", e)),
    }
}

/// Refuses when less than twice `need` is free at the nearest folder that exists.
fn check_space(out: &Path, need: u64) -> Result<(), StoreError> {
    let mut place = out.parent();
    while let Some(path) = place.filter(|p| !p.as_os_str().is_empty() && !p.exists()) {
        place = path.parent();
    }
    let place = place.filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let stat = rustix::fs::statvfs(place).map_err(|e| StoreError::io(place, "ask for the free space of", e.into()))?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    if free / 2 < need {
        return Err(StoreError::NoSpace { path: out.into(), need, free });
    }
    Ok(())
}
