//! Rows that prove their own identity: the content of synthetic tables.
//!
//! Byte `i` of row `r` of the table with tag `t` is byte `i % 8` (little-endian) of `splitmix64((t << 48) + r * 4096 + i / 8)`, modulo
//! 2^64, where splitmix64 adds its gamma first. Then, so that the bytes decode to finite numbers:
//! FP8 values 0x7f and 0xff (NaN) become 0x7e and 0xfe; BF16 values with an all-ones exponent lose bit 14; a ue8m0 scale byte `b`
//! becomes `1 + b % 254`; opaque bytes stay. Whoever reads a wrong row, a torn row or a row of another table sees it from the bytes.

use crate::format::{RowFormat, RowScale, ValueType};

// splitmix64 stands here once more (`engram_keygen::rng` has it for the programs on top): store knows no keygen, and the content of
// tables on disk must not follow a change there.
const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;
const LOW7: u64 = 0x7F7F_7F7F_7F7F_7F7F;
const ONES: u64 = 0x0101_0101_0101_0101;

/// How the rows of opened tables prove themselves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SelfProof {
    /// The tag of each table, in table order.
    pub tags: Vec<u64>,
    /// For sparse tables, the rows of each table that were written (ascending); the others are holes. `None`: all rows were written.
    pub sparse_rows: Option<Vec<Vec<u64>>>,
}

impl SelfProof {
    /// Whether row `row` of table `table` (index) has content that can be checked.
    pub fn covers(&self, table: usize, row: u64) -> bool {
        match &self.sparse_rows {
            None => table < self.tags.len(),
            Some(rows) => rows.get(table).is_some_and(|rows| rows.binary_search(&row).is_ok()),
        }
    }
}

#[inline]
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(GAMMA);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Eight FP8 bytes at once: those with all low seven bits set are lowered by one.
#[inline]
fn tame_f8(x: u64) -> u64 {
    x - ((((x & LOW7) + ONES) >> 7) & ONES)
}

/// Four BF16 values at once: those with an all-ones exponent lose bit 14.
#[inline]
fn tame_bf16(x: u64) -> u64 {
    let full = ((x & 0x7F80_7F80_7F80_7F80) + 0x0080_0080_0080_0080) & 0x8000_8000_8000_8000;
    x & !(full >> 1)
}

/// Writes the bytes `start..start + out.len()` of a row.
///
/// `start` is a byte offset inside the row (0 for the values, `value_bytes` for the scale); a span may begin and end anywhere.
pub fn fill_span(tag: u64, row: u64, format: RowFormat, start: u32, out: &mut [u8]) {
    let base = (tag << 48).wrapping_add(row.wrapping_mul(4096));
    let start = start as usize;
    let values = format.value_bytes as usize;
    let word = |k: usize| mix(base.wrapping_add(k as u64));
    let mut at = 0;
    while at < out.len() {
        let (k, skip) = ((start + at) / 8, (start + at) % 8);
        let len = (8 - skip).min(out.len() - at);
        let raw = word(k);
        let bytes = if k * 8 + 8 <= values {
            match format.value {
                ValueType::F8E4m3 => tame_f8(raw),
                ValueType::Bf16 => tame_bf16(raw),
                ValueType::Opaque => raw,
            }
            .to_le_bytes()
        } else {
            tame_mixed(raw, k * 8, values, format)
        };
        if len == 8 {
            out[at..at + 8].copy_from_slice(&bytes);
        } else {
            out[at..at + len].copy_from_slice(&bytes[skip..skip + len]);
        }
        at += len;
    }
}

/// A word that lies across or behind the end of the values, byte by byte.
#[cold]
fn tame_mixed(raw: u64, first: usize, values: usize, format: RowFormat) -> [u8; 8] {
    let mut bytes = match format.value {
        ValueType::F8E4m3 => tame_f8(raw),
        ValueType::Bf16 => tame_bf16(raw),
        ValueType::Opaque => raw,
    }
    .to_le_bytes();
    if matches!(format.scale, RowScale::Ue8m0Per32) {
        for (i, (byte, raw)) in bytes.iter_mut().zip(raw.to_le_bytes()).enumerate() {
            if first + i >= values {
                *byte = 1 + raw % 254;
            }
        }
    }
    bytes
}

