//! Files of a checkpoint: index, headers, links, paths; what opens and every fault that is refused.

mod common;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::symlink;

use common::{check_rows, qwen, remove, safetensors, says, shard, t, v41, with_dir, write, write_index};
use engram_store::{HeaderFault, LayoutError, PlainReader, StoreError, open};
use serde_json::{Map, Value};

// Files and index.

#[test]
fn missing_files_are_named_though_the_count_is_right() {
    let (files, config) = qwen();
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &files, Some(&config));
    fs::rename(dir.path().join("b.safetensors"), dir.path().join("stray-99.safetensors")).unwrap();
    let error = open(dir.path(), None).unwrap_err();
    assert!(matches!(&error, StoreError::IndexFilesMissing { files, .. } if files == &["b.safetensors"]), "{error}");
    says(&error, &["model.safetensors.index.json", "b.safetensors", "download"]);
    fs::remove_file(dir.path().join("c.safetensors")).unwrap();
    says(&open(dir.path(), None).unwrap_err(), &["2 file(s)", "b.safetensors", "c.safetensors"]);
}

#[test]
fn stray_files_are_ignored() {
    let (files, config) = qwen();
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &files, Some(&config));
    fs::write(dir.path().join("stray.safetensors"), b"garbage").unwrap();
    check_rows(&open(dir.path(), None).unwrap(), &[0]);
}

#[test]
fn files_without_tables_may_be_absent() {
    let (files, config) = v41();
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &files, Some(&config));
    fs::remove_file(dir.path().join("model-00001-of-00003.safetensors")).unwrap();
    let opened = open(dir.path(), None).unwrap();
    assert!(opened.notes.iter().any(|n| n.starts_with("1 file(s)")), "{:?}", opened.notes);
    check_rows(&opened, &[1, 14]);
}

#[test]
fn three_faults_of_an_index_are_told_apart() {
    // Not in the index.
    let (files, config) = v41();
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &files, Some(&config));
    let mut map: Map<String, Value> = files
        .iter()
        .flat_map(|(file, tensors)| tensors.iter().map(|t| (t.name.clone(), Value::from(file.clone()))))
        .collect();
    let scale = "layers.14.engram.embed.weight";
    let good = map.remove(scale).unwrap();
    write_index(dir.path(), map.clone());
    let error = open(dir.path(), None).unwrap_err();
    assert!(matches!(error, StoreError::TensorNotInIndex { .. }), "{error}");
    says(&error, &["index.json", scale]);
    // In the index, in another file.
    map.insert(scale.into(), "model-00002-of-00003.safetensors".into());
    write_index(dir.path(), map.clone());
    let error = open(dir.path(), None).unwrap_err();
    assert!(matches!(error, StoreError::TensorElsewhere { .. }), "{error}");
    says(&error, &["00002-of", "but it is in", "00003-of", "stale"]);
    // In the index, in no file.
    map.insert(scale.into(), good);
    write_index(dir.path(), map.clone());
    let mut files = files;
    remove(&mut files, scale);
    let last = "model-00003-of-00003.safetensors";
    fs::write(dir.path().join(last), safetensors(&files[last], 0).0).unwrap();
    let error = open(dir.path(), None).unwrap_err();
    assert!(matches!(error, StoreError::TensorNotInFile { .. }), "{error}");
    says(&error, &["00003-of", "lacks tensor", scale]);
}

#[test]
fn an_index_stays_inside_its_folder() {
    let (files, config) = qwen();
    for name in ["../b.safetensors", "/etc/passwd", ""] {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &files, Some(&config));
        write_index(dir.path(), Map::from_iter([(shard(0), Value::from(name))]));
        let error = open(dir.path(), None).unwrap_err();
        assert!(matches!(error, StoreError::IndexPath { .. }), "{error}");
    }
}

#[test]
fn a_broken_index_is_named() {
    let (files, config) = qwen();
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &files, Some(&config));
    let twice = format!(r#"{{"weight_map":{{"{0}":"a.safetensors","{0}":"b.safetensors"}}}}"#, shard(0));
    for text in ["{", "{}", r#"{"weight_map":[]}"#, r#"{"weight_map":{"x":1}}"#, twice.as_str()] {
        fs::write(dir.path().join("model.safetensors.index.json"), text).unwrap();
        let error = open(dir.path(), None).unwrap_err();
        assert!(matches!(error, StoreError::Json { .. }), "{error}");
        says(&error, &["model.safetensors.index.json", "index"]);
    }
}

