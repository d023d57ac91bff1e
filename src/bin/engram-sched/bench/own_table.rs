//! The benchmark's own table: made once in the user's cache folder, kept for the next run.

use super::cache_folder;
use crate::args::BenchArgs;
use crate::failure::Failure;
use crate::output::Output;
use crate::{selection, synth};
use engram_keygen::rng::splitmix64;
use engram_sched::{SynthPlan, Synthetic};
use std::path::{Path, PathBuf};

/// The model of the benchmark's own table.
const MODEL_DEFAULT: &str = "qwen-ple";

/// Size of the benchmark's own table, unless the model is smaller.
const BYTES_DEFAULT: u64 = 2 << 30;

/// The file that says that a folder was made here, and may be removed: a name alone could be a user's.
const MARKER: &str = "made-by-engram-sched-bench";

/// Raw ids of the model to be made, where its spec tells them: streams are checked before gigabytes are written.
pub(crate) fn vocab(args: &BenchArgs) -> Result<Option<u32>, Failure> {
    let spec = selection::spec(model(args))?;
    Ok(spec.vocab.or(spec.token_map.and_then(|map| map.len)).or(spec.compressed_vocab))
}

/// A table of this model and size; what lies there already is used again.
pub(crate) fn make(args: &BenchArgs, out: &Output) -> Result<PathBuf, Failure> {
    let spec = selection::spec(model(args))?;
    let bytes = match args.bytes {
        Some(bytes) => bytes,
        None => BYTES_DEFAULT.min(Synthetic::new(spec.clone(), 1).full_bytes()?),
    };
    let synthetic = Synthetic::new(spec, bytes);
    let path = place(args, bytes, &fingerprint(&synthetic.plan("")?))?;
    let plan = synthetic.plan(&path)?;
    if path.join(engram_sched::MANIFEST).is_file() {
        if !path.join(MARKER).is_file() {
            return Err(Failure::failed(format!(
                "{} has the name of a table of the benchmark, but was not made by it (no file {MARKER}); remove it, or give \
                 another --dir",
                path.display()
            )));
        }
        return Ok(path);
    }
    out.note("the benchmark needs a table of its own; it is kept for the next run (bench --clean removes it)");
    let parent = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent)
        .map_err(|error| Failure::failed(format!("cannot make {}: {error}; give another --dir", parent.display())))?;
    synth::write(&plan, out)?;
    std::fs::write(path.join(MARKER), "bench --clean removes this folder\n")
        .map_err(|error| Failure::failed(format!("cannot mark {} as the benchmark's: {error}", path.display())))?;
    Ok(path)
}

/// Tells apart tables of different specs that share a file name: everything that the scaled spec says, and the rows' format.
fn fingerprint(plan: &SynthPlan) -> String {
    let text = format!("{} {}", plan.spec_json.as_deref().unwrap_or_default(), plan.row_format);
    let hash = text.bytes().fold(0, |hash, byte| splitmix64(hash ^ u64::from(byte)));
    format!("{:08x}", hash >> 32)
}

/// Removes the benchmark's own tables.
pub(crate) fn clean(args: &BenchArgs, out: &Output) -> Result<(), Failure> {
    let folder = folder(args)?;
    let mut removed = 0;
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return out.print(format!("nothing to remove in {}", folder.display()));
        }
        Err(error) => return Err(Failure::failed(format!("cannot list {}: {error}", folder.display()))),
    };
    for entry in entries.flatten() {
        // Only what `make` made: its name, and its marker inside; never through a link.
        let named = entry.file_name().to_string_lossy().starts_with(PREFIX);
        let folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if named && folder && entry.path().join(MARKER).is_file() {
            std::fs::remove_dir_all(entry.path())
                .map_err(|error| Failure::failed(format!("cannot remove {}: {error}", entry.path().display())))?;
            out.print(format!("removed {}", entry.path().display()))?;
            removed += 1;
        }
    }
    if removed == 0 {
        out.print(format!("nothing to remove in {}", folder.display()))?;
    }
    Ok(())
}

/// How the folders of the benchmark's tables begin.
const PREFIX: &str = "bench-";

fn model(args: &BenchArgs) -> &str {
    args.model.model.as_deref().unwrap_or(MODEL_DEFAULT)
}

fn folder(args: &BenchArgs) -> Result<PathBuf, Failure> {
    Ok(match &args.dir {
        Some(dir) => dir.clone(),
        None => cache_folder()?.join("engram-sched"),
    })
}

fn place(args: &BenchArgs, bytes: u64, fingerprint: &str) -> Result<PathBuf, Failure> {
    let model = Path::new(model(args)).file_stem().map_or_else(|| MODEL_DEFAULT.into(), |stem| stem.to_string_lossy());
    Ok(folder(args)?.join(format!("{PREFIX}{model}-{bytes}-{fingerprint}")))
}
