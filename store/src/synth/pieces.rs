//! Files as lists of pieces, and the writer that fills them.
//!
//! A piece of rows names the table, the rows and which bytes of a row it holds: the same list serves whole tables (streamed in order) and
//! sparse ones (the file is stretched to its length, and sample rows are written at their true offsets).

use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::SynthTable;
use crate::error::StoreError;
use crate::format::RowFormat;
use crate::self_proof::fill_span;

/// Bytes that are generated and written at once: they should still be in the cache when they are written.
const CHUNK_BYTES: usize = 256 << 10;

const PAGE: u64 = 4096;

pub(super) enum Piece {
    /// Bytes as they are.
    Literal(Vec<u8>),
    /// Zero bytes: stand-ins for tensors that are not tables.
    Zeros(u64),
    /// Bytes `start..start + width` of the rows `first..first + count`.
    Rows { table: usize, first: u64, count: u64, start: u32, width: u32 },
}

impl Piece {
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Literal(bytes) => bytes.len() as u64,
            Self::Zeros(len) => *len,
            Self::Rows { count, width, .. } => count * u64::from(*width),
        }
    }
}

/// A file to write, by its name below the target.
pub(super) struct FilePlan {
    pub(super) name: String,
    pub(super) pieces: Vec<Piece>,
}

impl FilePlan {
    pub(super) fn literal(name: impl Into<String>, bytes: Vec<u8>) -> Self {
        Self { name: name.into(), pieces: vec![Piece::Literal(bytes)] }
    }

    pub(super) fn len(&self) -> u64 {
        self.pieces.iter().map(Piece::len).sum()
    }

    /// Bytes on disk: whole pages; for sample rows a page for each, and another where a row crosses a border.
    pub(super) fn bytes_needed(&self, samples: Option<&[Vec<u64>]>) -> u64 {
        let Some(samples) = samples else { return self.len().next_multiple_of(PAGE) };
        let piece = |piece: &Piece| match piece {
            Piece::Literal(bytes) => (bytes.len() as u64).next_multiple_of(PAGE) + PAGE,
            Piece::Zeros(_) => 0,
            Piece::Rows { table, first, count, width, .. } => {
                let rows = &samples[*table];
                let n = rows.partition_point(|r| *r < first + count) - rows.partition_point(|r| r < first);
                n as u64 * (u64::from(*width).next_multiple_of(PAGE) + PAGE)
            }
        };
        self.pieces.iter().map(piece).sum::<u64>().min(self.len().next_multiple_of(PAGE))
    }
}

/// Where the content of rows comes from.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) tables: &'a [SynthTable],
    pub(super) format: RowFormat,
}

/// Why writing ended early.
pub(super) enum Ended {
    Failed(PathBuf, io::Error),
    Stopped,
}

impl Ended {
    /// As the error of the whole work.
    pub(super) fn at(self, out: &Path) -> StoreError {
        match self {
            Self::Failed(path, source) => StoreError::Write { path, source },
            Self::Stopped => StoreError::Cancelled { path: out.into() },
        }
    }
}

pub(super) struct Writer<'a> {
    source: Source<'a>,
    samples: Option<&'a [Vec<u64>]>,
    progress: &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    buffer: Vec<u8>,
    done: u64,
    total: u64,
    rows: u64,
    /// Row bytes of the row pieces that count as one row: only the first part of a row is counted.
    reported: bool,
}

