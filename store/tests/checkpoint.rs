//! Checkpoints in place: what opens, and every fault that is refused, each with its file and its remedy.

mod common;

use std::fs;

use common::{
    PLE, SCALE_BITS, T, check_rows, qwen, qwen_error, remove, safetensors, says, shard, t, tensor, v41, v41_error,
    with_dir, write,
};
use engram_store::{HeaderFault, ModelConfig, RowFormat, RowScale, SourceKind, StoreError, open};
use serde_json::json;

// What opens.

#[test]
fn a_qwen_checkpoint_opens() {
    let (files, config) = qwen();
    let (dir, opened) = with_dir(&files, Some(&config));
    let opened = opened.unwrap();
    assert_eq!(opened.source, SourceKind::Safetensors);
    assert_eq!((opened.tables.len(), opened.tables[0].layer(), opened.tables[0].rows()), (1, 1, 80));
    assert_eq!(opened.row_format, RowFormat::qwen_fp8(10, SCALE_BITS));
    assert_eq!(opened.constants[0].multipliers, [11, 13, 17]);
    assert_eq!(opened.constants[0].primes, common::PRIMES);
    assert_eq!(opened.constants[0].offsets, common::offsets());
    assert!(matches!(opened.config, Some(ModelConfig::QwenPle(_))));
    assert!(opened.self_proof.is_none() && opened.spec_json.is_none() && opened.tokenizer_json.is_none());
    assert_eq!(opened.files.len(), 3);
    check_rows(&opened, &[0]);
    fs::write(dir.path().join("tokenizer.json"), "{}").unwrap();
    assert_eq!(open(dir.path(), None).unwrap().tokenizer_json, Some(dir.path().join("tokenizer.json")));
}

#[test]
fn bf16_needs_no_scale_and_other_prefixes_are_found() {
    let (mut files, config) = qwen();
    remove(&mut files, &format!("{PLE}ngram_embedding.weight_scale"));
    let format = RowFormat::qwen_bf16(10);
    for n in 0..4 {
        let shard = tensor(&mut files, &shard(n));
        (shard.dtype, shard.data) = ("BF16".into(), common::rows(n as u64 * 20, 20, format));
    }
    for tensor in files.values_mut().flatten() {
        tensor.name = tensor.name.replace("model.language_model.layers.1.ple.", "language_model.model.layers.1.x.");
    }
    let (_dir, opened) = with_dir(&files, Some(&config));
    let opened = opened.unwrap();
    assert_eq!(opened.row_format, format);
    check_rows(&opened, &[0]);
}

#[test]
fn a_prefix_without_a_layer_takes_the_only_one_of_the_configuration() {
    let (mut files, config) = qwen();
    for tensor in files.values_mut().flatten() {
        tensor.name = tensor.name.replace("model.language_model.layers.1.ple.", "ple.");
    }
    let (_dir, opened) = with_dir(&files, Some(&config));
    assert_eq!(opened.unwrap().tables[0].layer(), 1);
    let (_dir, opened) = with_dir(&files, None);
    says(&opened.unwrap_err(), &["ple_layer_ids", "ple.ple_embedding"]);
}

#[test]
fn a_v41_checkpoint_has_rows_of_two_parts() {
    let (files, config) = v41();
    let (_dir, opened) = with_dir(&files, Some(&config));
    let opened = opened.unwrap();
    assert_eq!(opened.row_format, RowFormat::v41(64));
    assert_eq!(opened.tables.iter().map(|t| (t.layer(), t.rows())).collect::<Vec<_>>(), [(1, 30), (14, 40)]);
    assert_eq!(opened.tables[0].parts().iter().map(|p| p.bytes).collect::<Vec<_>>(), [64, 2]);
    assert_eq!(opened.files.len(), 2, "values and scales are in one file");
    check_rows(&opened, &[1, 14]);
}

