//! Checkpoints written by an independent program (numpy, PyPI safetensors): `ref/gen_fixture.py` and `ref/gen_fixture_v41.py`.
//!
//! Runs when `ENGRAM_FIXTURES` names a folder with `qwen-fp8`, `qwen-bf16` and `v41-split`; `qwen-nvfp4` and `qwen-int6g32` are looked at if
//! they are there (other tests hold their refusal, too).

mod common;

use std::env;
use std::fs;
use std::path::PathBuf;

use engram_store::{ModelConfig, Opened, PlainReader, RowFormat, StoreError, open, self_proof};
use serde_json::Value;

/// The fixture, or a word about why not.
fn fixture(name: &str) -> Option<PathBuf> {
    let Some(root) = env::var_os("ENGRAM_FIXTURES") else {
        println!("SKIP: fixtures: ENGRAM_FIXTURES, a folder with {name}");
        return None;
    };
    let root = PathBuf::from(root);
    let path = root.join(name);
    if root.join("partial").exists() && !path.is_dir() {
        println!("SKIP: fixture {name}: not among those of the repository");
        return None;
    }
    // Whoever names a folder means it: a fixture that is not there is a fault, not a skip.
    assert!(path.is_dir(), "{} does not exist", path.display());
    Some(path)
}

/// Every row of every table proves itself.
fn check(opened: &Opened, tags: &[u64]) -> u64 {
    let reader = PlainReader::open(opened).unwrap();
    let mut checked = 0;
    for (index, (table, &tag)) in opened.tables.iter().zip(tags).enumerate() {
        let mut bytes = vec![0; table.row_bytes() as usize];
        for row in 0..table.rows() {
            reader.read_row(index, row, &mut bytes).unwrap();
            assert!(self_proof::check_row(tag, row, opened.row_format, &bytes), "table {index} row {row}");
            checked += 1;
        }
    }
    checked
}

#[test]
fn qwen() {
    for (name, format) in [("qwen-fp8", RowFormat::qwen_fp8(160, 0x3951)), ("qwen-bf16", RowFormat::qwen_bf16(160))] {
        let Some(path) = fixture(name) else { continue };
        let opened = open(&path, None).unwrap();
        assert_eq!(opened.row_format, format);
        assert_eq!((opened.tables.len(), opened.tables[0].rows()), (1, 2208));
        assert_eq!(opened.constants[0].primes[..3], [101, 103, 107]);
        assert!(
            matches!(&opened.config, Some(ModelConfig::QwenPle(c)) if c.split_ngram_parts == 8 && c.eos_token_id == 500)
        );
        assert_eq!(check(&opened, &[0]), 2208);
    }
}

#[test]
fn qwen_formats_of_later() {
    for (name, word) in [("qwen-nvfp4", "NVFP4"), ("qwen-int6g32", "INT6")] {
        let Some(path) = env::var_os("ENGRAM_FIXTURES").map(|f| PathBuf::from(f).join(name)) else { continue };
        if !path.is_dir() {
            println!("{name} is not among the fixtures");
            continue;
        }
        let error = open(&path, None).unwrap_err();
        assert!(matches!(error, StoreError::Unsupported { .. }) && error.to_string().contains(word), "{error}");
    }
}

#[test]
fn v41_split() {
    let Some(path) = fixture("v41-split") else { return };
    let opened = open(&path, None).unwrap();
    let expected: Value = serde_json::from_slice(&fs::read(path.join("expected.json")).unwrap()).unwrap();
    let tables = expected["tables"].as_array().unwrap();
    assert_eq!(opened.tables.len(), tables.len());
    assert!(matches!(&opened.config, Some(ModelConfig::DeepseekV41(c)) if c.image_token_id == Some(1008)));
    let reader = PlainReader::open(&opened).unwrap();
    let mut tags = Vec::new();
    for (index, (table, want)) in opened.tables.iter().zip(tables).enumerate() {
        assert_eq!(u64::from(table.layer()), want["layer"].as_u64().unwrap());
        assert_eq!(table.rows(), want["rows"].as_u64().unwrap());
        assert_eq!(u64::from(table.row_bytes()), want["row_bytes"].as_u64().unwrap());
        tags.push(want["tag"].as_u64().unwrap());
        for (part, want) in want["extents"].as_array().unwrap().iter().enumerate() {
            let extent = table.extent(part, 0);
            assert_eq!(extent.offset, want["offset"].as_u64().unwrap());
            assert_eq!(u64::from(extent.len), want["bytes"].as_u64().unwrap());
            assert!(opened.files[extent.file.0 as usize].path.ends_with(want["file"].as_str().unwrap()));
        }
        for (row, hex) in want["samples"].as_object().unwrap() {
            let mut bytes = vec![0; table.row_bytes() as usize];
            reader.read_row(index, row.parse().unwrap(), &mut bytes).unwrap();
            let got: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
            assert_eq!(got, hex.as_str().unwrap(), "table {index} row {row}");
        }
    }
    assert_eq!(check(&opened, &tags), opened.tables.iter().map(|t| t.rows()).sum::<u64>());
    // The flat configuration alone serves as well.
    let flat = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(&path).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != "config.json" {
            std::os::unix::fs::symlink(entry.path(), flat.path().join(entry.file_name())).unwrap();
        }
    }
    let again = open(flat.path(), None).unwrap();
    assert!(matches!(&again.config, Some(ModelConfig::DeepseekV41(c)) if c.engram_pad_token_id == 2));
    assert_eq!(again.tables, opened.tables);
}
