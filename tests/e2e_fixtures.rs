//! Tiny checkpoints written by independent reference scripts, through the real scheduler, against their expected rows.
//!
//! `ENGRAM_FIXTURES` names the folder with `qwen-fp8`, `qwen-bf16` and `v41-split`; without it these tests say so and pass.

use engram_sched::{
    AwaitError, BackendChoice, Begin, DirectMode, Model, ModelOptions, RequestId, Scheduler, StartOptions, Token,
};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::path::PathBuf;

fn fixture(name: &str) -> Option<PathBuf> {
    match std::env::var_os("ENGRAM_FIXTURES") {
        Some(folder) => {
            let folder = PathBuf::from(folder);
            // `ci/fixtures.sh` says so where it has but those of the repository.
            if folder.join("partial").exists() && !folder.join(name).is_dir() {
                println!("SKIP: fixture {name}: not among those of the repository");
                return None;
            }
            Some(folder.join(name))
        }
        None => {
            println!("SKIP: fixture {name}: ENGRAM_FIXTURES is not set");
            None
        }
    }
}

/// Every I/O path that this machine has.
fn paths() -> Vec<StartOptions> {
    let mut paths = Vec::new();
    for backend in [BackendChoice::Auto, BackendChoice::Pread, BackendChoice::Mmap] {
        for direct in [DirectMode::Auto, DirectMode::Off] {
            paths.push(StartOptions { backend, direct, ..StartOptions::default() });
        }
    }
    paths
}