#[test]
fn tables_follow_the_order_of_the_configuration() {
    let (files, mut config) = v41();
    config["text_config"]["engram_layer_ids"] = json!([14, 1]);
    config["text_config"]["engram_num_embeddings"] = json!([40, 30]);
    let (_dir, opened) = with_dir(&files, Some(&config));
    let opened = opened.unwrap();
    assert_eq!(opened.tables.iter().map(|t| t.layer()).collect::<Vec<_>>(), [14, 1]);
    check_rows(&opened, &[14, 1]);
}

#[test]
fn a_second_ple_layer_is_a_second_table() {
    let (mut files, mut config) = qwen();
    config["text_config"]["ple_layer_ids"] = json!([5, 2]);
    let second: Vec<T> =
        files.values().flatten().map(|t| T { name: t.name.replace("layers.1.", "layers.4."), ..t.clone() }).collect();
    files.insert("d.safetensors".into(), second);
    let (_dir, opened) = with_dir(&files, Some(&config));
    let opened = opened.unwrap();
    assert_eq!(opened.tables.iter().map(|t| t.layer()).collect::<Vec<_>>(), [4, 1]);
    assert_eq!(opened.constants.iter().map(|c| c.layer).collect::<Vec<_>>(), [4, 1]);
    check_rows(&opened, &[0, 0]);
    // Both must store their rows alike.
    let scale = format!("{PLE}ngram_embedding.weight_scale");
    tensor(&mut files, &scale).data = 0x3F80u16.to_le_bytes().into();
    let (_dir, opened) = with_dir(&files, Some(&config));
    let error = opened.unwrap_err();
    assert!(matches!(error, StoreError::Differ { .. }), "{error}");
    // One layer, two tables.
    for tensor in files.get_mut("d.safetensors").unwrap() {
        tensor.name = tensor.name.replace("model.language_model.layers.4.", "other.layers.1.");
    }
    let (_dir, opened) = with_dir(&files, Some(&config));
    says(&opened.unwrap_err(), &["layer 1 has two tables", "other.layers.1."]);
}

#[test]
fn without_configuration_the_tensors_tell() {
    for (files, tags) in [(qwen().0, vec![0]), (v41().0, vec![1, 14])] {
        let (_dir, opened) = with_dir(&files, None);
        let opened = opened.unwrap();
        assert!(opened.config.is_none() && opened.notes.iter().any(|n| n.contains("config.json")));
        check_rows(&opened, &tags);
    }
}

#[test]
fn the_flat_configuration_is_the_fallback() {
    let (files, config) = v41();
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &files, Some(&json!({"model_type": "deepseek_v41"})));
    fs::create_dir(dir.path().join("inference")).unwrap();
    let mut flat = config["text_config"].clone();
    flat["n_layers"] = flat["num_hidden_layers"].take();
    flat["engram_pad_id"] = flat["engram_pad_token_id"].take();
    fs::write(dir.path().join("inference/config.json"), flat.to_string()).unwrap();
    let opened = open(dir.path(), None).unwrap();
    assert!(matches!(opened.config, Some(ModelConfig::DeepseekV41(c)) if c.engram_pad_token_id == 2));
}

#[test]
fn a_single_file_needs_no_index() {
    let (files, config) = qwen();
    let all: Vec<T> = files.into_values().flatten().collect();
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("model.safetensors"), safetensors(&all, 3).0).unwrap();
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    check_rows(&open(dir.path(), None).unwrap(), &[0]);
    let opened = open(&dir.path().join("model.safetensors"), None).unwrap();
    check_rows(&opened, &[0]);
    // Files of a cache have no extension: the content tells.
    fs::rename(dir.path().join("model.safetensors"), dir.path().join("0a1b2c")).unwrap();
    check_rows(&open(&dir.path().join("0a1b2c"), None).unwrap(), &[0]);
}

