//! `synth`: tables whose rows prove themselves.

use crate::args::{LayoutArg, SynthArgs};
use crate::failure::Failure;
use crate::output::{Output, bytes_text, grouped};
use crate::{interrupt, selection};
use engram_sched::{StoreError, Summary, SynthLayout, SynthPlan, Synthetic, synth};
use serde_json::json;
use std::ops::ControlFlow;

pub(crate) fn run(args: &SynthArgs, out: &Output) -> Result<(), Failure> {
    let spec = selection::spec(&args.model)?;
    let mut synthetic = match args.bytes {
        Some(bytes) => Synthetic::new(spec, bytes),
        None => Synthetic::sparse_full(spec),
    };
    synthetic = synthetic.seed(args.seed.unwrap_or(0)).layout(match args.layout {
        LayoutArg::Packed => SynthLayout::Packed,
        LayoutArg::Shards => SynthLayout::Shards,
        LayoutArg::Safetensors => SynthLayout::Safetensors,
    });
    if let Some(row_bytes) = args.row_bytes {
        synthetic = synthetic.row_bytes(row_bytes);
    }
    let plan = synthetic.plan(&args.out)?;
    if args.layout == LayoutArg::Safetensors && plan.config.is_none() {
        return Err(Failure::usage("no checkpoint of this model is known; use --layout packed or shards"));
    }
    let summary = write(&plan, out)?;
    let rows: u64 = plan.tables.iter().map(|table| table.padded_rows).sum();
    if out.json {
        let tables: Vec<_> = plan
            .tables
            .iter()
            .map(|table| json!({ "layer": table.layer, "rows": table.padded_rows, "rows_addressed": table.rows }))
            .collect();
        return out.print(serde_json::to_string_pretty(&json!({
            "path": summary.out, "bytes": summary.bytes, "bytes_written": summary.bytes_written, "files": summary.files,
            "rows_written": summary.rows_written, "row_bytes": plan.row_format.row_bytes(), "tables": tables,
        }))?);
    }
    out.print(format!(
        "{}: {} rows of {} B in {} files, {} ({} written)",
        summary.out.display(),
        grouped(rows),
        plan.row_format.row_bytes(),
        summary.files,
        bytes_text(summary.bytes),
        bytes_text(summary.bytes_written)
    ))
}

/// Says what will be written, writes it with a progress bar, and stops at Ctrl-C.
pub(crate) fn write(plan: &SynthPlan, out: &Output) -> Result<Summary, Failure> {
    let (bytes, need) = (plan.bytes_total()?, plan.bytes_needed()?);
    let size =
        if need < bytes { format!("{}, {} on disk", bytes_text(bytes), bytes_text(need)) } else { bytes_text(bytes) };
    out.note(format!("writing {} ({size}, {})", plan.out.display(), plan.row_format));
    let bar = out.progress(need, "writing", true);
    let written = synth(plan, &mut |done, all| {
        bar.set_length(all);
        bar.set_position(done);
        if interrupt::asked() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    bar.finish_and_clear();
    match written {
        Ok(summary) => {
            for left in &summary.leftovers_removed {
                out.note(format!("removed {}, which a killed run had left", left.display()));
            }
            Ok(summary)
        }
        Err(StoreError::Cancelled { .. }) => Err(Failure::Interrupted),
        Err(error) => Err(error.into()),
    }
}
