//! The token map: raw token ids to the compressed ids that DeepSeek's Engram hashes.
//!
//! The checkpoint does not carry the map; it follows from `tokenizer.json` ([`TokenMap::build`], feature `tokenizer`) or comes as a file
//! of little-endian `i32`, one per raw id ([`TokenMap::load`]). A wrong map gives wrong rows without any other sign, so every way in
//! checks what it is told to expect. [`TokenMapCache`] keeps a built map for the next start.
//!
//! Invariants: a map has 1 to [`TOKEN_MAP_IDS_MAX`] entries, none negative, the lowest 0; `V` (the compressed vocabulary) is the
//! highest entry + 1. A file is written whole or not at all.

use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Most raw ids of a map; real vocabularies have 0.13 to 0.26 million.
pub const TOKEN_MAP_IDS_MAX: usize = 1 << 22;

/// Most bytes of a `tokenizer.json`; real ones have 6 to 20 MB.
const TOKENIZER_BYTES_MAX: u64 = 256 << 20;

/// Most links that are followed to the file to write, as many as Linux follows.
const LINKS_MAX: u32 = 40;

/// First bytes of a cached map: magic and the version of the file's format and of the rule that builds the map.
const CACHE_MAGIC: [u8; 8] = *b"EngTMap\x01";

/// Why a token map cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenMapError {
    /// A file could not be read or written.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The OS error.
        source: io::Error,
    },
    /// Something that is no file is in the place of the file to write.
    #[error("{}: is {saw}, not a regular file, and a map would replace it; name a file (--out)", path.display())]
    NotAFile {
        /// The place, links resolved.
        path: PathBuf,
        /// What is there.
        saw: &'static str,
    },
    /// The file is not a list of `i32`.
    #[error(
        "{}: {bytes} bytes are no token map: it has 4 bytes (little-endian i32) for each of 1 to {TOKEN_MAP_IDS_MAX} raw ids; \
         write one with `engram-sched token-map`",
        path.display()
    )]
    Size {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// An entry is negative, or no raw id maps to 0.
    #[error(
        "{origin}: raw id {id} maps to {value}; compressed ids are 0.. without a negative one, so this is no token map"
    )]
    Value {
        /// File or source of the map.
        origin: String,
        /// The raw id with the lowest entry.
        id: usize,
        /// That entry.
        value: i32,
    },
    /// The number of raw ids is not the expected one.
    #[error(
        "{origin}: {got} raw ids, expected {want}; the map belongs to another vocabulary: rebuild it from this model's tokenizer.json"
    )]
    Length {
        /// File or source of the map.
        origin: String,
        /// Raw ids found.
        got: usize,
        /// Raw ids expected.
        want: usize,
    },
    /// The compressed vocabulary is not the expected one.
    #[error(
        "{origin}: compressed vocabulary of {got} ids (highest entry + 1), expected {want}; the map belongs to another model or \
         revision: rebuild it from this model's tokenizer.json"
    )]
    Vocabulary {
        /// File or source of the map.
        origin: String,
        /// Highest entry + 1.
        got: u32,
        /// Expected.
        want: u32,
    },
    /// The digest is not the expected one.
    #[error(
        "{origin}: sha256 {got} (over little-endian i32), expected {want}; rebuild the map from this model's tokenizer.json"
    )]
    Sha256 {
        /// File or source of the map.
        origin: String,
        /// Digest found.
        got: String,
        /// Digest expected.
        want: String,
    },
    /// The folder has no `tokenizer.json`.
    #[error(
        "{}: no tokenizer.json here; put the model's tokenizer.json beside the checkpoint, or give the map as a file (--token-map)",
        folder.display()
    )]
    NoTokenizer {
        /// The checkpoint folder.
        folder: PathBuf,
    },
    /// The file is not a tokenizer that can be read.
    #[error("{}: not a usable tokenizer.json ({cause}); fetch it again from the model's repository", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: String,
    },
    /// The cache has nowhere to be.
    #[error(
        "no folder for caches: neither XDG_CACHE_HOME nor HOME is an absolute path; set one of them, or give the map as a file"
    )]
    NoCacheFolder,
    /// This build cannot make maps.
    #[error(
        "{}: this build cannot make a token map from it: build with feature `tokenizer`, or give the map as a file (--token-map)",
        path.display()
    )]
    NotBuilt {
        /// The tokenizer.
        path: PathBuf,
    },
}

