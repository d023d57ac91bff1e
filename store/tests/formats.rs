//! Raw shards and packed records: what opens and what is refused.

mod common;

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use common::{Model, plan};
use engram_store::{
    Opened, PlainReader, RawGeometry, RowFormat, RowScale, SourceKind, StoreError, SynthLayout, open, self_proof, synth,
};
use serde_json::{Value, json};

const FORMAT: RowFormat =
    RowFormat { value: engram_store::ValueType::Opaque, value_bytes: 12, scale: RowScale::Unknown };

/// Shards of 20, 20 and `last` rows of 12 bytes.
fn raw(dir: &Path, last: u64, manifest: Option<Value>) {
    for (n, count) in [20, 20, last].into_iter().enumerate() {
        fs::write(dir.join(format!("shard_{n:03}.bin")), common::rows(n as u64 * 20, count, FORMAT)).unwrap();
    }
    if let Some(manifest) = manifest {
        fs::write(dir.join("manifest.json"), manifest.to_string()).unwrap();
    }
}

fn layout(shards: u64) -> Value {
    json!({
        "layout": {"shards": shards, "rows_per_shard": 20, "width": 6, "elem_bytes": 2, "badge_rows": 341, "new": [1]},
        "source": "somewhere", "slot_index": {"a": 1},
    })
}

fn geometry() -> RawGeometry {
    RawGeometry { layer: 5, rows: Some(60), row_bytes: 12, rows_per_shard: 20, format: Some(FORMAT) }
}

fn check(opened: &Opened) {
    let reader = PlainReader::open(opened).unwrap();
    let mut bytes = [0; 12];
    for row in 0..opened.tables[0].rows() {
        reader.read_row(0, row, &mut bytes).unwrap();
        assert!(self_proof::check_row(0, row, FORMAT, &bytes), "row {row}");
    }
}

fn says(error: &StoreError, words: &[&str]) {
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "no {word:?} in: {text}");
    }
}

#[test]
fn a_manifest_of_engramdb_is_read_leniently() {
    let dir = tempfile::tempdir().unwrap();
    raw(dir.path(), 20, Some(layout(3)));
    let opened = open(dir.path(), None).unwrap();
    assert_eq!((opened.source, opened.tables[0].rows(), opened.tables[0].layer()), (SourceKind::RawShards, 60, 1));
    assert_eq!(opened.row_format, RowFormat::opaque(12));
    assert!(opened.notes.iter().any(|n| n.contains("layer")));
    check(&opened);
}

#[test]
fn geometry_stands_in_for_a_manifest() {
    let dir = tempfile::tempdir().unwrap();
    raw(dir.path(), 20, None);
    says(
        &open(dir.path(), None).unwrap_err(),
        &["manifest.json", "--row-bytes", "--rows-per-shard", "(--rows) are optional"],
    );
    let opened = open(dir.path(), Some(&geometry())).unwrap();
    assert_eq!((opened.tables[0].rows(), opened.tables[0].layer()), (60, 5));
    check(&opened);
    check(&open(dir.path(), Some(&RawGeometry { rows: None, ..geometry() })).unwrap());
    for (change, word) in [
        (RawGeometry { rows: Some(61), ..geometry() }, "missing number(s) 3"),
        (RawGeometry { rows: Some(40), ..geometry() }, "shard_002.bin is shard 2"),
        (RawGeometry { rows: Some(0), ..geometry() }, "at least 1"),
        (RawGeometry { row_bytes: 0, format: None, ..geometry() }, "at least 1"),
        (RawGeometry { rows_per_shard: 0, ..geometry() }, "at least 1"),
        (RawGeometry { row_bytes: 10, ..geometry() }, "takes 12 bytes a row, not 10"),
        (RawGeometry { row_bytes: 10, format: None, ..geometry() }, "240 bytes, its geometry says 200"),
        (RawGeometry { rows: None, rows_per_shard: u64::MAX, ..geometry() }, "2^64"),
    ] {
        says(&open(dir.path(), Some(&change)).unwrap_err(), &[word]);
    }
}

#[test]
fn geometry_and_manifest_must_agree() {
    let dir = tempfile::tempdir().unwrap();
    raw(dir.path(), 20, Some(layout(3)));
    check(&open(dir.path(), Some(&geometry())).unwrap());
    let other = RawGeometry { rows_per_shard: 30, rows: None, ..geometry() };
    says(&open(dir.path(), Some(&other)).unwrap_err(), &["manifest.json", "asked for"]);
}

