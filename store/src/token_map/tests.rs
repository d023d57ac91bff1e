//! Unit tests of the token map: checks, files, the cache, and the rule on a vocabulary of thirteen tokens.

use super::*;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn map(ids: &[i32]) -> TokenMap {
    TokenMap::from_ids(ids.to_vec(), "test").unwrap()
}

fn names_of(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_saved_map_is_read_back_and_leaves_nothing_else() {
    let folder = folder();
    let path = folder.path().join("m.i32");
    fs::write(&path, "an older file").unwrap();
    let written = map(&[0, 1, 1, 5]);
    written.save(&path).unwrap();
    assert_eq!(fs::read(&path).unwrap(), [0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 5, 0, 0, 0]);
    let expected =
        ExpectedMap { len: Some(4), compressed_vocab: Some(6), sha256: Some(written.sha256().to_uppercase()) };
    assert_eq!(TokenMap::load(&path, &expected).unwrap(), written);
    assert_eq!(names_of(folder.path()), ["m.i32"]);
}

#[test]
fn digests_are_those_of_the_little_endian_bytes() {
    let map = map(&[0, 1, 1, 5]);
    assert_eq!(map.sha256(), "e869236da4e16196d9892a708e1fd15b9acaaa47617c256990d3d076e6fd3b0c");
    assert_eq!(map.sha256_i64(), "18c7bb678608fc6cd18bcb6efaed5e76e4aa29a0ab5d7b6644b892caa4fc88ee");
}

#[test]
fn a_map_that_is_not_the_expected_one_is_refused_with_both_values() {
    let folder = folder();
    let path = folder.path().join("m.i32");
    map(&[0, 1, 2]).save(&path).unwrap();
    let refuse = |expected: ExpectedMap| TokenMap::load(&path, &expected).unwrap_err().to_string();

    let message = refuse(ExpectedMap { len: Some(4), ..Default::default() });
    assert!(message.contains("m.i32: 3 raw ids, expected 4"), "{message}");
    let message = refuse(ExpectedMap { compressed_vocab: Some(2), ..Default::default() });
    assert!(message.contains("m.i32: compressed vocabulary of 3 ids") && message.contains("expected 2"), "{message}");
    let message = refuse(ExpectedMap { sha256: Some("00".into()), ..Default::default() });
    assert!(message.contains(&map(&[0, 1, 2]).sha256()) && message.contains("expected 00"), "{message}");
}

#[test]
fn what_is_no_map_is_refused() {
    let folder = folder();
    let path = folder.path().join("m.i32");
    let load = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        TokenMap::load(&path, &ExpectedMap::default())
    };
    assert!(matches!(load(&[]), Err(TokenMapError::Size { bytes: 0, .. })));
    assert!(matches!(load(&[0; 7]), Err(TokenMapError::Size { bytes: 7, .. })));
    assert!(matches!(load(&[0, 0, 0, 0, 255, 255, 255, 255]), Err(TokenMapError::Value { id: 1, value: -1, .. })));
    assert!(matches!(load(&[3, 0, 0, 0]), Err(TokenMapError::Value { id: 0, value: 3, .. })));

    // The length decides before a byte is read: a checkpoint given in the place of a map is not swallowed.
    File::create(&path).unwrap().set_len(4 * TOKEN_MAP_IDS_MAX as u64 + 4).unwrap();
    assert!(matches!(TokenMap::load(&path, &ExpectedMap::default()), Err(TokenMapError::Size { .. })));
    assert!(matches!(TokenMap::from_ids(vec![], "test"), Err(TokenMapError::Length { got: 0, .. })));
    assert!(matches!(
        TokenMap::load(&folder.path().join("none"), &ExpectedMap::default()),
        Err(TokenMapError::Io { .. })
    ));
}

#[test]
fn the_highest_id_does_not_overflow_the_vocabulary() {
    assert_eq!(map(&[0, i32::MAX]).compressed_vocab(), 1 << 31);
}

#[test]
fn a_failed_save_leaves_nothing() {
    let folder = folder();
    fs::create_dir(folder.path().join("taken")).unwrap();
    assert!(matches!(map(&[0]).save(&folder.path().join("taken")), Err(TokenMapError::NotAFile { .. })));
    let nowhere = map(&[0]).save(&folder.path().join("no/folder/m.i32"));
    assert!(matches!(nowhere, Err(TokenMapError::Io { action: "write", .. })));
    assert_eq!(names_of(folder.path()), ["taken"]);
}