#[test]
fn a_table_in_one_tensor_is_a_table_of_one_shard() {
    let (mut files, config) = qwen();
    for n in 0..4 {
        remove(&mut files, &shard(n));
    }
    let data = common::rows(0, 80, RowFormat::qwen_fp8(10, SCALE_BITS));
    files.get_mut("b.safetensors").unwrap().push(t(format!("{PLE}ngram_embedding.weight"), "F8_E4M3", &[80, 10], data));
    let (_dir, opened) = with_dir(&files, Some(&config));
    check_rows(&opened.unwrap(), &[0]);
}

#[test]
fn the_last_shard_may_be_short() {
    let format = RowFormat::qwen_fp8(10, SCALE_BITS);
    let (mut files, mut config) = qwen();
    config["text_config"]["make_ngram_vocab_size_divisible_by"] = json!(1);
    let last = tensor(&mut files, &shard(3));
    (last.shape, last.data) = (vec![18, 10], common::rows(60, 18, format));
    let (_dir, opened) = with_dir(&files, Some(&config));
    let opened = opened.unwrap();
    assert_eq!(opened.tables[0].rows(), 78);
    check_rows(&opened, &[0]);
}

#[test]
fn parts_that_get_no_rows_may_be_absent_or_empty() {
    // 78 rows in 32 parts: 3 rows each, so the parts 26..32 get none.
    let format = RowFormat::qwen_fp8(10, SCALE_BITS);
    for empty in [false, true] {
        let (mut files, mut config) = qwen();
        config["text_config"]["make_ngram_vocab_size_divisible_by"] = json!(1);
        config["text_config"]["split_ngram_parts"] = json!(32);
        (0..4).for_each(|n| remove(&mut files, &shard(n)));
        let end = if empty { 32 } else { 26 };
        let parts = (0..end).map(|n: u64| {
            let count = if n < 26 { 3 } else { 0 };
            t(shard(n as usize), "F8_E4M3", &[count, 10], common::rows(n * 3, count, format))
        });
        files.get_mut("b.safetensors").unwrap().extend(parts);
        let (_dir, opened) = with_dir(&files, Some(&config));
        check_rows(&opened.unwrap(), &[0]);
    }
}

#[test]
fn data_may_begin_anywhere() {
    let (files, config) = qwen();
    let all: Vec<T> = files.into_values().flatten().collect();
    let base = safetensors(&all, 0).1;
    for residue in [1usize, 2, 7, 511, 513 % 512] {
        let dir = tempfile::tempdir().unwrap();
        let (bytes, start) = safetensors(&all, (residue + 512 - base % 512) % 512);
        assert_eq!(start % 512, residue);
        fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
        fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        check_rows(&open(dir.path(), None).unwrap(), &[0]);
    }
}

// Shards.

#[test]
fn missing_shards_are_counted_and_named() {
    let error = qwen_error(|f, _| remove(f, &shard(2)));
    assert!(matches!(error, StoreError::ShardsMissing { found: 3, expected: 4, .. }), "{error}");
    says(&error, &["missing number(s) 2;", "index.json"]);
    let error = qwen_error(|f, _| remove(f, &shard(3)));
    assert!(matches!(error, StoreError::ShardsMissing { found: 3, expected: 4, .. }), "{error}");
    // Without configuration a gap is still seen.
    let (mut files, _) = qwen();
    remove(&mut files, &shard(0));
    let (_dir, opened) = with_dir(&files, None);
    assert!(matches!(opened.unwrap_err(), StoreError::ShardsMissing { .. }));
    // All of them.
    let error = qwen_error(|f, _| (0..4).for_each(|n| remove(f, &shard(n))));
    assert!(matches!(error, StoreError::ShardsMissing { found: 0, .. }), "{error}");
}

