//! `token-map`: builds the map of a tokenizer, writes it, and verifies what was written.

use crate::args::TokenMapArgs;
use crate::failure::Failure;
#[cfg(feature = "tokenizer")]
use crate::interrupt;
use crate::output::Output;

#[cfg(feature = "tokenizer")]
pub(crate) fn run(args: &TokenMapArgs, out: &Output) -> Result<(), Failure> {
    use engram_store::{ExpectedMap, TokenMap};
    use serde_json::json;

    let map = TokenMap::build(&args.tokenizer)?;
    interrupt::check()?;
    let expected = ExpectedMap { len: None, compressed_vocab: args.expect_vocab, sha256: args.expect_sha256.clone() };
    map.check(&expected, &args.tokenizer.display().to_string())?;
    map.save(&args.out)?;
    let written = ExpectedMap {
        len: Some(map.ids().len()),
        compressed_vocab: Some(map.compressed_vocab()),
        sha256: Some(map.sha256()),
    };
    TokenMap::load(&args.out, &written)?;
    let released = engram_sched::Spec::deepseek_v41().token_map.and_then(|map| map.sha256);
    let known = released.is_some_and(|sha256| sha256 == map.sha256());
    let (ids, vocab) = (map.ids().len(), map.compressed_vocab());
    if out.json {
        return out.print(serde_json::to_string_pretty(&json!({
            "path": args.out, "ids": ids, "compressed_vocab": vocab, "sha256": map.sha256(), "sha256_i64": map.sha256_i64(),
            "deepseek_v41": known,
        }))?);
    }
    let whose = if known { "; this is the map of DeepSeek-V4.1" } else { "" };
    out.print(format!(
        "{}: {ids} raw ids, {vocab} compressed ids\nsha256 {} (little-endian i32)\nsha256 {} (little-endian i64){whose}",
        args.out.display(),
        map.sha256(),
        map.sha256_i64()
    ))
}

#[cfg(not(feature = "tokenizer"))]
pub(crate) fn run(args: &TokenMapArgs, _out: &Output) -> Result<(), Failure> {
    Err(engram_store::TokenMapError::NotBuilt { path: args.tokenizer.clone() }.into())
}