#[test]
fn the_last_shard_may_be_short_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    raw(dir.path(), 7, Some(layout(3)));
    let opened = open(dir.path(), None).unwrap();
    assert_eq!(opened.tables[0].rows(), 47);
    check(&opened);
    fs::write(dir.path().join("shard_001.bin"), [0; 228]).unwrap();
    let error = open(dir.path(), None).unwrap_err();
    assert!(matches!(error, StoreError::FileLength { len: 228, expected: 240, .. }), "{error}");
    says(&error, &["shard_001.bin", "truncated"]);
}

#[test]
fn lengths_that_are_no_whole_rows_are_refused() {
    for (len, expected, word) in
        [(83, 72, "belong to no row"), (5, 12, "truncated"), (0, 12, "truncated"), (252, 240, "no row")]
    {
        let dir = tempfile::tempdir().unwrap();
        raw(dir.path(), 20, Some(layout(3)));
        fs::write(dir.path().join("shard_002.bin"), vec![0; len]).unwrap();
        let error = open(dir.path(), None).unwrap_err();
        assert!(matches!(error, StoreError::FileLength { expected: e, .. } if e == expected), "{error}");
        says(&error, &["shard_002.bin", word]);
    }
    // By one byte, where the rows are given.
    let dir = tempfile::tempdir().unwrap();
    raw(dir.path(), 20, None);
    fs::write(dir.path().join("shard_002.bin"), vec![0; 239]).unwrap();
    says(&open(dir.path(), Some(&geometry())).unwrap_err(), &["239 bytes", "240", "truncated"]);
}

#[test]
fn missing_and_double_shards_are_named() {
    let dir = tempfile::tempdir().unwrap();
    raw(dir.path(), 20, Some(layout(3)));
    fs::rename(dir.path().join("shard_001.bin"), dir.path().join("shard_2.bin")).unwrap();
    let error = open(dir.path(), None).unwrap_err();
    assert!(matches!(error, StoreError::ShardTwice { number: 2, .. }), "{error}");
    fs::remove_file(dir.path().join("shard_2.bin")).unwrap();
    let error = open(dir.path(), None).unwrap_err();
    assert!(matches!(error, StoreError::ShardsMissing { found: 2, expected: 3, .. }), "{error}");
    says(&error, &["missing number(s) 1;"]);
    let empty = tempfile::tempdir().unwrap();
    fs::write(empty.path().join("manifest.json"), layout(3).to_string()).unwrap();
    says(&open(empty.path(), None).unwrap_err(), &["0 of 3 shards"]);
}

#[test]
fn impossible_manifests_are_named() {
    for (key, value) in [
        ("width", json!(0)),
        ("width", json!(u64::MAX)),
        ("shards", json!(0)),
        ("shards", json!(u64::MAX)),
        ("rows_per_shard", json!(0)),
        ("rows_per_shard", json!("20")),
        ("elem_bytes", json!(-1)),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut manifest = layout(3);
        manifest["layout"][key] = value;
        raw(dir.path(), 20, Some(manifest));
        let error = open(dir.path(), None).unwrap_err();
        assert!(matches!(error, StoreError::Geometry { .. } | StoreError::Json { .. }), "{error}");
        says(&error, &["manifest.json"]);
    }
    let dir = tempfile::tempdir().unwrap();
    raw(dir.path(), 20, None);
    fs::write(dir.path().join("manifest.json"), "{").unwrap();
    says(&open(dir.path(), None).unwrap_err(), &["manifest.json", "not valid"]);
}

#[test]
fn badges_are_rows_with_padding_behind() {
    let dir = tempfile::tempdir().unwrap();
    raw(dir.path(), 20, Some(layout(3)));
    for n in 0..3 {
        let path = dir.path().join(format!("shard_{n:03}.bin"));
        let mut bytes = fs::read(&path).unwrap();
        bytes.resize(341 * 12, 0);
        fs::write(dir.path().join(format!("badge_{n:03}.bin")), bytes).unwrap();
        fs::remove_file(path).unwrap();
    }
    check(&open(dir.path(), Some(&geometry())).unwrap());
    fs::write(dir.path().join("badge_001.bin"), vec![0; 240 + 342 * 12]).unwrap();
    says(&open(dir.path(), Some(&geometry())).unwrap_err(), &["badge_001.bin"]);
}

#[test]
fn a_folder_of_raw_tables_needs_their_layers() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["layer_14", "layer_2"] {
        fs::create_dir(dir.path().join(name)).unwrap();
        raw(&dir.path().join(name), 20, Some(layout(3)));
    }
    let opened = open(dir.path(), None).unwrap();
    assert_eq!(opened.tables.iter().map(|t| t.layer()).collect::<Vec<_>>(), [2, 14]);
    check(&opened);
    fs::rename(dir.path().join("layer_2"), dir.path().join("second")).unwrap();
    says(&open(dir.path(), None).unwrap_err(), &["second", "layer_N"]);
    fs::rename(dir.path().join("second"), dir.path().join("layer-14")).unwrap();
    says(&open(dir.path(), None).unwrap_err(), &["second table of layer 14"]);
}