/// What a map must be; what is `None` is not checked.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ExpectedMap {
    /// Number of raw ids.
    pub len: Option<usize>,
    /// `V`: highest entry + 1.
    pub compressed_vocab: Option<u32>,
    /// SHA-256 over the little-endian `i32` entries, hexadecimal in either case.
    pub sha256: Option<String>,
}

/// A map from raw ids (the index) to compressed ids.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TokenMap {
    ids: Vec<i32>,
    compressed_vocab: u32,
}

impl TokenMap {
    /// Checks a list of compressed ids, one per raw id; `origin` names it in errors.
    ///
    /// # Errors
    /// [`TokenMapError::Value`] for a negative lowest entry or one above 0, [`TokenMapError::Length`] for no entry or too many.
    pub fn from_ids(ids: Vec<i32>, origin: &str) -> Result<Self, TokenMapError> {
        let lowest = ids.iter().copied().enumerate().min_by_key(|&(_, value)| value);
        let (Some((id, value)), true) = (lowest, ids.len() <= TOKEN_MAP_IDS_MAX) else {
            let want = ids.len().clamp(1, TOKEN_MAP_IDS_MAX);
            return Err(TokenMapError::Length { origin: origin.into(), got: ids.len(), want });
        };
        if value != 0 {
            return Err(TokenMapError::Value { origin: origin.into(), id, value });
        }
        let highest = ids.iter().copied().max().unwrap_or(0);
        Ok(Self { ids, compressed_vocab: highest as u32 + 1 })
    }

    /// Reads a file of little-endian `i32` and checks it.
    ///
    /// # Errors
    /// The file cannot be read, is no map, or is not the `expected` one; the message names the file and both values.
    pub fn load(path: &Path, expected: &ExpectedMap) -> Result<Self, TokenMapError> {
        let bytes = read_at_most(path, 4 * TOKEN_MAP_IDS_MAX as u64)?
            .map_err(|bytes| TokenMapError::Size { path: path.into(), bytes })?;
        let map = Self::from_bytes(&bytes, path)?;
        map.check(expected, &path.display().to_string())?;
        Ok(map)
    }

    fn from_bytes(bytes: &[u8], path: &Path) -> Result<Self, TokenMapError> {
        let (entries, rest) = bytes.as_chunks::<4>();
        if !rest.is_empty() || entries.is_empty() {
            return Err(TokenMapError::Size { path: path.into(), bytes: bytes.len() as u64 });
        }
        let ids = entries.iter().map(|entry| i32::from_le_bytes(*entry)).collect();
        Self::from_ids(ids, &path.display().to_string())
    }

    /// Compares with what is expected; `origin` names the map in errors.
    ///
    /// # Errors
    /// The first difference, with both values.
    pub fn check(&self, expected: &ExpectedMap, origin: &str) -> Result<(), TokenMapError> {
        let origin = || origin.to_owned();
        if let Some(want) = expected.len
            && want != self.ids.len()
        {
            return Err(TokenMapError::Length { origin: origin(), got: self.ids.len(), want });
        }
        if let Some(want) = expected.compressed_vocab
            && want != self.compressed_vocab
        {
            return Err(TokenMapError::Vocabulary { origin: origin(), got: self.compressed_vocab, want });
        }
        if let Some(want) = &expected.sha256 {
            let got = self.sha256();
            if !got.eq_ignore_ascii_case(want) {
                return Err(TokenMapError::Sha256 { origin: origin(), got, want: want.clone() });
            }
        }
        Ok(())
    }