fn hex(digest: impl AsRef<[u8]>) -> String {
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Takes every layer of what was fed; appends the bytes to `got`, one list per layer.
fn take(scheduler: &Scheduler, request: RequestId, tokens: usize, got: &mut [Vec<u8>]) -> Result<(), AwaitError> {
    for (layer, got) in scheduler.layers().to_vec().into_iter().zip(got) {
        let rows = scheduler.await_layer(request).wait()?;
        assert_eq!((rows.layer(), rows.shape()[0]), (layer, tokens));
        got.extend_from_slice(rows.bytes());
    }
    Ok(())
}

fn ids(value: &Value) -> Vec<Token> {
    value.as_array().unwrap().iter().map(|id| id.as_i64().unwrap() as Token).collect()
}

#[test]
fn v41_split() {
    let Some(folder) = fixture("v41-split") else { return };
    let expected: Value =
        serde_json::from_str(&std::fs::read_to_string(folder.join("expected.json")).unwrap()).unwrap();
    let options = ModelOptions { token_map: Some(folder.join("token_map_i32.bin")), ..ModelOptions::default() };
    let model = Model::open(&folder, &options).unwrap();
    let cases = expected["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 40);
    for path in paths() {
        let scheduler = Scheduler::start(&model, &path).unwrap();
        for case in cases {
            let name = case["name"].as_str().unwrap();
            let (history, raw_ids) = (ids(&case["history"]), ids(&case["raw_ids"]));
            let begin = Begin { start_pos: history.len() as u64, history: &history, ..Begin::default() };
            // Whole, in the given chunks, and token by token.
            let ones = vec![1; raw_ids.len()];
            let chunks: Vec<usize> =
                case["chunks"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect();
            for chunks in [&[raw_ids.len()][..], &chunks, &ones] {
                let request = scheduler.begin(begin).unwrap();
                let mut got = vec![Vec::new(); scheduler.layers().len()];
                let mut at = 0;
                for &chunk in chunks {
                    let (pos, tokens) = ((history.len() + at) as u64, &raw_ids[at..at + chunk]);
                    scheduler.on_tokens(request, pos, tokens, None).unwrap();
                    take(&scheduler, request, chunk, &mut got).unwrap();
                    at += chunk;
                }
                scheduler.finish(request);
                for (layer, got) in scheduler.layers().iter().zip(&got) {
                    let want = case["sha256_dead_zeroed"][layer.to_string()].as_str().unwrap();
                    assert_eq!(hex(Sha256::digest(got)), want, "{name}, layer {layer}, {chunks:?}, {path:?}");
                }
            }
        }
    }
    println!("v41-split: 40 cases x 3 ways to cut x {} I/O paths, 0 mismatches", paths().len());
}

#[test]
fn v41_split_row_ids() {
    let Some(folder) = fixture("v41-split") else { return };
    let expected: Value =
        serde_json::from_str(&std::fs::read_to_string(folder.join("expected.json")).unwrap()).unwrap();
    let options = ModelOptions { token_map: Some(folder.join("token_map_i32.bin")), ..ModelOptions::default() };
    let model = Model::open(&folder, &options).unwrap();
    let keygen = model.keygen();
    let mut rows = vec![0; keygen.columns()];
    for case in expected["cases"].as_array().unwrap() {
        let history = ids(&case["history"]);
        let mut past = engram_sched::History::new(keygen, 0);
        past.seed(keygen, &history, None, history.len() as u64).unwrap();
        for (at, token) in ids(&case["raw_ids"]).into_iter().enumerate() {
            let window = keygen.push(&mut past, token, true);
            for table in 0..keygen.tables() {
                keygen.token_rows(table, &window, &mut rows);
                let want = &case["rowids"][keygen.layer(table).to_string()][at];
                assert_eq!(&Value::from(rows.clone()), want, "{}, token {at}", case["name"]);
            }
        }
    }
}

/// One step of splitmix64, as the reference script has it.
fn mix(x: u64) -> u64 {
    let mut x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// The bytes that `gen_fixture.py` gives a row.
fn row_bytes(row: u64, len: usize, fp8: bool) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        (0..len.div_ceil(8) as u64).flat_map(|k| mix(row * 4096 + k).to_le_bytes()).take(len).collect();
    if fp8 {
        bytes.iter_mut().filter(|byte| **byte & 0x7f == 0x7f).for_each(|byte| *byte -= 1);
    } else {
        for value in bytes.chunks_exact_mut(2) {
            if value[0] & 0x80 != 0 && value[1] & 0x7f == 0x7f {
                value[1] &= 0xbf;
            }
        }
    }
    bytes
}

/// The rows of Qwen's fixture, written down once more from the specification: no code of the product.
fn qwen_rows(multipliers: &[u64], primes: &[u64], eos: u64, past: &[u64]) -> Vec<u64> {
    let back = |k: usize| past.len().checked_sub(k + 1).map(|i| past[i]);
    let mut window = [past[past.len() - 1], eos, eos];
    for k in 1..3 {
        match back(k) {
            Some(id) if !window[1..k].contains(&eos) => window[k] = id,
            _ => {}
        }
    }
    let two = (window[0] * multipliers[0]) ^ (window[1] * multipliers[1]);
    let three = two ^ (window[2] * multipliers[2]);
    let mut offset = 0;
    primes
        .iter()
        .enumerate()
        .map(|(head, prime)| {
            let row = if head < 8 { two } else { three } % prime + offset;
            offset += prime;
            row
        })
        .collect()
}

fn qwen(name: &str, len: usize, fp8: bool) {
    let Some(folder) = fixture(name) else { return };
    let model = Model::open(&folder, &ModelOptions::default()).unwrap();
    let keygen = model.keygen();
    assert_eq!((model.tables()[0].rows(), model.tables()[0].row_bytes() as usize), (2208, len));
    // 512 ids, EOS 500; every id once, EOS runs, the image placeholder, and repetition.
    let mut stream: Vec<Token> = (0..512).collect();
    stream.extend([500, 500, 7, 500, 7, 8, 500, 7, 8, 9, 510, 510, 510, 510, 3, 502, 4]);
    stream.extend((0..300).map(|i| (i * i * 31 + 7) % 512));
    let primes = keygen.primes(0).to_vec();
    let multipliers = keygen.multipliers(0).to_vec();
    let mut want = Vec::new();
    let mut past: Vec<u64> = Vec::new();
    for &token in &stream {
        past.push(token as u64);
        for row in qwen_rows(&multipliers, &primes, 500, &past) {
            want.extend(row_bytes(row, len, fp8));
        }
    }
    for path in paths() {
        let scheduler = Scheduler::start(&model, &path).unwrap();
        for chunk in [1, 7, 64, 500] {
            let request = scheduler.begin(Begin::default()).unwrap();
            let mut got = vec![Vec::new()];
            for (i, tokens) in stream.chunks(chunk).enumerate() {
                scheduler.on_tokens(request, (i * chunk) as u64, tokens, None).unwrap();
                take(&scheduler, request, tokens.len(), &mut got).unwrap();
            }
            scheduler.finish(request);
            assert!(got[0] == want, "{name}, chunks of {chunk}, {path:?}");
        }
        let rows: Vec<u64> = (0..2208).collect();
        let mut all = vec![0; 2208 * len];
        scheduler.read_rows(scheduler.layers()[0], &rows, &mut all).unwrap();
        for (row, bytes) in all.chunks_exact(len).enumerate() {
            assert_eq!(bytes, row_bytes(row as u64, len, fp8), "{name}, row {row}, {path:?}");
        }
    }
    println!("{name}: {} tokens x 4 ways to cut x {} I/O paths, 0 mismatches", stream.len(), paths().len());
}

#[test]
fn qwen_fp8() {
    qwen("qwen-fp8", 160, true);
}

#[test]
fn qwen_bf16() {
    qwen("qwen-bf16", 320, false);
}