#[test]
fn what_is_no_file_is_not_replaced() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let made = std::process::Command::new("mkfifo").arg(at("fifo")).status().unwrap();
    assert!(made.success());
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    fs::create_dir(at("folder")).unwrap();
    std::os::unix::fs::symlink("fifo", at("link-to-fifo")).unwrap();
    std::os::unix::fs::symlink("loop", at("loop")).unwrap();
    let before = names_of(folder.path());
    for name in ["fifo", "socket", "folder", "link-to-fifo"] {
        let error = map(&[0, 1]).save(&at(name)).unwrap_err();
        assert!(matches!(error, TokenMapError::NotAFile { .. }), "{name}: {error}");
    }
    assert!(matches!(map(&[0, 1]).save(&at("loop")), Err(TokenMapError::Io { .. })));
    assert_eq!(names_of(folder.path()), before);
    assert!(!fs::symlink_metadata(at("fifo")).unwrap().is_file());
    // The device is the reason: as root, a rename onto it succeeds.
    assert!(matches!(map(&[0]).save(Path::new("/dev/null")), Err(TokenMapError::NotAFile { .. })));
}

#[test]
fn a_link_stays_and_its_target_is_replaced() {
    let folder = folder();
    fs::create_dir(folder.path().join("data")).unwrap();
    let (target, link) = (folder.path().join("data/map"), folder.path().join("link"));
    // Relative, by way of a second link; at first it leads to nothing.
    std::os::unix::fs::symlink("data/second", &link).unwrap();
    std::os::unix::fs::symlink("map", folder.path().join("data/second")).unwrap();
    for ids in [[0, 1], [0, 0]] {
        map(&ids).save(&link).unwrap();
        assert_eq!(TokenMap::load(&target, &ExpectedMap::default()).unwrap().ids(), ids);
    }
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink() && fs::symlink_metadata(&target).unwrap().is_file());
    assert_eq!(names_of(folder.path()), ["data", "link"]);
    assert_eq!(names_of(&folder.path().join("data")), ["map", "second"]);
}

#[test]
fn the_user_cache_follows_xdg_then_home_and_refuses_relative_paths() {
    let of =
        |xdg: Option<&str>, home: Option<&str>| TokenMapCache::user_from(xdg.map(Into::into), home.map(Into::into));
    assert_eq!(of(Some("/x"), Some("/h")).unwrap(), TokenMapCache::at("/x/engram-sched/token-maps"));
    assert_eq!(of(Some("rel"), Some("/h")).unwrap(), TokenMapCache::at("/h/.cache/engram-sched/token-maps"));
    assert_eq!(of(None, Some("/h")).unwrap(), TokenMapCache::at("/h/.cache/engram-sched/token-maps"));
    assert!(matches!(of(Some(""), None), Err(TokenMapError::NoCacheFolder)));
}

#[test]
fn a_folder_without_tokenizer_is_named() {
    let folder = folder();
    let error =
        TokenMapCache::at(folder.path().join("cache")).open(folder.path(), &ExpectedMap::default()).unwrap_err();
    assert!(matches!(error, TokenMapError::NoTokenizer { .. }) && error.to_string().contains("--token-map"), "{error}");
}

#[cfg(not(feature = "tokenizer"))]
#[test]
fn without_the_feature_the_message_names_it_and_a_stored_map_still_serves() {
    let folder = folder();
    fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
    let cache = TokenMapCache::at(folder.path().join("cache"));
    let error = cache.open(folder.path(), &ExpectedMap::default()).unwrap_err();
    assert!(matches!(error, TokenMapError::NotBuilt { .. }) && error.to_string().contains("feature `tokenizer`"));

    store_entry(&cache.entry(b"{}"), &map(&[0, 1])).unwrap();
    let found = cache.open(folder.path(), &ExpectedMap::default()).unwrap();
    assert!(found.map.ids() == [0, 1] && matches!(found.origin, MapOrigin::Cache));
}

#[cfg(feature = "tokenizer")]
mod with_tokenizer {
    //! The rule and the cache.

    use super::*;