// Packed records.

/// A packed table whose manifest was changed.
fn packed(change: impl FnOnce(&mut Value)) -> (tempfile::TempDir, Result<Opened, StoreError>) {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("t");
    synth(&plan(Model::V41, SynthLayout::Packed, &out), &mut |_, _| ControlFlow::Continue(())).unwrap();
    let path = out.join("engram-sched.json");
    let mut manifest: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut manifest);
    fs::write(&path, manifest.to_string()).unwrap();
    let opened = open(&out, None);
    (dir, opened)
}

#[test]
fn packed_records_are_one_extent_a_row() {
    let (_dir, opened) = packed(|_| {});
    let opened = opened.unwrap();
    assert_eq!(opened.source, SourceKind::Packed);
    assert_eq!((opened.tables[1].row_bytes(), opened.tables[1].extent(0, 39).offset), (66, 39 * 66));
}

#[test]
fn older_readers_open_what_they_understand() {
    let (_dir, opened) = packed(|m| {
        m["version"] = json!(9);
        m["a_new_key"] = json!({"x": 1});
    });
    assert!(opened.unwrap().notes.iter().any(|n| n.contains("format 9")));
    // What a newer format means by the other keys is not for us to parse.
    let (_dir, opened) = packed(|m| {
        m["version"] = json!(9);
        m["reader_min"] = json!(2);
        m["tables"] = json!("elsewhere");
    });
    let error = opened.unwrap_err();
    assert!(matches!(error, StoreError::ManifestVersion { version: 9, reader_min: 2, ours: 1, .. }), "{error}");
    says(&error, &["engram-sched.json", "update engram-sched"]);
}

#[test]
fn manifests_that_cannot_be_are_refused() {
    type Change<'a> = (&'a dyn Fn(&mut Value), &'a str);
    let refused: [Change<'_>; 14] = [
        (&|m| m["magic"] = json!("other"), "not a manifest of this program"),
        (&|m| m["tables"] = json!([]), "no table"),
        (&|m| m["tables"][1]["layer"] = json!(1), "layer 1 twice"),
        (&|m| m["tables"][0]["rows"] = json!(29), "another length"),
        (&|m| m["tables"][0]["rows"] = json!(0), "do not hold its rows"),
        (&|m| m["tables"][0]["rows_per_file"] = json!(7), "do not hold its rows"),
        (&|m| m["tables"][0]["files"] = json!([]), "do not hold its rows"),
        (&|m| m["tables"][0]["files"][0]["len"] = json!(5), "another length"),
        (&|m| m["tables"][0]["files"][0]["name"] = json!("../layer_1.bin"), "not inside the folder"),
        (&|m| m["tables"][0]["files"][0]["name"] = json!("/etc/passwd"), "not inside the folder"),
        (&|m| m["tables"][0]["sparse_rows"] = json!([3, 2]), "out of order"),
        (&|m| m["tables"][0]["sparse_rows"] = json!([30]), "out of order or range"),
        (&|m| m["row_format"]["value_bytes"] = json!(0), "no bytes"),
        (&|m| m["row_format"] = json!("x"), "not valid"),
    ];
    for (change, word) in refused {
        let (_dir, opened) = packed(change);
        says(&opened.unwrap_err(), &["engram-sched.json", word]);
    }
}

#[test]
fn packed_files_have_their_length() {
    let (dir, _) = packed(|_| {});
    let out = dir.path().join("t");
    let file = fs::OpenOptions::new().write(true).open(out.join("layer_14.bin")).unwrap();
    for (len, word) in [(40 * 66 - 1, "truncated"), (40 * 66 + 1, "belong to no row")] {
        file.set_len(len).unwrap();
        says(&open(&out, None).unwrap_err(), &["layer_14.bin", "2640", word]);
    }
    fs::remove_file(out.join("layer_14.bin")).unwrap();
    assert!(matches!(open(&out, None), Err(StoreError::FileMissing { path }) if path.ends_with("layer_14.bin")));
}

#[test]
fn a_card_must_match_the_files_beside_it() {
    for layout in [SynthLayout::Shards, SynthLayout::Safetensors] {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("t");
        synth(&plan(Model::V41, layout, &out), &mut |_, _| ControlFlow::Continue(())).unwrap();
        let path = out.join("engram-sched.json");
        let mut card: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        card["tables"][1]["rows"] = json!(41);
        fs::write(&path, card.to_string()).unwrap();
        says(&open(&out, None).unwrap_err(), &["engram-sched.json", "other tables"]);
    }
}
