//! Token streams: files of little-endian u32, the embedded documents, and two generators.
//!
//! `docs` is this project's own documents and sources in the two real vocabularies. `zipf` has the n-gram repetition of prose (see
//! [`zipf`]); `uniform` has none and is the named worst case: no n-gram ever repeats, so nothing can be shared.

use crate::failure::Failure;
use crate::interrupt;
use engram_keygen::rng::{SPLITMIX_GAMMA, splitmix64};
use engram_sched::Token;
use flate2::read::MultiGzDecoder;
use std::io::Read;
use std::path::Path;

/// Tokens that a generator makes; longer runs start over.
const GENERATED_TOKENS: usize = 1 << 20;

static DOCS_QWEN: &[u8] = include_bytes!("../../../data/docs.qwen.u32");
static DOCS_DSV4: &[u8] = include_bytes!("../../../data/docs.dsv4.u32");

/// What a place of tokens is called.
pub(crate) fn shown(path: &Path) -> String {
    if path.as_os_str() == "-" { "standard input".into() } else { path.display().to_string() }
}

/// Reads little-endian u32 from a file, gzip or not, or from standard input (`-`).
pub(crate) fn read(path: &Path) -> Result<Vec<Token>, Failure> {
    let bytes = read_bytes(path)
        .map_err(|error| Failure::failed(format!("cannot read tokens from {}: {error}", shown(path))))?;
    decode(&bytes).map_err(|what| Failure::failed(format!("{}: {what}", shown(path))))
}

/// The bytes of a file, unpacked if it is gzip, or of standard input (`-`).
pub(crate) fn read_bytes(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if path.as_os_str() == "-" {
        interrupt::while_waiting(|| std::io::stdin().lock().read_to_end(&mut bytes))?;
    } else {
        // A pipe may keep its reader waiting, too.
        bytes = interrupt::while_waiting(|| std::fs::read(path))?;
    }
    if bytes.starts_with(&[0x1f, 0x8b]) {
        let mut plain = Vec::new();
        MultiGzDecoder::new(&bytes[..]).read_to_end(&mut plain)?;
        bytes = plain;
    }
    Ok(bytes)
}

fn decode(bytes: &[u8]) -> Result<Vec<Token>, String> {
    let (words, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(format!("{} bytes are not a whole number of u32 tokens; was the file cut?", bytes.len()));
    }
    if words.is_empty() {
        return Err("no tokens".into());
    }
    words
        .iter()
        .enumerate()
        .map(|(i, word)| {
            let id = u32::from_le_bytes(*word);
            Token::try_from(id)
                .map_err(|_| format!("token {i} is {id}: not a token id; expected little-endian u32 ids"))
        })
        .collect()
}

/// The stream of a model whose user named none: real text where there is some in its vocabulary, else the generator.
pub(crate) fn default_stream(vocab: u32) -> &'static str {
    if stream("docs", 0, vocab).is_ok() { "docs" } else { "zipf" }
}

/// A stream by name for a vocabulary of `vocab` ids, and the name for reports.
pub(crate) fn stream(name: &str, seed: u64, vocab: u32) -> Result<(Vec<Token>, String), Failure> {
    let tokens = match name {
        "docs" => {
            // The two vocabularies differ in size, and each is named by the documents tokenised with it.
            let (bytes, which) = if vocab > 200_000 { (DOCS_QWEN, "docs.qwen") } else { (DOCS_DSV4, "docs.dsv4") };
            let tokens = decode(bytes).map_err(|what| Failure::failed(format!("{which}: {what}")))?;
            return fits(tokens, vocab, which.to_owned());
        }
        "zipf" => zipf(seed, vocab, GENERATED_TOKENS),
        "uniform" => uniform(seed, vocab, GENERATED_TOKENS),
        path => {
            let path = Path::new(path);
            let shown =
                path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned());
            return fits(read(path)?, vocab, shown);
        }
    };
    Ok((tokens, name.to_owned()))
}

fn fits(tokens: Vec<Token>, vocab: u32, name: String) -> Result<(Vec<Token>, String), Failure> {
    match tokens.iter().position(|&t| t as u32 >= vocab) {
        None => Ok((tokens, name)),
        Some(at) => Err(Failure::failed(format!(
            "{name}: token {at} is {}, outside the vocabulary: legal ids are 0 to {}; give a stream of this model's tokenizer, \
             or --tokens zipf",
            tokens[at],
            vocab.saturating_sub(1)
        ))),
    }
}