#[test]
fn a_shard_number_occurs_once() {
    let error = qwen_error(|f, _| {
        let copy = T { name: shard(1).replace("shard_1", "shard_01"), ..tensor(f, &shard(1)).clone() };
        f.get_mut("c.safetensors").unwrap().push(copy);
    });
    assert!(matches!(error, StoreError::ShardTwice { number: 1, .. }), "{error}");
    says(&error, &["shard_01", "shard_1"]);
}

#[test]
fn more_shards_than_the_configuration_says() {
    let error = qwen_error(|_, c| c["text_config"]["split_ngram_parts"] = json!(3));
    says(&error, &["shard 3 exists", "split_ngram_parts is 3"]);
    let error = qwen_error(|f, _| tensor(f, &shard(3)).name = shard(4_000_000_000));
    says(&error, &["4000000000"]);
}

#[test]
fn shards_agree_in_type_and_shape() {
    let error = qwen_error(|f, _| {
        let one = tensor(f, &shard(2));
        (one.dtype, one.data) = ("BF16".into(), vec![0; 400]);
    });
    assert!(matches!(error, StoreError::Differ { .. }), "{error}");
    says(&error, &["b.safetensors", "shard_2", "BF16", "shard_0", "F8_E4M3", "mixed"]);
    for (n, shape) in [(1, [10u64, 20]), (1, [19, 10]), (3, [21, 10]), (1, [0, 10])] {
        let error = qwen_error(|f, _| {
            let one = tensor(f, &shard(n));
            (one.shape, one.data) = (shape.into(), vec![0; (shape[0] * shape[1]) as usize]);
        });
        assert!(matches!(error, StoreError::Differ { .. }), "{error}");
    }
}

#[test]
fn size_must_be_that_of_the_shape() {
    let error = qwen_error(|f, _| tensor(f, &shard(3)).shape = vec![20, 11]);
    says(&error, &["shard_3", "220", "200"]);
    assert!(matches!(error, StoreError::Header { fault, .. } if matches!(*fault, HeaderFault::Size { .. })));
}

#[test]
fn width_must_be_that_of_the_configuration() {
    let error = qwen_error(|_, c| c["text_config"]["ple_embed_dim"] = json!(320));
    assert!(matches!(error, StoreError::TensorShape { .. }), "{error}");
    says(&error, &["[rows, 20]"]);
}

#[test]
fn rows_must_be_those_of_the_constants() {
    let error = qwen_error(|f, c| {
        c["text_config"]["split_ngram_parts"] = json!(5);
        let more = T { name: shard(4), ..tensor(f, &shard(3)).clone() };
        f.get_mut("c.safetensors").unwrap().push(more);
    });
    assert!(matches!(error, StoreError::RowsWrong { got: 100, expected: 80, .. }), "{error}");
    // Without configuration the padding is unknown, but rows that the hash addresses must exist.
    let (mut files, _) = qwen();
    remove(&mut files, &shard(3));
    let (_dir, opened) = with_dir(&files, None);
    assert!(matches!(opened.unwrap_err(), StoreError::RowsWrong { got: 60, expected: 78, .. }));
}

// Types and scales.

#[test]
fn unknown_types_are_named() {
    let error = qwen_error(|f, _| (0..4).for_each(|n| tensor(f, &shard(n)).dtype = "F3".into()));
    assert!(matches!(&error, StoreError::DtypeUnknown { dtype, .. } if dtype == "F3"), "{error}");
    says(&error, &["a.safetensors", "shard_0", "F3"]);
    // A foreign tensor of a new type does no harm.
    let (mut files, config) = qwen();
    files.get_mut("c.safetensors").unwrap().push(t("experts.0", "F3", &[7], vec![0; 5]));
    let (_dir, opened) = with_dir(&files, Some(&config));
    check_rows(&opened.unwrap(), &[0]);
}

#[test]
fn known_types_that_cannot_be_served_are_named() {
    for dtype in ["F8_E5M2", "I8", "F8_E8M0"] {
        let error = qwen_error(|f, _| (0..4).for_each(|n| tensor(f, &shard(n)).dtype = dtype.into()));
        assert!(matches!(error, StoreError::Unsupported { .. }), "{error}");
        says(&error, &[dtype, "not supported yet"]);
    }
}

