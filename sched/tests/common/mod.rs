//! Tiny models on real files, whose rows prove their own identity, and the oracle: hash everything again, read plainly.
#![allow(dead_code, unreachable_pub)] // each test binary uses its part

use engram_keygen::{History, Keygen, Spec, Token, TokenMap};
use engram_sched_core::{Parts, Scheduler, StartOptions};
use engram_store::{DataFile, FileId, Part, Shard, Table};
use std::path::Path;

/// Byte `i` of row `row` of layer `layer`.
pub fn proof(layer: u16, row: u64, i: usize) -> u8 {
    let mut x = (u64::from(layer) << 48) + row * 4096 + (i / 8) as u64 + 0x9E37_79B9_7F4A_7C15;
    x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    (x ^ x >> 31).to_le_bytes()[i % 8]
}

/// Which of the two models, at a scale of some thousand rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// One layer, two orders, rows of one part over several files.
    Qwen,
    /// Two layers, three orders, rows of two parts, dead positions.
    V41,
}

/// The made-up V4.1 vocabulary: 1,024 ids onto 509, image id 1008.
pub const V41_IMAGE: Token = 1008;

pub fn keygen(kind: Kind) -> Keygen {
    match kind {
        Kind::Qwen => {
            let spec = Spec {
                vocab: Some(512),
                eos: Some(500),
                multipliers: None,
                image_id: None,
                video_id: None,
                ..Spec::qwen_ple()
            };
            Keygen::new(&spec.scaled_to_rows(4000), None).expect("a valid spec")
        }
        Kind::V41 => {
            let spec = Spec {
                vocab: None,
                compressed_vocab: Some(509),
                token_map: None,
                pad_raw: None,
                pad_compressed: Some(2),
                dead_ids: vec![V41_IMAGE],
                image_id: None,
                ..Spec::deepseek_v41()
            };
            let map = TokenMap::made_up(1024, 509).expect("a valid map");
            Keygen::new(&spec.scaled_to_rows(4000), Some(map)).expect("a valid spec")
        }
    }
}

/// Writes a model below `dir`: every part of every table in `shards` files, data beginning at an odd offset.
pub fn write_model(dir: &Path, kind: Kind, shards: u64) -> Parts {
    let keygen = keygen(kind);
    let (mut tables, mut files) = (Vec::new(), Vec::new());
    for table in 0..keygen.tables() {
        let (layer, rows) = (keygen.layer(table), keygen.table_rows(table));
        let widths: &[u32] = if kind == Kind::Qwen { &[160] } else { &[256, 8] };
        let rows_per_shard = rows.div_ceil(shards);
        let mut parts = Vec::new();
        let mut before = 0usize;
        for (index, &bytes) in widths.iter().enumerate() {
            let mut part = Part { bytes, stride: bytes.into(), rows_per_shard, shards: Vec::new() };
            let mut first = 0;
            while first < rows {
                let count = rows_per_shard.min(rows - first);
                let offset = 67 + 8 * index as u64;
                let mut image = vec![0xEE; offset as usize];
                for row in first..first + count {
                    image.extend((0..bytes as usize).map(|i| proof(layer, row, before + i)));
                }
                let path = dir.join(format!("layer{layer}-part{index}-{first}.bin"));
                std::fs::write(&path, &image).expect("room in the temporary folder");
                part.shards.push(Shard { file: FileId(files.len() as u32), offset, rows: count });
                files.push(DataFile { path, len: image.len() as u64 });
                first += count;
            }
            parts.push(part);
            before += bytes as usize;
        }
        tables.push(Table::new(layer, rows, parts, &files).expect("a valid layout"));
    }
    Parts { keygen, tables, files }
}

/// The rows that a request must get: its whole token list hashed again, for one layer (index), positions `from..`.
pub struct Oracle {
    pub keygen: Keygen,
    pub kind: Kind,
}

impl Oracle {
    pub fn new(kind: Kind) -> Self {
        Self { keygen: keygen(kind), kind }
    }

    pub fn row_bytes(&self) -> usize {
        if self.kind == Kind::Qwen { 160 } else { 264 }
    }

    /// `tokens[..start]` come before; the bytes of positions `start..`.
    pub fn rows(&self, table: usize, tokens: &[(Token, bool)], start: usize) -> Vec<u8> {
        let mut history = History::new(&self.keygen, 16);
        let mut ids = vec![0; self.keygen.columns()];
        let mut out = Vec::new();
        for (pos, &(token, live)) in tokens.iter().enumerate() {
            let window = self.keygen.push(&mut history, token, live);
            if pos < start {
                continue;
            }
            self.keygen.token_rows(table, &window, &mut ids);
            for &row in &ids {
                let layer = self.keygen.layer(table);
                out.extend((0..self.row_bytes()).map(|i| if window.dead() { 0 } else { proof(layer, row, i) }));
            }
        }
        out
    }
}

pub fn start(parts: Parts, options: &StartOptions) -> Scheduler {
    Scheduler::start(parts, options).expect("a scheduler on plain files")
}
