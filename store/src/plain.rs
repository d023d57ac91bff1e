//! The plain reader: rows by `pread`, one after the other.
//!
//! The independent path that oracles and `verify` compare with: it shares nothing with the scheduler but the layout of the table. It
//! never gives a row that was not read in full.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::error::StoreError;
use crate::opened::Opened;
use crate::table::{DataFile, Table};

/// Reads rows of opened tables with `pread`.
#[derive(Debug)]
pub struct PlainReader {
    files: Vec<(DataFile, File)>,
    tables: Vec<Table>,
}

impl PlainReader {
    /// Opens the files of `opened`.
    ///
    /// # Errors
    /// [`StoreError`] if a file is gone or has another length than when the table was opened.
    pub fn open(opened: &Opened) -> Result<Self, StoreError> {
        Self::new(opened.files.clone(), opened.tables.clone())
    }

    /// Opens `files`, to which the extents of `tables` refer.
    ///
    /// # Errors
    /// As [`PlainReader::open`].
    pub fn new(files: Vec<DataFile>, tables: Vec<Table>) -> Result<Self, StoreError> {
        let open = |data: DataFile| {
            let file = File::open(&data.path).map_err(|e| StoreError::file(&data.path, "open", e))?;
            let len = file.metadata().map_err(|e| StoreError::file(&data.path, "look at", e))?.len();
            if len != data.len {
                return Err(StoreError::Changed { path: data.path, len, expected: data.len });
            }
            Ok((data, file))
        };
        let files = files.into_iter().map(open).collect::<Result<_, _>>()?;
        Ok(Self { files, tables })
    }

    /// The tables, in the order of their indices.
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// Reads row `row` of table `table` (index) into `out`, which has `row_bytes` bytes; the parts of the row follow each other.
    ///
    /// # Errors
    /// [`StoreError::Call`] for a wrong index or buffer, [`StoreError::RowOutOfRange`], [`StoreError::Read`] if the disk fails or the
    /// file ends early. `out` is undefined then.
    pub fn read_row(&self, table: usize, row: u64, out: &mut [u8]) -> Result<(), StoreError> {
        let count = self.tables.len() as u64;
        let call = |what, got, expected| StoreError::Call { what, got, expected };
        let table = self.tables.get(table).ok_or_else(|| call("table index (tables)", table as u64, count))?;
        if row >= table.rows() {
            return Err(StoreError::RowOutOfRange { layer: table.layer(), row, rows: table.rows() });
        }
        if out.len() as u64 != u64::from(table.row_bytes()) {
            return Err(call("length of the row buffer", out.len() as u64, table.row_bytes().into()));
        }
        let mut at = 0;
        for part in 0..table.parts().len() {
            let extent = table.extent(part, row);
            let (data, file) = &self.files[extent.file.0 as usize];
            let end = at + extent.len as usize;
            file.read_exact_at(&mut out[at..end], extent.offset).map_err(|source| StoreError::Read {
                path: data.path.clone(),
                layer: table.layer(),
                row,
                offset: extent.offset,
                len: extent.len,
                source,
            })?;
            at = end;
        }
        Ok(())
    }
}
