//! A model: how tokens become row ids, and where the rows lie.
//!
//! Opening composes what the crates below know separately, and refuses what does not fit together: a wrong spec gives plausible but
//! wrong rows, which nothing downstream can notice. Invariants of an open model: one table for each table of the keygen, in its order;
//! every row id that the keygen can give lies in its table; constants of the checkpoint equal the derived ones.

use crate::maps::{self, Found};
use crate::{OpenError, specs};
use engram_keygen::{Keygen, RowId, Spec};
use engram_sched_core::Parts;
use engram_sched_core::sync::Arc;
use engram_store::{
    DataFile, LayerConstants, Opened, PlainReader, RawGeometry, RowFormat, SelfProof, SourceKind, StoreError, Table,
    self_proof,
};
use std::path::{Path, PathBuf};

/// What to take where the table itself does not say, or instead of it.
#[derive(Clone, Debug, Default)]
pub struct ModelOptions {
    /// The spec; `None`: the one that the table carries. A checkpoint's constants are compared with it all the same.
    pub spec: Option<Spec>,
    /// Token map of a model that compresses its vocabulary (little-endian i32, one per raw id), or its `tokenizer.json`; `None`: the
    /// `tokenizer.json` beside the checkpoint.
    pub token_map: Option<PathBuf>,
    /// Geometry of raw shards that have no manifest.
    pub raw: Option<RawGeometry>,
    /// Folder for token maps that were built; `None`: the user's cache folder.
    pub token_map_cache: Option<PathBuf>,
}

/// A model with its tables, opened and checked. A clone is cheap: it shares everything.
#[derive(Clone, Debug)]
pub struct Model {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    root: PathBuf,
    source: SourceKind,
    keygen: Keygen,
    tables: Vec<Table>,
    files: Vec<DataFile>,
    row_format: RowFormat,
    self_proof: Option<SelfProof>,
    notes: Vec<String>,
}

impl Model {
    /// Opens a checkpoint, raw shards or packed records; headers and constants are read, row data is not.
    ///
    /// # Errors
    /// [`OpenError`], which names the file and the remedy: what the store refuses, a spec that is missing or no spec, a token map that is
    /// missing or another model's, tables that do not fit the spec, constants that differ from the derived ones.
    pub fn open(path: impl AsRef<Path>, options: &ModelOptions) -> Result<Self, OpenError> {
        let opened = engram_store::open(path.as_ref(), options.raw.as_ref())?;
        let (spec, origin) = match &options.spec {
            Some(spec) => (spec.clone(), "the spec".to_owned()),
            None => specs::spec_of_opened(&opened)?.ok_or_else(|| OpenError::NoSpec { path: opened.root.clone() })?,
        };
        let found = token_map(&opened, &spec, options)?;
        let keygen = Keygen::new(&spec, found.map).map_err(|source| OpenError::Spec { origin, source })?;
        let order = table_order(&opened, &keygen)?;
        for (table, &index) in order.iter().enumerate() {
            check_table(&opened, &keygen, table, &opened.tables[index])?;
            if let Some(constants) = opened.constants.iter().find(|c| c.layer == keygen.layer(table)) {
                check_constants(&opened.root, &keygen, table, constants)?;
            }
        }
        let mut notes = opened.notes;
        notes.extend(found.note);
        Ok(Self {
            inner: Arc::new(Inner {
                root: opened.root,
                source: opened.source,
                keygen,
                tables: order.iter().map(|&index| opened.tables[index].clone()).collect(),
                files: opened.files,
                row_format: opened.row_format,
                self_proof: opened.self_proof.map(|proof| reordered(proof, &order)),
                notes,
            }),
        })
    }

    /// The folder or file that was opened.
    pub fn root(&self) -> &Path {
        &self.inner.root
    }

    /// How the rows are laid out.
    pub fn source(&self) -> SourceKind {
        self.inner.source
    }

    /// Tokens to row ids.
    pub fn keygen(&self) -> &Keygen {
        &self.inner.keygen
    }

    /// One table for each table of the keygen, in the same order.
    pub fn tables(&self) -> &[Table] {
        &self.inner.tables
    }

    /// The files that hold rows.
    pub fn files(&self) -> &[DataFile] {
        &self.inner.files
    }

    /// What the bytes of a row mean.
    pub fn row_format(&self) -> RowFormat {
        self.inner.row_format
    }