    /// Byte-level BPE. `\u0120` is a space, `\u010a` a line feed; `\u00c3\u00a9` is e-acute, `\u00cc\u0123` the combining acute alone,
    /// `\u00ef\u00bc\u00a1` the fullwidth A; `\u00c3` and `\u0122` are single bytes that are no UTF-8.
    const TOKENIZER: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [{"id": 0, "content": "<S>", "single_word": false, "lstrip": false, "rstrip": false,
                          "normalized": false, "special": true}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "merges": [],
                  "vocab": {"<S>": 0, "a": 1, "A": 2, "\u0120a": 3, "\u0120": 4, "\u010a": 5, "\u00c3": 6, "\u00c3\u00a9": 7, "e": 8,
                            "\u00cc\u0123": 9, "\u0122": 10, "\u0120\u0120": 11, "\u00ef\u00bc\u00a1": 12}}}"#;
    const IDS: [i32; 13] = [0, 1, 1, 1, 2, 2, 3, 4, 4, 5, 6, 2, 1];

    fn checkpoint(json: &str) -> tempfile::TempDir {
        let folder = folder();
        fs::write(folder.path().join("tokenizer.json"), json).unwrap();
        folder
    }

    #[test]
    fn the_rule() {
        let folder = checkpoint(TOKENIZER);
        let map = TokenMap::build(&folder.path().join("tokenizer.json")).unwrap();
        assert_eq!(map.ids(), IDS);
        assert_eq!(map.compressed_vocab(), 7);
    }

    #[test]
    fn what_is_no_tokenizer_is_named() {
        for (json, cause) in [("{", "EOF"), (&*TOKENIZER.replace(": 12}", ": 13}"), "none with id 12")] {
            let folder = checkpoint(json);
            let message = TokenMap::build(&folder.path().join("tokenizer.json")).unwrap_err().to_string();
            assert!(message.contains("tokenizer.json: not a usable") && message.contains(cause), "{message}");
        }
    }

    #[test]
    fn the_cache_builds_once_and_repairs_what_is_damaged() {
        let folder = checkpoint(TOKENIZER);
        let cache = TokenMapCache::at(folder.path().join("cache"));
        let open = || cache.open(folder.path(), &ExpectedMap { len: Some(13), ..Default::default() }).unwrap();
        let built = open();
        assert!(built.map.ids() == IDS && matches!(built.origin, MapOrigin::Built));
        assert!(matches!(open().origin, MapOrigin::Cache));

        let entry = cache.entry(TOKENIZER.as_bytes());
        let good = fs::read(&entry).unwrap();
        let mut other_version = good.clone();
        other_version[7] ^= 1;
        let mut flipped = good.clone();
        *flipped.last_mut().unwrap() ^= 1;
        for bad in [&flipped, &other_version, &good[..good.len() - 4].to_vec(), &vec![]] {
            fs::write(&entry, bad).unwrap();
            let again = open();
            assert!(again.map.ids() == IDS && matches!(again.origin, MapOrigin::Built));
            assert_eq!(fs::read(&entry).unwrap(), good);
        }
        assert_eq!(names_of(&folder.path().join("cache")).len(), 1, "no partial file stays");
    }

    #[test]
    fn a_changed_tokenizer_has_its_own_entry_and_an_unexpected_map_is_refused() {
        let folder = checkpoint(TOKENIZER);
        let cache = TokenMapCache::at(folder.path().join("cache"));
        cache.open(folder.path(), &ExpectedMap::default()).unwrap();
        fs::write(folder.path().join("tokenizer.json"), TOKENIZER.replace("\"A\": 2", "\"B\": 2")).unwrap();
        let changed = cache.open(folder.path(), &ExpectedMap::default()).unwrap();
        assert_eq!(changed.map.ids()[..5], [0, 1, 2, 1, 3]);
        let expected = ExpectedMap { compressed_vocab: Some(7), ..Default::default() };
        assert!(matches!(cache.open(folder.path(), &expected), Err(TokenMapError::Vocabulary { got: 8, want: 7, .. })));
    }

    #[test]
    fn a_cache_that_cannot_be_written_is_no_error() {
        let folder = checkpoint(TOKENIZER);
        fs::write(folder.path().join("cache"), "a file in the place of the folder").unwrap();
        let found =
            TokenMapCache::at(folder.path().join("cache")).open(folder.path(), &ExpectedMap::default()).unwrap();
        assert!(found.map.ids() == IDS && matches!(found.origin, MapOrigin::BuiltNotStored(_)));
    }
}