#[test]
fn quantised_tables_are_named() {
    let nvfp4 = qwen_error(|f, _| {
        for n in 0..4 {
            let one = tensor(f, &shard(n));
            (one.dtype, one.shape, one.data) = ("U8".into(), vec![20, 5], vec![0; 100]);
            let name = one.name.replace(".weight", ".weight_scale");
            f.get_mut("b.safetensors").unwrap().push(t(name, "F8_E4M3", &[20, 1], vec![0; 20]));
        }
    });
    says(&nvfp4, &["NVFP4", "not supported yet", "BF16 or FP8"]);
    let nf4 = qwen_error(|f, _| {
        for n in 0..4 {
            let one = tensor(f, &shard(n));
            (one.dtype, one.shape, one.data) = ("U8".into(), vec![20, 6], vec![0; 120]);
        }
    });
    says(&nf4, &["NF4"]);
    let int6 = qwen_error(|f, _| {
        for n in 0..4 {
            let one = tensor(f, &shard(n));
            one.name = one.name.replace(".weight", ".weight_packed");
        }
    });
    says(&int6, &["INT6"]);
    let exl3 = qwen_error(|f, _| {
        let one = tensor(f, &shard(0));
        one.name = one.name.replace(".weight", ".trellis");
    });
    says(&exl3, &["EXL3"]);
}

#[test]
fn fp8_without_a_scale_does_not_open() {
    let scale = format!("{PLE}ngram_embedding.weight_scale");
    let error = qwen_error(|f, _| remove(f, &scale));
    assert!(matches!(error, StoreError::ScaleMissing { .. }), "{error}");
    says(&error, &["weight_scale", "scale_weight", "weight_scale_inv", "noise"]);
    let error = v41_error(|f, _| remove(f, "layers.14.engram.embed.scale"));
    assert!(matches!(error, StoreError::ScaleMissing { .. }), "{error}");
}

#[test]
fn scales_in_other_spellings_are_read_and_noted() {
    let scale = format!("{PLE}ngram_embedding.weight_scale");
    for spelling in ["scale_weight", "weight_scale_inv"] {
        let (mut files, config) = qwen();
        tensor(&mut files, &scale).name = format!("{PLE}ngram_embedding.{spelling}");
        let (_dir, opened) = with_dir(&files, Some(&config));
        let opened = opened.unwrap();
        assert_eq!(opened.row_format.scale, RowScale::GlobalBf16(SCALE_BITS));
        assert!(opened.notes.iter().any(|n| n.contains(spelling)));
    }
    let (mut files, config) = qwen();
    let one = tensor(&mut files, &scale);
    (one.dtype, one.shape, one.data) = ("F32".into(), vec![], 0.1f32.to_le_bytes().into());
    let (_dir, opened) = with_dir(&files, Some(&config));
    let opened = opened.unwrap();
    assert_eq!(opened.row_format.scale, RowScale::GlobalBf16(0x3DCD));
    assert!(opened.notes.iter().any(|n| n.contains("rounded")));
}

#[test]
fn scales_that_cannot_be_used_are_refused() {
    let scale = format!("{PLE}ngram_embedding.weight_scale");
    for bits in [0u16, 0x8000, 0x7F80, 0x7FC0, 0xB951] {
        let error = qwen_error(|f, _| tensor(f, &scale).data = bits.to_le_bytes().into());
        assert!(matches!(error, StoreError::ScaleBad { .. }), "{error}");
    }
    let error = qwen_error(|f, _| {
        let one = tensor(f, &scale);
        (one.shape, one.data) = (vec![2], vec![0; 4]);
    });
    assert!(matches!(error, StoreError::TensorShape { .. }), "{error}");
    let error = qwen_error(|f, _| {
        let second = T { name: format!("{PLE}ngram_embedding.scale_weight"), ..tensor(f, &scale).clone() };
        f.get_mut("c.safetensors").unwrap().push(second);
    });
    says(&error, &["stands beside"]);
    let error = qwen_error(|f, _| {
        for n in 0..4 {
            let one = tensor(f, &shard(n));
            (one.dtype, one.data) = ("BF16".into(), vec![0; 400]);
        }
    });
    says(&error, &["belongs to an FP8 table"]);
}