/// Writes a whole row; `out` has as many bytes as the row (or fewer, for its beginning).
pub fn fill_row(tag: u64, row: u64, format: RowFormat, out: &mut [u8]) {
    fill_span(tag, row, format, 0, out);
}

/// Whether `bytes` are exactly row `row` of the table with tag `tag`. False if the length is not that of a row.
pub fn check_row(tag: u64, row: u64, format: RowFormat, bytes: &[u8]) -> bool {
    if bytes.len() != format.row_bytes() as usize {
        return false;
    }
    let mut want = [0u8; 64];
    bytes.chunks(64).enumerate().all(|(i, chunk)| {
        let want = &mut want[..chunk.len()];
        fill_span(tag, row, format, (i * 64) as u32, want);
        want == chunk
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rule, byte by byte, as the Python generators state it.
    fn plain(tag: u64, row: u64, format: RowFormat) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..u64::from(format.row_bytes()))
            .map(|i| {
                mix((tag << 48).wrapping_add(row.wrapping_mul(4096)).wrapping_add(i / 8)).to_le_bytes()
                    [(i % 8) as usize]
            })
            .collect();
        let (values, scale) = bytes.split_at_mut(format.value_bytes as usize);
        match format.value {
            ValueType::F8E4m3 => values.iter_mut().filter(|b| **b & 0x7f == 0x7f).for_each(|b| *b -= 1),
            ValueType::Bf16 => values.chunks_exact_mut(2).for_each(|pair| {
                let u = u16::from_le_bytes([pair[0], pair[1]]);
                if u & 0x7f80 == 0x7f80 {
                    pair.copy_from_slice(&(u & 0xbfff).to_le_bytes());
                }
            }),
            ValueType::Opaque => {}
        }
        scale.iter_mut().for_each(|b| *b = 1 + *b % 254);
        bytes
    }

    #[test]
    fn words_and_bytes_agree_in_every_format() {
        let formats = [
            RowFormat::qwen_fp8(160, 1),
            RowFormat::qwen_bf16(160),
            RowFormat::v41(256),
            RowFormat::v41(96),
            RowFormat::qwen_fp8(157, 1),
            RowFormat::qwen_bf16(7),
            RowFormat { value: ValueType::F8E4m3, value_bytes: 35, scale: RowScale::Ue8m0Per32 },
            RowFormat::opaque(90),
        ];
        for format in formats {
            for row in [0, 1, 2_500_011, 384_016_681, u64::MAX] {
                for tag in [0, 1, 14, 65_535] {
                    let want = plain(tag, row, format);
                    let mut got = vec![0; want.len()];
                    fill_row(tag, row, format, &mut got);
                    assert_eq!(got, want, "{format} row {row} tag {tag}");
                    assert!(check_row(tag, row, format, &got));
                    got[want.len() - 1] ^= 1;
                    assert!(!check_row(tag, row, format, &got));
                    assert!(!check_row(tag, row, format, &got[1..]));
                }
            }
        }
    }

    #[test]
    fn spans_are_pieces_of_the_row() {
        let format = RowFormat::v41(256);
        let want = plain(14, 77, format);
        for (start, len) in [(0, 264), (256, 8), (250, 14), (3, 5), (3, 100), (263, 1), (8, 0)] {
            let mut got = vec![0; len];
            fill_span(14, 77, format, start as u32, &mut got);
            assert_eq!(got, want[start..start + len]);
        }
    }

    #[test]
    fn no_row_decodes_to_nan() {
        for row in 0..2000 {
            let f8 = plain(1, row, RowFormat::v41(256));
            assert!(f8[..256].iter().all(|b| b & 0x7f != 0x7f) && f8[256..].iter().all(|&b| b != 0 && b != 255));
            let bf = plain(0, row, RowFormat::qwen_bf16(160));
            assert!(
                bf.chunks_exact(2).all(|p| !f32::from_bits(u32::from(u16::from_le_bytes([p[0], p[1]])) << 16).is_nan())
            );
        }
    }

    #[test]
    fn sparse_proof_covers_what_was_written() {
        let dense = SelfProof { tags: vec![1, 14], sparse_rows: None };
        assert!(dense.covers(1, 5) && !dense.covers(2, 5));
        let sparse = SelfProof { tags: vec![1], sparse_rows: Some(vec![vec![0, 9]]) };
        assert!(sparse.covers(0, 9) && !sparse.covers(0, 8) && !sparse.covers(1, 0));
    }
}