    /// Writes the entries as little-endian `i32`; the file appears whole, in the place of any older one, or not at all. A symbolic link
    /// stays: the file that it leads to is replaced.
    ///
    /// # Errors
    /// [`TokenMapError::Io`]; [`TokenMapError::NotAFile`] if the place is taken by a device, a pipe, a socket or a folder.
    pub fn save(&self, path: &Path) -> Result<(), TokenMapError> {
        write_whole(path, &self.to_bytes())
    }

    /// The compressed ids; the index is the raw id.
    pub fn ids(&self) -> &[i32] {
        &self.ids
    }

    /// The compressed ids, by value.
    pub fn into_ids(self) -> Vec<i32> {
        self.ids
    }

    /// `V`: highest entry + 1.
    pub fn compressed_vocab(&self) -> u32 {
        self.compressed_vocab
    }

    /// SHA-256 over the entries as little-endian `i32`, the bytes of the file.
    pub fn sha256(&self) -> String {
        hex(&Sha256::digest(self.to_bytes()))
    }

    /// SHA-256 over the entries as little-endian `i64`, the form in which DeepSeek's code holds the map.
    pub fn sha256_i64(&self) -> String {
        let wide: Vec<u8> = self.ids.iter().flat_map(|&id| i64::from(id).to_le_bytes()).collect();
        hex(&Sha256::digest(wide))
    }

    fn to_bytes(&self) -> Vec<u8> {
        self.ids.iter().flat_map(|id| id.to_le_bytes()).collect()
    }

    /// Builds the map from a `tokenizer.json`.
    ///
    /// The key of a raw id is its decoded text, normalised (NFKC, NFD, accents stripped, lower case, runs of blanks to one, trimmed); the
    /// text itself where nothing is left; the token as stored where its bytes are no UTF-8. Compressed ids count keys in order of first
    /// appearance.
    ///
    /// # Errors
    /// The file cannot be read or is no tokenizer, or its ids are not 0.. without a gap.
    #[cfg(feature = "tokenizer")]
    pub fn build(tokenizer_json: &Path) -> Result<Self, TokenMapError> {
        build::from_bytes(&read_tokenizer(tokenizer_json)?, tokenizer_json)
    }
}

/// Where the map of [`TokenMapCache::open`] came from.
#[derive(Debug)]
#[non_exhaustive]
pub enum MapOrigin {
    /// It was in the cache.
    Cache,
    /// It was built, and stored for the next time.
    Built,
    /// It was built, and could not be stored: the next start builds it again.
    BuiltNotStored(TokenMapError),
}

/// A map and where it came from.
#[derive(Debug)]
pub struct CachedTokenMap {
    /// The map.
    pub map: TokenMap,
    /// Whether it was built now.
    pub origin: MapOrigin,
}

/// Token maps built earlier, in a folder; the key is the SHA-256 of the `tokenizer.json`.
///
/// An entry that is damaged, or of another format version, is built again. Processes may share the folder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TokenMapCache {
    folder: PathBuf,
}

