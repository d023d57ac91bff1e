//! From the command line to a model: names, spec files, table directories, token maps.

use crate::args::{BackendArg, DirectArg, ModelArgs, RawArgs};
use crate::failure::Failure;
use crate::output::Output;
use engram_sched::{Keygen, Model, ModelOptions, OpenError, RawGeometry, Spec};
use std::path::Path;

/// The spec of a name or file; a name that is neither is wrong usage.
pub(crate) fn spec(name: &str) -> Result<Spec, Failure> {
    engram_sched::spec_of(name).map_err(|error| match error {
        OpenError::UnknownModel { .. } => Failure::Usage(error.to_string()),
        other => other.into(),
    })
}

/// Refuses an I/O path that contradicts itself.
pub(crate) fn check_io(backend: BackendArg, direct: DirectArg) -> Result<(), Failure> {
    if backend == BackendArg::Mmap && direct == DirectArg::Require {
        return Err(Failure::usage(
            "a memory map reads through the page cache: --backend mmap and --direct require exclude each other",
        ));
    }
    Ok(())
}

/// What the command line says about a model.
pub(crate) fn options(model: &ModelArgs, raw: &RawArgs) -> Result<ModelOptions, Failure> {
    let raw = match (raw.row_bytes, raw.rows_per_shard) {
        (None, _) => None,
        (Some(_), None) => return Err(Failure::usage("--row-bytes needs --rows-per-shard")),
        (Some(row_bytes), Some(rows_per_shard)) => {
            Some(RawGeometry { layer: raw.layer.unwrap_or(1), rows: raw.rows, row_bytes, rows_per_shard, format: None })
        }
    };
    Ok(ModelOptions {
        spec: model.model.as_deref().map(spec).transpose()?,
        token_map: model.token_map.clone(),
        raw,
        ..ModelOptions::default()
    })
}

/// Opens the table at `path`.
pub(crate) fn model(path: &Path, model: &ModelArgs, raw: &RawArgs, out: &Output) -> Result<Model, Failure> {
    let model = Model::open(path, &options(model, raw)?)?;
    for note in model.notes() {
        out.note(format!("note: {note}"));
    }
    Ok(model)
}

/// The address function of a model by name, of a spec file, or of a table directory.
pub(crate) fn keygen(name: &str, token_map: Option<&Path>, out: &Output) -> Result<Keygen, Failure> {
    if Path::new(name).is_dir() || name.ends_with(".safetensors") {
        let args = ModelArgs { model: None, token_map: token_map.map(Path::to_path_buf) };
        return Ok(model(Path::new(name), &args, &RawArgs::default(), out)?.keygen().clone());
    }
    spec(name)?;
    Ok(engram_sched::keygen_of(name, token_map)?)
}