impl<'a> Writer<'a> {
    pub(super) fn new(
        source: Source<'a>,
        samples: Option<&'a [Vec<u64>]>,
        files: &[FilePlan],
        progress: &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Self {
        let total = files.iter().map(|f| f.bytes_needed_exact(samples)).sum();
        Self { source, samples, progress, buffer: Vec::new(), done: 0, total, rows: 0, reported: false }
    }

    /// Bytes and rows written.
    pub(super) fn finish(self) -> (u64, u64) {
        (self.done, self.rows)
    }

    /// Writes one file and makes it durable.
    pub(super) fn write(&mut self, folder: &Path, plan: &FilePlan) -> Result<(), Ended> {
        if !self.reported {
            self.reported = true;
            self.advance(0)?;
        }
        let path = folder.join(&plan.name);
        let failed = |e| Ended::Failed(path.clone(), e);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        let mut file = File::create_new(&path).map_err(failed)?;
        match self.samples {
            None => {
                for piece in &plan.pieces {
                    self.stream(&mut file, &path, piece)?;
                }
            }
            Some(samples) => self.scatter(&file, &path, plan, samples)?,
        }
        file.sync_data().map_err(failed)
    }

    fn advance(&mut self, bytes: u64) -> Result<(), Ended> {
        self.done += bytes;
        match (self.progress)(self.done, self.total) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Ended::Stopped),
        }
    }

    fn put(&mut self, file: &mut File, path: &Path, len: usize) -> Result<(), Ended> {
        file.write_all(&self.buffer[..len]).map_err(|e| Ended::Failed(path.into(), e))?;
        self.advance(len as u64)
    }

    /// Writes a piece behind what is there.
    fn stream(&mut self, file: &mut File, path: &Path, piece: &Piece) -> Result<(), Ended> {
        match *piece {
            Piece::Literal(ref bytes) => {
                file.write_all(bytes).map_err(|e| Ended::Failed(path.into(), e))?;
                self.advance(bytes.len() as u64)?;
            }
            Piece::Zeros(len) => {
                let mut left = len;
                while left > 0 {
                    let now = left.min(CHUNK_BYTES as u64) as usize;
                    self.buffer.clear();
                    self.buffer.resize(now, 0);
                    self.put(file, path, now)?;
                    left -= now as u64;
                }
            }
            Piece::Rows { table, first, count, start, width } => {
                let tag = self.source.tables[table].tag;
                let per_chunk = (CHUNK_BYTES as u64 / u64::from(width)).max(1);
                let mut row = first;
                while row < first + count {
                    let now = per_chunk.min(first + count - row);
                    self.buffer.resize((now * u64::from(width)) as usize, 0);
                    for (row, out) in (row..).zip(self.buffer.chunks_exact_mut(width as usize)) {
                        fill_span(tag, row, self.source.format, start, out);
                    }
                    row += now;
                    if start == 0 {
                        self.rows += now;
                    }
                    let len = self.buffer.len();
                    self.put(file, path, len)?;
                }
            }
        }
        Ok(())
    }

    /// Stretches the file and writes literals and sample rows where they belong.
    fn scatter(&mut self, file: &File, path: &Path, plan: &FilePlan, samples: &[Vec<u64>]) -> Result<(), Ended> {
        let failed = |e| Ended::Failed(path.into(), e);
        file.set_len(plan.len()).map_err(failed)?;
        let mut at = 0;
        for piece in &plan.pieces {
            match *piece {
                Piece::Literal(ref bytes) => {
                    file.write_all_at(bytes, at).map_err(failed)?;
                    self.advance(bytes.len() as u64)?;
                }
                Piece::Zeros(_) => {}
                Piece::Rows { table, first, count, start, width } => {
                    let tag = self.source.tables[table].tag;
                    self.buffer.resize(width as usize, 0);
                    let rows = &samples[table];
                    let from = rows.partition_point(|&r| r < first);
                    for &row in rows[from..].iter().take_while(|&&r| r < first + count) {
                        fill_span(tag, row, self.source.format, start, &mut self.buffer);
                        let offset = at + (row - first) * u64::from(width);
                        file.write_all_at(&self.buffer, offset).map_err(failed)?;
                        self.advance(u64::from(width))?;
                        self.rows += u64::from(start == 0);
                    }
                }
            }
            at += piece.len();
        }
        Ok(())
    }
}

impl FilePlan {
    /// Bytes that the writer writes.
    fn bytes_needed_exact(&self, samples: Option<&[Vec<u64>]>) -> u64 {
        let Some(samples) = samples else { return self.len() };
        let piece = |piece: &Piece| match piece {
            Piece::Literal(bytes) => bytes.len() as u64,
            Piece::Zeros(_) => 0,
            Piece::Rows { table, first, count, width, .. } => {
                let rows = &samples[*table];
                let n = rows.partition_point(|r| *r < first + count) - rows.partition_point(|r| r < first);
                n as u64 * u64::from(*width)
            }
        };
        self.pieces.iter().map(piece).sum()
    }
}