impl TokenMapCache {
    /// A cache in `folder`, which is made when the first map is stored.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The user's cache: `$XDG_CACHE_HOME/engram-sched/token-maps`, else `~/.cache/engram-sched/token-maps`.
    ///
    /// # Errors
    /// [`TokenMapError::NoCacheFolder`].
    pub fn user() -> Result<Self, TokenMapError> {
        Self::user_from(std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME"))
    }

    fn user_from(xdg: Option<OsString>, home: Option<OsString>) -> Result<Self, TokenMapError> {
        let absolute = |value: Option<OsString>| value.map(PathBuf::from).filter(|path| path.is_absolute());
        let caches =
            absolute(xdg).or_else(|| Some(absolute(home)?.join(".cache"))).ok_or(TokenMapError::NoCacheFolder)?;
        Ok(Self::at(caches.join("engram-sched").join("token-maps")))
    }

    /// The map of a checkpoint folder's `tokenizer.json`: from the cache, else built and stored.
    ///
    /// # Errors
    /// There is no `tokenizer.json`, it cannot be read, this build cannot make maps, or the map is not the `expected` one. A cache that
    /// cannot be written is no error.
    pub fn open(&self, checkpoint: &Path, expected: &ExpectedMap) -> Result<CachedTokenMap, TokenMapError> {
        let tokenizer = checkpoint.join("tokenizer.json");
        if !tokenizer.is_file() {
            return Err(TokenMapError::NoTokenizer { folder: checkpoint.into() });
        }
        let json = read_tokenizer(&tokenizer)?;
        let entry = self.entry(&json);
        let (map, origin) = match load_entry(&entry) {
            Some(map) => (map, MapOrigin::Cache),
            None => {
                let map = build::from_bytes(&json, &tokenizer)?;
                let origin = match store_entry(&entry, &map) {
                    Ok(()) => MapOrigin::Built,
                    Err(error) => MapOrigin::BuiltNotStored(error),
                };
                (map, origin)
            }
        };
        map.check(expected, &tokenizer.display().to_string())?;
        Ok(CachedTokenMap { map, origin })
    }

    fn entry(&self, json: &[u8]) -> PathBuf {
        self.folder.join(format!("{}.map", hex(&Sha256::digest(json))))
    }
}

/// Magic, SHA-256 of the rest, entries; anything else counts as absent.
fn load_entry(path: &Path) -> Option<TokenMap> {
    let bytes = read_at_most(path, 40 + 4 * TOKEN_MAP_IDS_MAX as u64).ok()?.ok()?;
    let (magic, rest) = bytes.split_first_chunk::<8>()?;
    let (digest, body) = rest.split_first_chunk::<32>()?;
    if *magic != CACHE_MAGIC || Sha256::digest(body)[..] != digest[..] {
        return None;
    }
    TokenMap::from_bytes(body, path).ok()
}

fn store_entry(path: &Path, map: &TokenMap) -> Result<(), TokenMapError> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(io_error(folder, "make this folder"))?;
    }
    let body = map.to_bytes();
    write_whole(path, &[&CACHE_MAGIC[..], &Sha256::digest(&body)[..], &body].concat())
}

fn read_tokenizer(path: &Path) -> Result<Vec<u8>, TokenMapError> {
    read_at_most(path, TOKENIZER_BYTES_MAX)?.map_err(|bytes| TokenMapError::Tokenizer {
        path: path.into(),
        cause: format!("{bytes} bytes, more than {TOKENIZER_BYTES_MAX}"),
    })
}

/// The whole file, or its length where that exceeds `bytes_max`.
fn read_at_most(path: &Path, bytes_max: u64) -> Result<Result<Vec<u8>, u64>, TokenMapError> {
    let len = fs::metadata(path).map_err(io_error(path, "read"))?.len();
    if len > bytes_max {
        return Ok(Err(len));
    }
    fs::read(path).map(Ok).map_err(io_error(path, "read"))
}

/// Writes beside `path` and renames, so that no reader ever sees a part of the file.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), TokenMapError> {
    let path = &place_to_write(path)?;
    let (partial, mut file) = create_partial(path)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&partial, path));
    written.map_err(|source| {
        // The first error is the one to tell; a left-over is harmless, as its name is never read.
        let _ = fs::remove_file(&partial);
        io_error(path, "write")(source)
    })
}

