//! Where a token map comes from: a file, or the tokenizer beside a checkpoint, built once and cached.

use crate::{OpenError, specs};
use engram_keygen::{Dialect, Keygen, Spec, TokenMap};
use engram_store::{ExpectedMap, MapOrigin, TokenMapCache};
use std::path::{Path, PathBuf};

/// A token map and a remark on where it came from.
pub(crate) struct Found {
    pub(crate) map: Option<TokenMap>,
    pub(crate) note: Option<String>,
}

/// Whether ids cannot be hashed without a map.
pub(crate) fn needs_map(spec: &Spec) -> bool {
    spec.dialect == Dialect::Engram && spec.token_map.is_some()
}

/// What the spec says about its map.
fn expected(spec: &Spec) -> ExpectedMap {
    let declared = spec.token_map.as_ref();
    ExpectedMap {
        len: declared.and_then(|map| map.len).or(spec.vocab).map(|len| len as usize),
        compressed_vocab: spec.compressed_vocab,
        sha256: declared.and_then(|map| map.sha256.clone()),
    }
}

/// The map in `path` (little-endian i32, or a `tokenizer.json`), checked against the spec.
pub(crate) fn from_file(path: &Path, spec: &Spec) -> Result<Found, OpenError> {
    let origin = path.display().to_string();
    if path.extension().is_some_and(|extension| extension == "json") {
        return build(path, spec, &origin);
    }
    let map = engram_store::TokenMap::load(path, &expected(spec))?;
    Ok(Found { map: Some(checked(map, &origin)?), note: Some(format!("token map from {origin}")) })
}

#[cfg(feature = "tokenizer")]
fn build(path: &Path, spec: &Spec, origin: &str) -> Result<Found, OpenError> {
    let map = engram_store::TokenMap::build(path)?;
    map.check(&expected(spec), origin)?;
    Ok(Found { map: Some(checked(map, origin)?), note: Some(format!("token map built from {origin}")) })
}

#[cfg(not(feature = "tokenizer"))]
fn build(path: &Path, _spec: &Spec, _origin: &str) -> Result<Found, OpenError> {
    Err(engram_store::TokenMapError::NotBuilt { path: path.into() }.into())
}

/// The map of the `tokenizer.json` in `folder`: cached, or built now.
pub(crate) fn from_checkpoint(folder: &Path, spec: &Spec, cache: Option<PathBuf>) -> Result<Found, OpenError> {
    let cache = match cache {
        Some(folder) => TokenMapCache::at(folder),
        None => TokenMapCache::user()?,
    };
    let found = cache.open(folder, &expected(spec))?;
    let tokenizer = folder.join("tokenizer.json");
    let how = match &found.origin {
        MapOrigin::Cache => "from the cache".to_owned(),
        MapOrigin::Built => "built now and cached".to_owned(),
        MapOrigin::BuiltNotStored(error) => format!("built now; it could not be cached: {error}"),
        _ => String::new(),
    };
    let note = format!("token map of {}: {how}", tokenizer.display());
    Ok(Found { map: Some(checked(found.map, &tokenizer.display().to_string())?), note: Some(note) })
}

/// The address function of a model by name or spec file, without a table.
///
/// `token_map` is the file of its token map (little-endian i32, or a `tokenizer.json`); without it, one that the spec file names is looked
/// for beside that file.
///
/// ```
/// let keygen = engram_sched::keygen_of("qwen-ple", None)?;
/// assert_eq!((keygen.columns(), keygen.table_rows(0)), (16, 320_001_446));
/// # Ok::<(), engram_sched::OpenError>(())
/// ```
///
/// # Errors
/// As [`spec_of`](crate::spec_of); [`OpenError::NoTokenMap`], [`OpenError::TokenMap`] for a map that is missing or another model's.
pub fn keygen_of(name_or_file: &str, token_map: Option<&Path>) -> Result<Keygen, OpenError> {
    let spec = specs::spec_of(name_or_file)?;
    let beside = spec
        .token_map
        .as_ref()
        .and_then(|map| map.file.as_ref())
        .map(|file| Path::new(name_or_file).parent().unwrap_or(Path::new("")).join(file));
    let map = match token_map.or(beside.as_deref()) {
        Some(path) => from_file(path, &spec)?.map,
        None if needs_map(&spec) => return Err(OpenError::NoTokenMap { origin: spec.name }),
        None => None,
    };
    Keygen::new(&spec, map).map_err(|source| OpenError::Spec { origin: name_or_file.into(), source })
}

/// A stand-in for a synthetic table: no real text is hashed through it, and its rows prove themselves.
pub(crate) fn stand_in(spec: &Spec) -> Result<Found, OpenError> {
    let origin = "the stand-in token map";
    let len = spec.token_map.as_ref().and_then(|map| map.len).or(spec.vocab);
    let Some((len, compressed)) = len.zip(spec.compressed_vocab) else {
        return Err(OpenError::NoTokenMap { origin: spec.name.clone() });
    };
    let map = TokenMap::made_up(len, compressed)
        .map_err(|source| OpenError::TokenMapIds { origin: origin.into(), source })?;
    let note = "synthetic table without a tokenizer: ids are compressed by a made-up map, not the model's".to_owned();
    Ok(Found { map: Some(map), note: Some(note) })
}

fn checked(map: engram_store::TokenMap, origin: &str) -> Result<TokenMap, OpenError> {
    TokenMap::new(map.into_ids()).map_err(|source| OpenError::TokenMapIds { origin: origin.into(), source })
}
