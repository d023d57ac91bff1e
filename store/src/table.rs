//! A table: which bytes of which files make up each row.
//!
//! A logical row is the concatenation of its parts (DeepSeek-V4.1 in its checkpoint: 256 B of values, 8 B of scales; packed: one part
//! of 264 B). A part is spread over shards of equally many rows (the last one may be shorter); inside a shard, rows follow each other
//! at a fixed stride. Invariants, checked by [`Table::new`]: shards cover `0..rows` exactly, and every extent ends inside its file.

use std::path::PathBuf;

/// Index of a file in the list that belongs to a set of tables.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId(pub u32);

/// A file that holds rows. One entry per inode, whatever number of links lead to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DataFile {
    /// Path to open, as found (symbolic links are not resolved).
    pub path: PathBuf,
    /// Length at the time of opening, bytes.
    pub len: u64,
}

/// A run of bytes in a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Extent {
    /// The file.
    pub file: FileId,
    /// First byte, from the start of the file.
    pub offset: u64,
    /// Length, bytes.
    pub len: u32,
}

/// Consecutive rows of one part in one file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shard {
    /// The file.
    pub file: FileId,
    /// Offset of the shard's first row, bytes from the start of the file.
    pub offset: u64,
    /// Rows in this shard.
    pub rows: u64,
}

/// One of the pieces that make up a row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// Bytes of a row in this part.
    pub bytes: u32,
    /// Bytes from one row to the next (>= `bytes`).
    pub stride: u64,
    /// Rows of every shard but the last, which may have fewer.
    pub rows_per_shard: u64,
    /// The shards in row order.
    pub shards: Vec<Shard>,
}

/// The rows of one PLE/Engram layer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Table {
    layer: u16,
    rows: u64,
    row_bytes: u32,
    parts: Vec<Part>,
}

/// Why a [`Table`] cannot be made from its parts.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// No rows, no parts, or a part of no bytes.
    #[error("layer {layer}: a table needs rows, and parts of at least one byte; correct the geometry")]
    Empty {
        /// The table's layer.
        layer: u16,
    },
    /// The shards of a part do not cover the rows.
    #[error(
        "layer {layer}, part {part}: the shards hold {got} rows in pieces of {per_shard}, the table has {rows}; correct the geometry or fetch the missing shards"
    )]
    Coverage {
        /// The table's layer.
        layer: u16,
        /// Index of the part.
        part: usize,
        /// Rows of all shards.
        got: u64,
        /// Rows per shard.
        per_shard: u64,
        /// Rows of the table.
        rows: u64,
    },
    /// A shard ends beyond its file.
    #[error("layer {layer}: {path} is truncated: {len} bytes, but its rows end at byte {end}; fetch the file again")]
    Truncated {
        /// The table's layer.
        layer: u16,
        /// The file.
        path: PathBuf,
        /// Its length, bytes.
        len: u64,
        /// Where its rows end, bytes.
        end: u64,
    },
    /// A shard names a file that is not in the list, or sizes overflow 64 bits.
    #[error("layer {layer}, part {part}: bad geometry ({what}); correct the manifest or the flags")]
    Geometry {
        /// The table's layer.
        layer: u16,
        /// Index of the part.
        part: usize,
        /// What is wrong.
        what: &'static str,
    },
}

impl Table {
    /// Checks and composes a table.
    ///
    /// # Errors
    /// [`LayoutError`] if the parts do not cover the rows or reach beyond a file.
    pub fn new(layer: u16, rows: u64, parts: Vec<Part>, files: &[DataFile]) -> Result<Self, LayoutError> {
        let mut row_bytes = 0u32;
        if rows == 0 || parts.is_empty() {
            return Err(LayoutError::Empty { layer });
        }
        for (index, part) in parts.iter().enumerate() {
            let bad = |what| LayoutError::Geometry { layer, part: index, what };
            if part.bytes == 0 {
                return Err(LayoutError::Empty { layer });
            }
            if part.stride < u64::from(part.bytes) {
                return Err(bad("stride below the row's bytes"));
            }
            row_bytes = row_bytes.checked_add(part.bytes).ok_or_else(|| bad("row bytes overflow"))?;
            let got = part
                .shards
                .iter()
                .try_fold(0u64, |sum, s| sum.checked_add(s.rows))
                .ok_or_else(|| bad("rows overflow"))?;
            let full = part.shards.len().saturating_sub(1);
            let uneven = part.rows_per_shard == 0
                || part.shards[..full].iter().any(|s| s.rows != part.rows_per_shard)
                || part.shards.last().is_none_or(|s| s.rows == 0 || s.rows > part.rows_per_shard);
            if got != rows || uneven {
                return Err(LayoutError::Coverage { layer, part: index, got, per_shard: part.rows_per_shard, rows });
            }
            for shard in &part.shards {
                let file = files.get(shard.file.0 as usize).ok_or_else(|| bad("unknown file"))?;
                let end = (shard.rows - 1)
                    .checked_mul(part.stride)
                    .and_then(|b| b.checked_add(u64::from(part.bytes)))
                    .and_then(|b| b.checked_add(shard.offset))
                    .ok_or_else(|| bad("offsets overflow"))?;
                if end > file.len {
                    return Err(LayoutError::Truncated { layer, path: file.path.clone(), len: file.len, end });
                }
            }
        }
        Ok(Self { layer, rows, row_bytes, parts })
    }

