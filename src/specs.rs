//! Where a spec comes from: a name, a file, or the configuration of a checkpoint.

use crate::OpenError;
use engram_keygen::{Dialect, Spec, SpecError, TokenMapSpec};
use engram_store::{LayerConstants, ModelConfig, Opened, QwenConfig, V41Config};
use std::path::Path;

/// The spec of a model by its name (`qwen-ple`, `deepseek-v41`, `demo`), or from a spec file that ends in `.toml` or `.json`.
///
/// ```
/// assert_eq!(engram_sched::spec_of("qwen-ple")?.layer_ids, [1]);
/// assert!(engram_sched::spec_of("no-such-model").is_err());
/// # Ok::<(), engram_sched::OpenError>(())
/// ```
///
/// # Errors
/// [`OpenError::UnknownModel`], [`OpenError::SpecFile`], or [`OpenError::Spec`] with the place in the file.
pub fn spec_of(name_or_file: &str) -> Result<Spec, OpenError> {
    match name_or_file {
        "qwen-ple" => return Ok(Spec::qwen_ple()),
        "deepseek-v41" => return Ok(Spec::deepseek_v41()),
        "demo" => return Ok(Spec::demo()),
        _ => {}
    }
    let path = Path::new(name_or_file);
    let parse = match path.extension().and_then(|extension| extension.to_str()) {
        Some("toml") => Spec::from_toml,
        Some("json") => Spec::from_json,
        _ => return Err(OpenError::UnknownModel { name: name_or_file.into() }),
    };
    let text = std::fs::read_to_string(path).map_err(|source| OpenError::SpecFile { path: path.into(), source })?;
    parse(&text).map_err(|source| OpenError::Spec { origin: name_or_file.into(), source: one_line(source) })
}

/// A parser's message in one line: the place and the cause, without the excerpt that TOML draws between them.
fn one_line(error: SpecError) -> SpecError {
    let SpecError::Parse { format, message } = error else { return error };
    let mut lines = message.lines().map(str::trim).filter(|line| !line.is_empty());
    let place = lines.next().unwrap_or_default();
    let place = place.strip_prefix("TOML parse error at ").unwrap_or(place).to_owned();
    // The excerpt has a bar in every line, behind the line's number.
    let excerpt = |line: &&str| !line.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start().starts_with('|');
    let said: Vec<&str> = lines.filter(excerpt).collect();
    let message = if said.is_empty() { place } else { format!("{place}: {}", said.join(", ")) };
    SpecError::Parse { format, message }
}

/// The spec that an opened table carries, if it does, and where it stands.
pub(crate) fn spec_of_opened(opened: &Opened) -> Result<Option<(Spec, String)>, OpenError> {
    if let Some(json) = &opened.spec_json {
        let origin = format!("the spec in {}", opened.root.display());
        return match Spec::from_json(json) {
            Ok(spec) => Ok(Some((spec, origin))),
            Err(source) => Err(OpenError::Spec { origin, source }),
        };
    }
    let origin = format!("the configuration of {}", opened.root.display());
    Ok(match &opened.config {
        Some(ModelConfig::QwenPle(config)) => Some((qwen(config, &opened.constants), origin)),
        Some(ModelConfig::DeepseekV41(config)) => Some((v41(config), origin)),
        _ => None,
    })
}

/// Qwen's configuration; the multipliers and primes of the checkpoint are compared with the derived ones by `Keygen::new`.
fn qwen(config: &QwenConfig, constants: &[LayerConstants]) -> Spec {
    let layers = config.layers();
    let lists = |list: fn(&LayerConstants) -> &Vec<u64>| {
        let of = |layer: &u16| constants.iter().find(|c| c.layer == *layer).map(list).filter(|list| !list.is_empty());
        layers.iter().map(|layer| of(layer).cloned()).collect::<Option<Vec<_>>>()
    };
    Spec {
        name: "qwen-ple".into(),
        max_ngram: config.ngram_size as usize,
        heads: config.heads_per_ngram as usize,
        bases: vec![config.ngram_vocab_size_base],
        vocab: Some(saturating(config.vocab_size)),
        eos: Some(config.eos_token_id),
        image_id: config.image_token_id.and_then(|id| id.try_into().ok()),
        video_id: config.video_token_id.and_then(|id| id.try_into().ok()),
        seed: config.seed,
        multipliers: lists(|c| &c.multipliers),
        primes: lists(|c| &c.primes),
        row_divisor: Some(config.make_ngram_vocab_size_divisible_by),
        parts: Some(config.split_ngram_parts),
        num_layers: u16::try_from(config.num_hidden_layers).ok(),
        layer_ids: layers,
        ..Spec::empty(Dialect::QwenPle)
    }
}

/// DeepSeek's configuration; no checkpoint of it stores constants.
fn v41(config: &V41Config) -> Spec {
    let released = Spec::deepseek_v41();
    let (vocab, compressed) = (saturating(config.vocab_size), saturating(config.engram_compressed_vocab_size));
    // The digest is known for the released vocabulary only.
    let same = released.vocab == Some(vocab) && released.compressed_vocab == Some(compressed);
    let sha256 = released.token_map.filter(|_| same).and_then(|map| map.sha256);
    let image = config.image_token_id.and_then(|id| i32::try_from(id).ok());
    // A text-only model masks nothing.
    let masks = config.vision_layers != Some(0);
    Spec {
        name: "deepseek-v41".into(),
        layer_ids: config.engram_layer_ids.clone(),
        max_ngram: config.engram_max_ngram_size as usize,
        heads: config.engram_n_heads as usize,
        bases: vec![config.engram_vocab_size],
        vocab: Some(vocab),
        compressed_vocab: Some(compressed),
        token_map: Some(TokenMapSpec { len: Some(vocab), sha256, file: None }),
        pad_raw: Some(config.engram_pad_token_id),
        dead_ids: image.into_iter().filter(|_| masks).collect(),
        image_id: image,
        seed: config.engram_seed,
        rows: Some(config.engram_num_embeddings.clone()),
        num_layers: u16::try_from(config.num_hidden_layers).ok(),
        ..Spec::empty(Dialect::Engram)
    }
}

/// Too large for an id: `Keygen::new` refuses the greatest value by name.
fn saturating(size: u64) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_files() {
        assert_eq!(spec_of("deepseek-v41").unwrap().layer_ids, [1, 14]);
        assert!(matches!(spec_of("qwen"), Err(OpenError::UnknownModel { .. })));
        assert!(matches!(spec_of("missing.toml"), Err(OpenError::SpecFile { .. })));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.json");
        std::fs::write(&path, Spec::demo().to_json()).unwrap();
        assert_eq!(spec_of(path.to_str().unwrap()).unwrap(), Spec::demo());
        std::fs::write(&path, "{}").unwrap();
        let error = spec_of(path.to_str().unwrap()).unwrap_err().to_string();
        assert!(error.contains("s.json"), "{error}");
        let path = dir.path().join("s.toml");
        for (text, place, cause) in [("heads = 2\nheds = 3\n", "line 2", "`heds`"), ("heads = = 2\n", "line 1", "=")] {
            std::fs::write(&path, text).unwrap();
            let error = spec_of(path.to_str().unwrap()).unwrap_err().to_string();
            assert!(error.contains(place) && error.contains(cause), "{error}");
            assert!(!error.contains('\n') && !error.contains(" | "), "{error}");
        }
    }
}