    /// Remarks for an operator: what was assumed, ignored, or is unusual.
    pub fn notes(&self) -> &[String] {
        &self.inner.notes
    }

    /// How the rows of a synthetic table prove their identity; `None` for tables of a real model.
    pub fn self_proof(&self) -> Option<&SelfProof> {
        self.inner.self_proof.as_ref()
    }

    /// Whether `bytes` are row `row` of table `table` (index) by their own testimony; `None` if the row cannot tell.
    pub fn proves(&self, table: usize, row: RowId, bytes: &[u8]) -> Option<bool> {
        let proof = self.inner.self_proof.as_ref().filter(|proof| proof.covers(table, row))?;
        Some(self_proof::check_row(proof.tags[table], row, self.inner.row_format, bytes))
    }

    /// A reader by plain `pread`, independent of any scheduler; tables have the indices of [`tables`](Self::tables).
    ///
    /// # Errors
    /// [`StoreError`] if a file is gone or has another length than when the model was opened.
    pub fn plain_reader(&self) -> Result<PlainReader, StoreError> {
        PlainReader::new(self.inner.files.clone(), self.inner.tables.clone())
    }

    /// What the core scheduler is started with.
    pub fn parts(&self) -> Parts {
        Parts { keygen: self.inner.keygen.clone(), tables: self.inner.tables.clone(), files: self.inner.files.clone() }
    }
}

/// The map that the spec asks for.
fn token_map(opened: &Opened, spec: &Spec, options: &ModelOptions) -> Result<Found, OpenError> {
    if let Some(path) = &options.token_map {
        return maps::from_file(path, spec);
    }
    if !maps::needs_map(spec) {
        return Ok(Found { map: None, note: None });
    }
    let folder = opened.tokenizer_json.as_deref().and_then(Path::parent);
    match folder {
        Some(folder) => maps::from_checkpoint(folder, spec, options.token_map_cache.clone()),
        None if opened.self_proof.is_some() => maps::stand_in(spec),
        None => Err(OpenError::NoTokenMap { origin: opened.root.display().to_string() }),
    }
}

/// For each table of the keygen, the index of the opened table of the same layer.
fn table_order(opened: &Opened, keygen: &Keygen) -> Result<Vec<usize>, OpenError> {
    (0..keygen.tables())
        .map(|table| {
            let layer = keygen.layer(table);
            opened.tables.iter().position(|t| t.layer() == layer).ok_or_else(|| OpenError::LayerMissing {
                path: opened.root.clone(),
                layer,
                found: opened.tables.iter().map(Table::layer).collect(),
            })
        })
        .collect()
}

fn check_table(opened: &Opened, keygen: &Keygen, table: usize, found: &Table) -> Result<(), OpenError> {
    let (addressed, padded) = (keygen.table_rows(table), keygen.table_rows_padded(table));
    let (path, layer) = (opened.root.clone(), keygen.layer(table));
    if !(addressed..=padded).contains(&found.rows()) {
        return Err(OpenError::Rows { path, layer, rows: found.rows(), addressed, padded });
    }
    Ok(())
}

/// Compares what the checkpoint stores with what follows from the spec.
fn check_constants(root: &Path, keygen: &Keygen, table: usize, constants: &LayerConstants) -> Result<(), OpenError> {
    let lists = [
        ("multiplier", &constants.multipliers, keygen.multipliers(table)),
        ("head size", &constants.primes, keygen.primes(table)),
        ("head offset", &constants.offsets, keygen.offsets(table)),
    ];
    for (what, stored, derived) in lists {
        if stored.is_empty() || keygen.spec().trust_overrides {
            continue;
        }
        let longest = stored.len().max(derived.len());
        let at = |list: &[u64], index: usize| list.get(index).copied().unwrap_or(0);
        if let Some(index) = (0..longest).find(|&index| at(stored, index) != at(derived, index)) {
            return Err(OpenError::Constant {
                path: root.into(),
                layer: keygen.layer(table),
                what,
                index,
                stored: at(stored, index),
                derived: at(derived, index),
            });
        }
    }
    Ok(())
}

/// The proof with its tables in the keygen's order.
fn reordered(proof: SelfProof, order: &[usize]) -> SelfProof {
    SelfProof {
        tags: order.iter().map(|&index| proof.tags[index]).collect(),
        sparse_rows: proof.sparse_rows.map(|rows| order.iter().map(|&index| rows[index].clone()).collect()),
    }
}
