//! The token map of DeepSeek-V4.1, built from its real `tokenizer.json`: the digest is the published one.
//!
//! Runs where `ENGRAM_V41_TOKENIZER` names that file (`ci/setup.sh` fetches it), else prints a `SKIP:` line.
#![cfg(feature = "tokenizer")]

use engram_store::{ExpectedMap, MapOrigin, TokenMap, TokenMapCache};
use std::path::PathBuf;

/// SHA-256 of the map as little-endian `i64`, as published with the model's hash parameters.
const SHA256_I64: &str = "26b9be2936d236a124ba318a998c417bc7032e3e92a3107fe98deee49f1dc496";
/// SHA-256 of the map as little-endian `i32`.
const SHA256_I32: &str = "c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481";

#[test]
fn the_v41_map_has_the_published_digest() {
    let Some(tokenizer) = std::env::var_os("ENGRAM_V41_TOKENIZER").map(PathBuf::from) else {
        println!("SKIP: the_v41_map_has_the_published_digest: set ENGRAM_V41_TOKENIZER to the model's tokenizer.json");
        return;
    };
    let map = TokenMap::build(&tokenizer).unwrap();
    assert_eq!(map.ids()[..3], [0, 1, 2], "begin, end and padding keep their ids");
    let expected =
        ExpectedMap { len: Some(129_280), compressed_vocab: Some(99_092), sha256: Some(SHA256_I32.to_owned()) };
    map.check(&expected, "built map").unwrap();
    assert_eq!(map.sha256_i64(), SHA256_I64);

    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(&tokenizer, folder.path().join("tokenizer.json")).unwrap();
    let cache = TokenMapCache::at(folder.path().join("cache"));
    let first = cache.open(folder.path(), &expected).unwrap();
    assert!(first.map == map && matches!(first.origin, MapOrigin::Built));
    let second = cache.open(folder.path(), &expected).unwrap();
    assert!(second.map == map && matches!(second.origin, MapOrigin::Cache));
}
