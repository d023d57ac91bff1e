//! The benchmark's own table: made once in the user's cache folder, kept for the next run.

use super::cache_folder;
use crate::args::BenchArgs;
use crate::failure::Failure;
use crate::output::Output;
use crate::{selection, synth};
use engram_sched::Synthetic;
use std::path::{Path, PathBuf};

/// The model of the benchmark's own table.
const MODEL_DEFAULT: &str = "qwen-ple";

/// A table of this model and size; what lies there already is used again.
pub(crate) fn make(args: &BenchArgs, out: &Output) -> Result<PathBuf, Failure> {
    let path = place(args)?;
    let plan = Synthetic::new(selection::spec(model(args))?, args.bytes).plan(&path)?;
    if path.join(engram_sched::MANIFEST).is_file() {
        return Ok(path);
    }
    out.note("the benchmark needs a table of its own; it is kept for the next run (bench --clean removes it)");
    let parent = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent)
        .map_err(|error| Failure::failed(format!("cannot make {}: {error}; give another --dir", parent.display())))?;
    synth::write(&plan, out)?;
    Ok(path)
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
        // Only what `make` made: its name, and a manifest of ours inside.
        let ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if ours && entry.path().join(engram_sched::MANIFEST).is_file() {
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

fn place(args: &BenchArgs) -> Result<PathBuf, Failure> {
    let model = Path::new(model(args)).file_stem().map_or_else(|| MODEL_DEFAULT.into(), |stem| stem.to_string_lossy());
    Ok(folder(args)?.join(format!("{PREFIX}{model}-{}", args.bytes)))
}