/// Where a rename must go so that it replaces a file and nothing else: links are followed (the last one may lead to nothing yet), and
/// what is not a regular file is refused. As root, a rename onto `/dev/null` would succeed.
fn place_to_write(path: &Path) -> Result<PathBuf, TokenMapError> {
    let mut place = path.to_owned();
    for _ in 0..LINKS_MAX {
        let kind = match fs::symlink_metadata(&place) {
            Ok(meta) => meta.file_type(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(place),
            Err(error) => return Err(io_error(&place, "look at")(error)),
        };
        if kind.is_file() {
            return Ok(place);
        }
        if !kind.is_symlink() {
            let saw = if kind.is_dir() { "a folder" } else { "a device, pipe or socket" };
            return Err(TokenMapError::NotAFile { path: place, saw });
        }
        let target = fs::read_link(&place).map_err(io_error(&place, "follow the link"))?;
        // A relative target counts from the folder of its link; an absolute one replaces it.
        place = place.parent().unwrap_or(Path::new("")).join(target);
    }
    Err(io_error(path, "follow the links")(io::Error::other("too many links")))
}

/// A new file beside `path`, under a name that no other process or thread has.
fn create_partial(path: &Path) -> Result<(PathBuf, File), TokenMapError> {
    let mut attempt = 0u32;
    loop {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}-{attempt}.partial", std::process::id()));
        let partial = path.with_file_name(name);
        match OpenOptions::new().write(true).create_new(true).open(&partial) {
            Ok(file) => return Ok((partial, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < 1000 => attempt += 1,
            Err(error) => return Err(io_error(path, "write")(error)),
        }
    }
}

fn io_error(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> TokenMapError {
    let path = path.to_owned();
    move |source| TokenMapError::Io { path, action, source }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(feature = "tokenizer")]
mod build {
    //! The rule, with the library that DeepSeek's own code uses.

    use super::{Path, TokenMap, TokenMapError};
    use std::collections::HashMap;
    use tokenizers::normalizers::replace::ReplacePattern;
    use tokenizers::normalizers::{Lowercase, NFD, NFKC, Replace, Sequence, Strip, StripAccents};
    use tokenizers::{NormalizedString, Normalizer, Tokenizer};

    /// Stands for a token of blanks alone while the text is trimmed.
    const BLANK: &str = "\u{E000}";

    pub(super) fn from_bytes(json: &[u8], path: &Path) -> Result<TokenMap, TokenMapError> {
        let unusable = |cause: String| TokenMapError::Tokenizer { path: path.into(), cause };
        let library = |error: tokenizers::Error| unusable(error.to_string());
        let tokenizer = Tokenizer::from_bytes(json).map_err(library)?;
        let normalizer = normalizer().map_err(library)?;

        let raw_ids = tokenizer.get_vocab_size(true);
        let mut compressed = HashMap::with_capacity(raw_ids);
        let mut ids = Vec::with_capacity(raw_ids);
        for id in 0..raw_ids as u32 {
            let token = tokenizer.id_to_token(id).ok_or_else(|| {
                unusable(format!("{raw_ids} tokens, but none with id {id}: ids must be 0.. without a gap"))
            })?;
            let text = tokenizer.decode(&[id], false).map_err(library)?;
            let key = if text.contains(char::REPLACEMENT_CHARACTER) {
                token
            } else {
                let mut normalized = NormalizedString::from(text.as_str());
                normalizer.normalize(&mut normalized).map_err(library)?;
                if normalized.is_empty() { text } else { normalized.get().to_owned() }
            };
            let next = compressed.len() as i32;
            ids.push(*compressed.entry(key).or_insert(next));
        }
        TokenMap::from_ids(ids, &path.display().to_string())
    }

    fn normalizer() -> Result<Sequence, tokenizers::Error> {
        let regex = |pattern: &str| ReplacePattern::Regex(pattern.to_owned());
        Ok(Sequence::new(vec![
            NFKC.into(),
            NFD.into(),
            StripAccents.into(),
            Lowercase.into(),
            Replace::new(regex("[ \t\r\n]+"), " ")?.into(),
            Replace::new(regex("^ $"), BLANK)?.into(),
            Strip::new(true, true).into(),
            Replace::new(BLANK, " ")?.into(),
        ]))
    }
}

#[cfg(not(feature = "tokenizer"))]
mod build {
    //! In the place of the builder: says what is missing.

    use super::{Path, TokenMap, TokenMapError};

    pub(super) fn from_bytes(_json: &[u8], path: &Path) -> Result<TokenMap, TokenMapError> {
        Err(TokenMapError::NotBuilt { path: path.into() })
    }
}

#[cfg(test)]
mod tests;