/// A reproducible stream of random numbers.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(splitmix64(seed ^ 0x656E_6772_616D))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(SPLITMIX_GAMMA);
        splitmix64(self.0)
    }

    /// Below `n`, evenly.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// In `[0, 1)`, evenly.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Independent ids, each as likely as any other.
pub(crate) fn uniform(seed: u64, vocab: u32, len: usize) -> Vec<Token> {
    let mut random = Random::new(seed);
    (0..len).map(|_| random.below(u64::from(vocab)) as Token).collect()
}

/// Text-like ids: a word is either one of its predecessor's favoured successors or drawn from a Zipf-Mandelbrot law.
///
/// Fitted to English prose of 288 thousand tokens, of which 56 % of the bigrams and 22 % of the trigrams have been seen before (the
/// generator: 57 % and 21 %).
pub(crate) fn zipf(seed: u64, vocab: u32, len: usize) -> Vec<Token> {
    const SLOPE: f64 = 1.15;
    const SHIFT: f64 = 2.0;
    const FAVOURED: f64 = 0.65;
    const FAVOURITES: u32 = 150;
    const FAVOURITES_SLOPE: f64 = 1.3;
    let mut random = Random::new(seed);
    let words = vocab.min(60_000);
    let mut previous: Token = 0;
    (0..len)
        .map(|_| {
            previous = if random.unit() < FAVOURED {
                let favourite = rank(random.unit(), FAVOURITES, FAVOURITES_SLOPE, 0.0);
                let drawn = splitmix64(((previous as u64) << 20) ^ u64::from(favourite) ^ (seed << 44));
                rank((drawn >> 11) as f64 / (1u64 << 53) as f64, words, SLOPE, SHIFT) as Token
            } else {
                rank(random.unit(), words, SLOPE, SHIFT) as Token
            };
            previous
        })
        .collect()
}

/// The rank in `0..n` of a Zipf-Mandelbrot law at `u` of its cumulative distribution.
fn rank(u: f64, n: u32, slope: f64, shift: f64) -> u32 {
    let (first, last) = ((1.0 + shift).powf(1.0 - slope), (f64::from(n) + 1.0 + shift).powf(1.0 - slope));
    let at = (first + u * (last - first)).powf(1.0 / (1.0 - slope)) - shift;
    (at as u32).clamp(1, n) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn seen_before(tokens: &[Token], n: usize) -> f64 {
        let mut seen = HashSet::new();
        let repeats = tokens.windows(n).filter(|gram| !seen.insert(gram.to_vec())).count();
        repeats as f64 / tokens.len() as f64
    }

    #[test]
    fn the_generator_repeats_itself_as_prose_does() {
        let tokens = zipf(1, 248_320, 288_000);
        let (two, three) = (seen_before(&tokens, 2), seen_before(&tokens, 3));
        assert!((0.52..0.62).contains(&two), "{two}");
        assert!((0.18..0.25).contains(&three), "{three}");
        assert!(tokens.iter().all(|&t| (0..248_320).contains(&t)));
        assert_eq!(tokens[..100], zipf(1, 248_320, 100)[..]);
    }

    #[test]
    fn uniform_stays_in_a_small_vocabulary() {
        let tokens = uniform(1, 7, 1000);
        assert_eq!(tokens.iter().collect::<HashSet<_>>().len(), 7);
        assert!(tokens.iter().all(|&t| (0..7).contains(&t)));
    }

    #[test]
    fn bad_files_are_refused() {
        assert!(decode(&[1, 0, 0]).unwrap_err().contains("whole number"));
        assert!(decode(&[]).is_err());
        assert!(decode(&[0xff; 4]).unwrap_err().contains("not a token id"));
        assert_eq!(decode(&[7, 0, 0, 0]).unwrap(), [7]);
    }

    #[test]
    fn the_embedded_documents_fit_their_vocabularies() {
        assert!(stream("docs", 1, 248_320).is_ok());
        assert!(stream("docs", 1, 129_280).is_ok());
        assert_eq!([248_320, 129_280, 98_627].map(default_stream), ["docs", "docs", "zipf"]);
    }
}
