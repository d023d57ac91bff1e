//! Vectors that others computed: FP8 values, decoded rows, and where the rows of the released Qwen checkpoint lie.
//!
//! `golden_dequant.json` and `golden_qwen38_ple_layout.json` (its parts `e4m3fn` and `locate`) come from the project's reference vectors.

mod common;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;

use common::write_index;
use engram_store::decode::{E4M3FN, ScaleZero, decode_bf16, f32_from_e4m3fn};
use engram_store::{RowFormat, SourceKind, open};
use serde_json::{Map, Value, json};

fn golden(name: &str) -> Value {
    let path = format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn hex(text: &Value) -> Vec<u8> {
    let text = text.as_str().unwrap().as_bytes();
    text.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

#[test]
fn all_e4m3fn_values() {
    let bits = golden("golden_dequant.json");
    let values = golden("golden_qwen38_ple_layout.json");
    for byte in 0..=255u8 {
        let got = f32_from_e4m3fn(byte);
        assert_eq!(got.to_bits(), E4M3FN[byte as usize].to_bits());
        let want = f32::from_bits(bits["e4m3fn_f32_bits"][byte as usize].as_u64().unwrap() as u32);
        match values["e4m3fn"][byte as usize].as_f64() {
            Some(value) => assert_eq!((got.to_bits(), got), (want.to_bits(), value as f32), "byte {byte}"),
            None => assert!(got.is_nan() && want.is_nan(), "byte {byte}"),
        }
    }
}

#[test]
fn decoded_rows() {
    let golden = golden("golden_dequant.json");
    let format = RowFormat::v41(256);
    let mut seen_zero_scale = 0;
    for (index, row) in golden["rows"].as_array().unwrap().iter().enumerate() {
        let (value, scale) = (hex(&row["value_hex"]), hex(&row["scale_hex"]));
        let want = hex(&row["bf16_hex_le"]);
        let want: Vec<u16> = want.as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b)).collect();
        let bytes = [value, scale.clone()].concat();
        let mut got = vec![0; 256];
        decode_bf16(format, ScaleZero::TwoToMinus127, &bytes, &mut got).unwrap();
        let nan = |bits: u16| bits & 0x7FFF > 0x7F80;
        let same = got.iter().zip(&want).all(|(&a, &b)| a == b || (nan(a) && nan(b)));
        assert!(same, "row {index}");
        // The other rule for scale byte 0 changes those blocks alone, to zeros.
        let mut zeroed = vec![0; 256];
        decode_bf16(format, ScaleZero::Zero, &bytes, &mut zeroed).unwrap();
        for (block, &scale) in scale.iter().enumerate() {
            let range = block * 32..block * 32 + 32;
            if scale == 0 {
                seen_zero_scale += 1;
                assert!(zeroed[range].iter().all(|b| b & 0x7FFF == 0 || nan(*b)));
            } else {
                assert_eq!(zeroed[range.clone()], got[range]);
            }
        }
    }
    assert!(seen_zero_scale > 0);
}

/// The 33 files of the released BF16 checkpoint that hold shards, as sparse files with the real offsets.
#[test]
fn rows_of_the_released_checkpoint_are_located() {
    const ROWS: u64 = 2_500_012;
    const SHARD: u64 = ROWS * 320;
    const PREFIX: &str = "model.language_model.layers.1.ple.ple_embedding.ngram_embedding.";
    let dir = tempfile::tempdir().unwrap();
    // File number -> (tensor, type, shape, bytes) in order; what lies between the shards is one tensor of bytes.
    let mut files: BTreeMap<u32, Vec<(String, &str, Value, u64)>> = BTreeMap::new();
    let mut add = |file: u32, name: &str, len: u64| {
        files.entry(file).or_default().push((name.to_owned(), "U8", json!([len]), len));
    };
    add(5, "before_5", 1_755_878_424);
    add(37, "before_37", 82_176);
    for n in 0..128u64 {
        let file = match n {
            0 | 1 => 5,
            126 | 127 => 37,
            _ => 6 + ((n - 2) / 4) as u32,
        };
        let tensors = files.entry(file).or_default();
        tensors.push((format!("{PREFIX}shard_{n}.weight"), "BF16", json!([ROWS, 160]), SHARD));
    }
    files.entry(37).or_default().push(("behind_37".into(), "U8", json!([13_107_200]), 13_107_200));
    let mut index = Map::new();
    let mut data_start = BTreeMap::new();
    for (number, tensors) in &files {
        let name = format!("model-{number:05}-of-00131.safetensors");
        let mut header = Map::new();
        let mut at = 0;
        for (tensor, dtype, shape, len) in tensors {
            header.insert(tensor.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": [at, at + len]}));
            index.insert(tensor.clone(), name.clone().into());
            at += len;
        }
        let mut text = Value::Object(header).to_string();
        text.push_str(&" ".repeat(text.len().next_multiple_of(8) - text.len()));
        let mut file = File::create(dir.path().join(&name)).unwrap();
        file.write_all(&(text.len() as u64).to_le_bytes()).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.set_len(8 + text.len() as u64 + at).unwrap();
        data_start.insert(name, 8 + text.len() as u64);
    }
    // The index names the other 98 files too; who only serves rows does not have them.
    index.insert("lm_head.weight".into(), "model-00131-of-00131.safetensors".into());
    write_index(dir.path(), index);

    let opened = open(dir.path(), None).unwrap();
    assert_eq!((opened.source, opened.files.len()), (SourceKind::Safetensors, 33));
    let table = &opened.tables[0];
    assert_eq!((table.rows(), table.row_bytes(), table.layer()), (320_001_536, 320, 1));
    let golden = golden("golden_qwen38_ple_layout.json");
    let locate = golden["locate"].as_array().unwrap();
    assert_eq!(locate.len(), 10);
    for case in locate {
        let number = |key: &str| case[key].as_u64().unwrap();
        let row = number("rowid");
        assert_eq!((row / ROWS, row % ROWS), (number("shard"), number("row_in_shard")));
        assert_eq!(row % ROWS * 160, number("offset_in_shard_fp8"));
        let extent = table.extent(0, row);
        let file = opened.files[extent.file.0 as usize].path.file_name().unwrap().to_str().unwrap();
        assert_eq!(file, case["bf16_file"].as_str().unwrap(), "row {row}");
        assert_eq!(extent.offset - data_start[file], number("bf16_data_offset"), "row {row}");
    }
}