#[test]
fn two_files_without_an_index_must_not_hold_one_tensor() {
    let (files, config) = qwen();
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &files, Some(&config));
    fs::remove_file(dir.path().join("model.safetensors.index.json")).unwrap();
    check_rows(&open(dir.path(), None).unwrap(), &[0]);
    fs::copy(dir.path().join("b.safetensors"), dir.path().join("b-copy.safetensors")).unwrap();
    let error = open(dir.path(), None).unwrap_err();
    assert!(matches!(error, StoreError::TensorTwice { .. }), "{error}");
    says(&error, &["b.safetensors", "b-copy.safetensors"]);
}

// Headers: the parser's own tests hold the rest.

fn qwen_with_bytes(file: &str, change: impl FnOnce(&mut Vec<u8>)) -> StoreError {
    let (files, config) = qwen();
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &files, Some(&config));
    let path = dir.path().join(file);
    let mut bytes = fs::read(&path).unwrap();
    change(&mut bytes);
    fs::write(&path, bytes).unwrap();
    open(dir.path(), None).unwrap_err()
}

fn fault(error: StoreError) -> HeaderFault {
    says(&error, &["c.safetensors"]);
    match error {
        StoreError::Header { fault, .. } => *fault,
        other => panic!("{other}"),
    }
}

#[test]
fn truncation_is_refused_with_both_numbers() {
    let full = safetensors(&qwen().0["c.safetensors"], 0).0.len();
    for cut in [1, 10, 100, full * 3 / 10] {
        let error = qwen_with_bytes("c.safetensors", |b| b.truncate(full - cut));
        says(&error, &[&full.to_string(), &(full - cut).to_string(), "truncated", "fetch"]);
        assert!(matches!(fault(error), HeaderFault::Truncated { .. }));
    }
    for len in [0, 5, 8] {
        let error = qwen_with_bytes("c.safetensors", |b| b.truncate(len));
        assert!(matches!(fault(error), HeaderFault::TooShort { .. }));
    }
    let error = qwen_with_bytes("c.safetensors", |b| b.truncate(100));
    assert!(matches!(fault(error), HeaderFault::BeyondFile { len: 100, .. }));
}

#[test]
fn trailing_bytes_are_refused() {
    for extra in [1, 160, 4096] {
        let error = qwen_with_bytes("c.safetensors", |b| b.extend(vec![0; extra]));
        assert!(matches!(fault(error), HeaderFault::Trailing { .. }));
    }
}

#[test]
fn a_header_of_absurd_length_is_refused_without_reading_it() {
    let error = qwen_with_bytes("c.safetensors", |b| b[..8].copy_from_slice(&(1u64 << 40).to_le_bytes()));
    assert!(matches!(fault(error), HeaderFault::TooLong { .. }));
    // Claims 100 MB in a sparse file that has them: refused by its first byte, with nothing allocated.
    let error = qwen_with_bytes("c.safetensors", |b| {
        b[..8].copy_from_slice(&100_000_000u64.to_le_bytes());
        b[8] = b' ';
        b.resize(100_000_100, 0);
    });
    assert!(matches!(fault(error), HeaderFault::NotJson(_)));
}

// Paths.

#[test]
fn what_is_no_table_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let none = dir.path().join("none");
    assert!(matches!(open(&none, None), Err(StoreError::PathMissing { path }) if path == none));
    assert!(matches!(open(dir.path(), None), Err(StoreError::Empty { .. })));
    let file = dir.path().join("notes.txt");
    fs::write(&file, "just text, nothing else").unwrap();
    says(&open(&file, None).unwrap_err(), &["notes.txt", "no table"]);
    says(&open(&file.join("x"), None).unwrap_err(), &["notes.txt/x"]);
    says(&open(dir.path(), None).unwrap_err(), &["notes.txt", "no table"]);
    fs::write(dir.path().join("m.gguf"), b"GGUF....").unwrap();
    says(&open(dir.path(), None).unwrap_err(), &["GGUF is not supported yet"]);
    says(&open(&dir.path().join("m.gguf"), None).unwrap_err(), &["GGUF is not supported yet"]);
    let plain = tempfile::tempdir().unwrap();
    fs::write(plain.path().join("m.safetensors"), safetensors(&[t("w", "U8", &[1], vec![1])], 0).0).unwrap();
    says(&open(plain.path(), None).unwrap_err(), &["without n-gram tables"]);
}

