//! Whole tables in memory, for the arm that shows the floor.

use crate::failure::Failure;
use crate::interrupt;
use engram_sched::{Model, Table};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Bytes of one read of the file.
const READ_BYTES: u64 = 4 << 20;

/// Whole tables in memory.
pub(crate) struct MemoryTables {
    /// Per table: bytes of a row, and the rows back to back.
    tables: Vec<(usize, Vec<u8>)>,
}

impl MemoryTables {
    /// Reads every row of `model`; `progress` gets the bytes read so far.
    pub(crate) fn read(model: &Model, mut progress: impl FnMut(u64)) -> Result<Self, Failure> {
        let mut tables = Vec::new();
        let mut done = 0;
        for table in model.tables() {
            let row_bytes = table.row_bytes() as usize;
            let mut rows = vec![0; table.rows() as usize * row_bytes];
            read_table(model, table, &mut rows, &mut |bytes| {
                done += bytes;
                progress(done);
            })?;
            tables.push((row_bytes, rows));
        }
        Ok(Self { tables })
    }

    /// The memory that [`read`](Self::read) takes.
    pub(crate) fn bytes(model: &Model) -> u64 {
        model.tables().iter().map(|table| table.rows() * u64::from(table.row_bytes())).sum()
    }

    /// The bytes of a row.
    pub(crate) fn row(&self, table: usize, row: u64) -> &[u8] {
        let (row_bytes, rows) = &self.tables[table];
        let at = row as usize * row_bytes;
        &rows[at..at + row_bytes]
    }

    /// Bytes of a row of table `table`.
    pub(crate) fn row_bytes(&self, table: usize) -> usize {
        self.tables[table].0
    }
}

/// Reads the parts one after another in large pieces, and puts each piece's rows in their places.
fn read_table(model: &Model, table: &Table, out: &mut [u8], progress: &mut dyn FnMut(u64)) -> Result<(), Failure> {
    let row_bytes = table.row_bytes() as usize;
    let mut column = 0;
    let mut buffer = Vec::new();
    for part in table.parts() {
        let (bytes, stride) = (part.bytes as usize, part.stride as usize);
        let mut row = 0;
        for shard in &part.shards {
            let data = &model.files()[shard.file.0 as usize];
            let failed = |error| Failure::failed(format!("cannot read {}: {error}", data.path.display()));
            let file = File::open(&data.path).map_err(failed)?;
            let piece = (READ_BYTES / part.stride).max(1);
            let mut first = 0;
            while first < shard.rows {
                interrupt::check()?;
                let rows = piece.min(shard.rows - first) as usize;
                // The last row of a file has no gap behind it.
                buffer.resize((rows - 1) * stride + bytes, 0);
                file.read_exact_at(&mut buffer, shard.offset + first * part.stride).map_err(failed)?;
                for (i, values) in buffer.chunks(stride).enumerate() {
                    let at = (row + i) * row_bytes + column;
                    out[at..at + bytes].copy_from_slice(&values[..bytes]);
                }
                row += rows;
                first += rows as u64;
                progress((rows * bytes) as u64);
            }
        }
        column += bytes;
    }
    Ok(())
}
