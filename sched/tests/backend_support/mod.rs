//! What the backend tests share: files whose bytes prove where they come from, and a loop that drives a backend.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

use engram_sched_core::io::{Backend, Completion, ReadOp, Wait};
use engram_store::{DataFile, FileId};
use std::collections::HashMap;
use std::path::Path;

/// The byte at `offset` of file `file`: no two 8-byte words of any file are alike.
pub fn byte_at(file: u32, offset: u64) -> u8 {
    let mut z = (u64::from(file) << 48 ^ (offset / 8)).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (z >> (8 * (offset % 8))) as u8
}

pub fn image(file: u32, len: u64) -> Vec<u8> {
    (0..len).map(|offset| byte_at(file, offset)).collect()
}

/// Writes files of these lengths into `dir`.
pub fn write_files(dir: &Path, lens: &[u64]) -> Vec<DataFile> {
    lens.iter()
        .enumerate()
        .map(|(i, &len)| {
            let path = dir.join(format!("table_{i}.bin"));
            std::fs::write(&path, image(i as u32, len)).unwrap();
            std::fs::File::open(&path).unwrap().sync_all().unwrap();
            DataFile { path, len }
        })
        .collect()
}

pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// Drives a backend and checks what comes back.
pub struct Driver<'b> {
    pub backend: &'b mut dyn Backend,
    pub out: HashMap<u64, ReadOp>,
    pub free: Vec<u32>,
    pub generation: u32,
    pub lens: Vec<u64>,
}

impl<'b> Driver<'b> {
    pub fn new(backend: &'b mut dyn Backend, lens: &[u64]) -> Self {
        let free = (0..backend.slots()).collect();
        Self { backend, out: HashMap::new(), free, generation: 0, lens: lens.into() }
    }

    /// Queues a read into a free slot.
    pub fn queue(&mut self, file: u32, offset: u64, len: u32) -> u64 {
        let slot = self.free.pop().expect("a free slot");
        self.generation += 1;
        let tag = u64::from(self.generation) << 32 | u64::from(slot);
        let op = ReadOp { tag, file: FileId(file), offset, len, slot, slot_offset: 0 };
        self.backend.queue(op);
        self.out.insert(tag, op);
        tag
    }

    /// Reaps once; every completion must belong to a read that is out, and its bytes must be the file's.
    pub fn reap(&mut self, wait: Wait) -> Vec<(ReadOp, Result<u32, i32>)> {
        let mut completions = Vec::new();
        self.backend.reap(wait, &mut completions).expect("the path is whole");
        completions.into_iter().map(|c| self.check(c)).collect()
    }

    pub fn check(&mut self, completion: Completion) -> (ReadOp, Result<u32, i32>) {
        let op = self.out.remove(&completion.tag).expect("a completion for each read, once");
        self.free.push(op.slot);
        if let Ok(bytes) = completion.result {
            let slot = &self.backend.slot(op.slot)[op.slot_offset as usize..][..op.len as usize];
            for (i, &byte) in slot[..bytes as usize].iter().enumerate() {
                assert_eq!(byte, byte_at(op.file.0, op.offset + i as u64), "{op:?} at +{i}");
            }
            if cfg!(debug_assertions) {
                // A direct read may put zeros beyond the end of the file.
                let fresh = slot[bytes as usize..].iter().all(|&b| b == 0xDB || b == 0);
                assert!(fresh, "bytes beyond a short read are never stale");
            }
        }
        (op, completion.result)
    }

    /// Reaps until nothing is out.
    pub fn finish(&mut self) -> Vec<(ReadOp, Result<u32, i32>)> {
        let mut all = Vec::new();
        while !self.out.is_empty() {
            all.extend(self.reap(Wait::Completion));
        }
        all
    }

    /// Reads at random until `reads` have completed, keeping as many out as there are slots; every one must be whole and right.
    pub fn storm(&mut self, random: &mut Random, reads: usize) {
        let (mut started, mut done) = (0, 0);
        while done < reads {
            // Sometimes a burst, sometimes one.
            let room = if random.below(4) == 0 { 1 } else { self.free.len() };
            for _ in 0..room.min(self.free.len()).min(reads - started) {
                let file = random.below(self.lens.len() as u64) as u32;
                let alignment = u64::from(self.backend.alignment(FileId(file))).max(512);
                let len = ((1 + random.below(u64::from(self.backend.slot_bytes()) / alignment)) * alignment) as u32;
                let offset = random.below(self.lens[file as usize] / alignment) * alignment;
                self.queue(file, offset, len);
                started += 1;
            }
            if random.below(3) == 0 {
                self.backend.submit();
            }
            let wait = if random.below(3) == 0 { Wait::Poll } else { Wait::Completion };
            for (op, result) in self.reap(wait) {
                let whole = (self.lens[op.file.0 as usize] - op.offset).min(u64::from(op.len)) as u32;
                assert_eq!(result, Ok(whole), "{op:?}");
                done += 1;
            }
        }
    }
}