#[test]
fn a_cache_of_links_opens_and_each_inode_once() {
    let (files, config) = qwen();
    let dir = tempfile::tempdir().unwrap();
    let entry = dir.path().join("models--q");
    let snapshot = entry.join("snapshots/abc");
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir(entry.join("blobs")).unwrap();
    write(&snapshot, &files, Some(&config));
    for (number, file) in fs::read_dir(&snapshot).unwrap().collect::<Vec<_>>().into_iter().enumerate() {
        let path = file.unwrap().path();
        fs::rename(&path, entry.join(format!("blobs/{number:064x}"))).unwrap();
        symlink(format!("../../blobs/{number:064x}"), &path).unwrap();
    }
    check_rows(&open(&snapshot, None).unwrap(), &[0]);
    let opened = open(&entry, None).unwrap();
    assert!(opened.notes.iter().any(|n| n.contains("cache entry")));
    check_rows(&opened, &[0]);
    symlink(&snapshot, dir.path().join("link")).unwrap();
    check_rows(&open(&dir.path().join("link"), None).unwrap(), &[0]);
    // A link that leads nowhere is a missing file.
    let blob = fs::read_link(snapshot.join("b.safetensors")).unwrap();
    fs::remove_file(snapshot.join(blob)).unwrap();
    assert!(matches!(open(&snapshot, None), Err(StoreError::IndexFilesMissing { .. })));
    fs::create_dir(entry.join("snapshots/def")).unwrap();
    says(&open(&entry, None).unwrap_err(), &["2 snapshots"]);
}

#[test]
fn two_links_to_one_file_are_one_file() {
    let (files, config) = v41();
    let dir = tempfile::tempdir().unwrap();
    let second = files["model-00002-of-00003.safetensors"].clone();
    write(dir.path(), &files, Some(&config));
    let (real, link) = ("model-00002-of-00003.safetensors", "scales.safetensors");
    symlink(real, dir.path().join(link)).unwrap();
    let mut map: Map<String, Value> = Map::new();
    for tensor in second {
        let file = if tensor.name.ends_with("scale") { link } else { real };
        map.insert(tensor.name, file.into());
    }
    for tensor in &files["model-00003-of-00003.safetensors"] {
        map.insert(tensor.name.clone(), "model-00003-of-00003.safetensors".into());
    }
    write_index(dir.path(), map);
    let opened = open(dir.path(), None).unwrap();
    assert_eq!(opened.files.len(), 2);
    check_rows(&opened, &[1, 14]);
}

#[test]
fn holes_are_noted() {
    let (mut files, config) = qwen();
    let big = t("zzz.other", "U8", &[1 << 20], vec![1; 1 << 20]);
    files.get_mut("c.safetensors").unwrap().push(big);
    let (dir, opened) = with_dir(&files, Some(&config));
    assert!(opened.unwrap().notes.is_empty());
    let file = OpenOptions::new().write(true).open(dir.path().join("c.safetensors")).unwrap();
    let len = file.metadata().unwrap().len();
    file.set_len(len - (1 << 20)).unwrap();
    file.set_len(len).unwrap();
    let opened = open(dir.path(), None).unwrap();
    assert!(opened.notes.iter().any(|n| n.contains("c.safetensors") && n.contains("holes")), "{:?}", opened.notes);
}

// The plain reader.

#[test]
fn the_plain_reader_refuses_what_it_cannot_give() {
    let (files, config) = qwen();
    let (dir, opened) = with_dir(&files, Some(&config));
    let opened = opened.unwrap();
    let reader = PlainReader::open(&opened).unwrap();
    let mut row = [0; 10];
    assert!(matches!(reader.read_row(0, 80, &mut row), Err(StoreError::RowOutOfRange { row: 80, rows: 80, .. })));
    assert!(matches!(reader.read_row(1, 0, &mut row), Err(StoreError::Call { .. })));
    assert!(matches!(reader.read_row(0, 0, &mut row[1..]), Err(StoreError::Call { .. })));
    // Truncated after opening: an error that names the row, never zeros.
    let file = OpenOptions::new().write(true).open(dir.path().join("c.safetensors")).unwrap();
    let len = file.metadata().unwrap().len();
    file.set_len(len - 5).unwrap();
    let error = reader.read_row(0, 79, &mut row).unwrap_err();
    says(&error, &["c.safetensors", "row 79", "layer 1", "truncated"]);
    assert!(matches!(PlainReader::open(&opened), Err(StoreError::Changed { .. })));
    fs::remove_file(dir.path().join("c.safetensors")).unwrap();
    let error = PlainReader::open(&opened).unwrap_err();
    assert!(matches!(error, StoreError::FileMissing { .. }), "{error}");
    says(&error, &["c.safetensors", "fetch this file again"]);
}

#[test]
fn errors_are_small_enough_to_pass_around() {
    assert!(size_of::<StoreError>() < 128 && size_of::<LayoutError>() < 128);
}