#[test]
fn constants_must_be_possible() {
    let multipliers = format!("{PLE}layer_multipliers");
    let error = qwen_error(|f, _| tensor(f, &multipliers).data = (-5i64).to_le_bytes().repeat(3));
    says(&error, &["layer_multipliers", "-5"]);
    let error = qwen_error(|f, _| tensor(f, &multipliers).dtype = "F64".into());
    assert!(matches!(error, StoreError::TensorShape { .. }), "{error}");
    let offsets = format!("{PLE}ngram_heads_offsets");
    let error = qwen_error(|f, _| tensor(f, &offsets).data[8] += 1);
    assert!(matches!(error, StoreError::Constants { .. }), "{error}");
    says(&error, &["says 4 for column 1, the sizes before it sum to 3"]);
}

#[test]
fn configuration_and_tensors_must_be_of_one_model() {
    let error = qwen_error(|_, c| c["text_config"]["ple_layer_ids"] = json!([7]));
    says(&error, &["config.json", "ple_layer_ids", "decoder layer 1"]);
    let error = qwen_error(|_, c| c["text_config"]["ple_layer_ids"] = json!([2, 5]));
    says(&error, &["layers.4.ple"]);
    let error = v41_error(|_, c| c["text_config"]["engram_layer_ids"] = json!([1, 15]));
    says(&error, &["config.json", "engram_layer_ids", "layer 14"]);
    let error = v41_error(|f, _| drop(f.remove("model-00003-of-00003.safetensors")));
    says(&error, &["layers.14.engram.embed.weight"]);
    let error = v41_error(|_, c| c["text_config"]["engram_num_embeddings"] = json!([30, 41]));
    assert!(matches!(error, StoreError::RowsWrong { layer: 14, got: 40, expected: 41, .. }), "{error}");
    let error = v41_error(|_, c| c["text_config"]["engram_head_dim"] = json!(96));
    says(&error, &["[rows, 96]"]);
    // A Qwen configuration beside V4.1 tensors, and the reverse.
    let (_dir, opened) = with_dir(&v41().0, Some(&qwen().1));
    says(&opened.unwrap_err(), &["ngram_embedding.shard_0.weight"]);
    let (_dir, opened) = with_dir(&qwen().0, Some(&v41().1));
    says(&opened.unwrap_err(), &["layers.1.engram.embed.weight"]);
}

#[test]
fn v41_tensors_have_their_types_and_shapes() {
    let scale = "layers.1.engram.embed.scale";
    let error = v41_error(|f, _| tensor(f, scale).dtype = "U8".into());
    says(&error, &["U8 [30, 2]", "F8_E8M0 [30, 2]"]);
    let error = v41_error(|f, _| {
        let one = tensor(f, scale);
        (one.shape, one.data) = (vec![29, 2], vec![0; 58]);
    });
    says(&error, &["[29, 2]"]);
    let error = v41_error(|f, _| {
        let one = tensor(f, "layers.1.engram.embed.weight");
        (one.dtype, one.data) = ("BF16".into(), vec![0; 30 * 128]);
    });
    assert!(matches!(error, StoreError::TensorShape { .. }), "{error}");
    let error = v41_error(|f, _| tensor(f, scale).dtype = "E8M0".into());
    assert!(matches!(&error, StoreError::DtypeUnknown { dtype, .. } if dtype == "E8M0"), "{error}");
}