    /// Zero-based decoder index of the layer that consumes the rows.
    pub fn layer(&self) -> u16 {
        self.layer
    }

    /// Number of rows; valid row ids are below it.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Bytes of a logical row, all parts together.
    pub fn row_bytes(&self) -> u32 {
        self.row_bytes
    }

    /// The parts, in the order of their bytes in a row.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Where part `part` of row `row` lies.
    ///
    /// # Panics
    /// If `row` or `part` is out of range: row ids are checked where they enter.
    #[inline]
    pub fn extent(&self, part: usize, row: u64) -> Extent {
        assert!(row < self.rows, "row {row} of layer {} is out of range ({} rows)", self.layer, self.rows);
        let part = &self.parts[part];
        let (shard, row) = if part.shards.len() == 1 {
            (&part.shards[0], row)
        } else {
            (&part.shards[(row / part.rows_per_shard) as usize], row % part.rows_per_shard)
        };
        Extent { file: shard.file, offset: shard.offset + row * part.stride, len: part.bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(len: u64) -> Vec<DataFile> {
        vec![DataFile { path: "a".into(), len }, DataFile { path: "b".into(), len }]
    }

    fn part(rows: &[u64], per_shard: u64) -> Part {
        let shards =
            rows.iter().enumerate().map(|(i, &rows)| Shard { file: FileId(i as u32), offset: 7, rows }).collect();
        Part { bytes: 10, stride: 12, rows_per_shard: per_shard, shards }
    }

    #[test]
    fn extents_follow_shards_and_stride() {
        let t = Table::new(1, 5, vec![part(&[3, 2], 3)], &files(41)).unwrap();
        assert_eq!(t.extent(0, 0), Extent { file: FileId(0), offset: 7, len: 10 });
        assert_eq!(t.extent(0, 2), Extent { file: FileId(0), offset: 31, len: 10 });
        assert_eq!(t.extent(0, 3), Extent { file: FileId(1), offset: 7, len: 10 });
        assert_eq!(t.row_bytes(), 10);
    }

    #[test]
    fn rows_beyond_four_gib_keep_their_offsets() {
        let files = vec![DataFile { path: "big".into(), len: 384_006_168 * 256 }];
        let one = Part {
            bytes: 256,
            stride: 256,
            rows_per_shard: 384_006_168,
            shards: vec![Shard { file: FileId(0), offset: 0, rows: 384_006_168 }],
        };
        let t = Table::new(1, 384_006_168, vec![one], &files).unwrap();
        for row in [1u64 << 23, (1 << 24) - 1, 1 << 24, (1 << 24) + 1, 384_006_167] {
            assert_eq!(t.extent(0, row).offset, row * 256);
        }
    }

    #[test]
    fn refuses_what_does_not_fit() {
        assert!(matches!(Table::new(1, 5, vec![part(&[3, 2], 3)], &files(40)), Err(LayoutError::Truncated { .. })));
        assert!(matches!(Table::new(1, 6, vec![part(&[3, 2], 3)], &files(99)), Err(LayoutError::Coverage { .. })));
        assert!(matches!(Table::new(1, 5, vec![part(&[2, 3], 2)], &files(99)), Err(LayoutError::Coverage { .. })));
        assert!(matches!(Table::new(1, 0, vec![], &files(99)), Err(LayoutError::Empty { .. })));
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn a_row_out_of_range_is_never_clamped() {
        Table::new(1, 5, vec![part(&[3, 2], 3)], &files(41)).unwrap().extent(0, 5);
    }
}
