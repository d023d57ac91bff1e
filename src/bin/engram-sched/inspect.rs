//! `inspect`: what a table folder or checkpoint is, and what would be refused.

use crate::args::InspectArgs;
use crate::failure::Failure;
use crate::output::{Output, bytes_text, grouped};
use crate::{hole_rule, interrupt, selection};
use engram_sched::{DirectMode, FileId, MemoryBounds, Model, Scheduler, SelfProof, StartOptions, Stats, Table};
use engram_sched_core::io::FileSet;
use engram_store::Opened;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::Duration;

/// A memory page, and what a disk reads at least.
const PAGE_BYTES: u64 = 4096;

/// Rows looked at to tell how many straddle a page.
const STRADDLE_ROWS: u64 = 65_536;

/// What can be said beyond the files themselves.
struct Findings {
    opened: Opened,
    model: Option<Model>,
    alignments: Vec<u32>,
    direct: bool,
    hole_bytes: u64,
    running: Option<(MemoryBounds, Stats)>,
    refused: Vec<String>,
    notes: Vec<String>,
}

pub(crate) fn run(args: &InspectArgs, out: &Output) -> Result<(), Failure> {
    let options = selection::options(&args.model, &args.raw)?;
    let opened = engram_store::open(&args.dir, options.raw.as_ref())?;
    let mut refused = Vec::new();
    let mut notes = opened.notes.clone();
    let model = match Model::open(&args.dir, &options) {
        Ok(model) => {
            notes = model.notes().to_vec();
            Some(model)
        }
        Err(error) => {
            refused.push(Failure::from(error).text());
            None
        }
    };
    let (mut alignments, mut direct) = (Vec::new(), false);
    match FileSet::open(&opened.files, DirectMode::Auto) {
        Ok(files) => {
            alignments = (0..files.len()).map(|file| files.alignment(FileId(file as u32))).collect();
            direct = files.all_direct();
            notes.extend(files.notes().iter().cloned());
        }
        Err(error) => refused.push(Failure::from(error).text()),
    }
    let hole_bytes = hole_rule::bytes(&opened.files)?;
    if let Some(fault) = hole_rule::fault(hole_bytes, opened.self_proof.as_ref()) {
        refused.push(format!("a timed benchmark: {fault}"));
    }
    interrupt::check()?;
    let mut running = None;
    if let Some(model) = &model {
        match Scheduler::start(model, &StartOptions::default()) {
            Ok(scheduler) => {
                let memory = scheduler.memory();
                running = Some((memory, scheduler.shutdown(Duration::from_secs(10))?));
            }
            Err(error) => refused.push(Failure::from(error).text()),
        }
    }
    if let Some((_, stats)) = &running {
        notes.extend(stats.backends.iter().flat_map(|backend| backend.notes.clone()));
        notes.dedup();
    }
    let findings = Findings { opened, model, alignments, direct, hole_bytes, running, refused, notes };
    if out.json {
        out.print(serde_json::to_string_pretty(&findings.json())?)
    } else {
        out.print(findings.text().trim_end())
    }
}

/// Share of a table's rows whose first part lies on two pages, from its first rows.
fn straddling(table: &Table) -> f64 {
    let rows = STRADDLE_ROWS.min(table.rows());
    let straddles = |row: &u64| {
        let extent = table.extent(0, *row);
        extent.offset / PAGE_BYTES != (extent.offset + u64::from(extent.len) - 1) / PAGE_BYTES
    };
    (0..rows).filter(straddles).count() as f64 / rows as f64
}

impl Findings {
    fn synthetic(&self) -> &'static str {
        match &self.opened.self_proof {
            None => "no",
            Some(SelfProof { sparse_rows: None, .. }) => "yes",
            Some(SelfProof { sparse_rows: Some(_), .. }) => "yes, sparse: most rows are holes",
        }
    }

    fn json(&self) -> Value {
        let opened = &self.opened;
        let tables: Vec<Value> = opened
            .tables
            .iter()
            .map(|table| {
                let parts: Vec<Value> = table
                    .parts()
                    .iter()
                    .map(|part| {
                        json!({
                            "bytes": part.bytes, "stride": part.stride, "shards": part.shards.len(),
                            "rows_per_shard": part.rows_per_shard,
                        })
                    })
                    .collect();
                json!({
                    "layer": table.layer(), "rows": table.rows(), "row_bytes": table.row_bytes(),
                    "extents_per_row": table.parts().len(), "parts": parts, "straddling_share": straddling(table),
                })
            })
            .collect();
        let files: Vec<Value> = opened
            .files
            .iter()
            .enumerate()
            .map(|(i, file)| json!({ "path": file.path, "bytes": file.len, "alignment": self.alignments.get(i) }))
            .collect();
        let model = self.model.as_ref().map(|model| {
            let keygen = model.keygen();
            let spec = keygen.spec();
            json!({
                "name": spec.name, "dialect": spec.dialect.name(), "vocab": keygen.vocab(), "hashed_vocab": keygen.hashed_vocab(),
                "orders": keygen.orders(), "heads": keygen.heads(), "rows_per_token": keygen.columns() * keygen.tables(),
                "rows_addressed": (0..keygen.tables()).map(|table| keygen.table_rows(table)).collect::<Vec<_>>(),
            })
        });
        let memory = self.running.as_ref().map(|(memory, _)| {
            json!({
                "destination_bytes": memory.destination_bytes, "group_bytes": memory.group_bytes,
                "token_bytes": memory.token_bytes, "arena_bytes": memory.arena_bytes,
                "bookkeeping_bytes": memory.bookkeeping_bytes, "total_bytes": memory.total_bytes(),
            })
        });
        let backends: Vec<Value> = self
            .running
            .iter()
            .flat_map(|(_, stats)| &stats.backends)
            .map(|b| json!({ "backend": b.backend, "direct": b.direct, "flags": b.flags }))
            .collect();
        json!({
            "path": opened.root, "source": opened.source.as_str(), "row_format": opened.row_format.to_string(),
            "synthetic": opened.self_proof.is_some(), "bytes": opened.row_bytes_total(), "hole_bytes": self.hole_bytes,
            "model": model, "tables": tables, "files": files, "direct": self.direct, "backends": backends, "memory": memory,
            "refused": self.refused, "notes": self.notes,
        })
    }

    fn text(&self) -> String {
        let opened = &self.opened;
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}: {}, rows of {}", opened.root.display(), opened.source.as_str(), opened.row_format);
        if let Some(model) = &self.model {
            let keygen = model.keygen();
            let name = if keygen.spec().name.is_empty() { keygen.spec().dialect.name() } else { &keygen.spec().name };
            let _ = writeln!(
                text,
                "model      {name}: {} ids ({} hashed), {} orders x {} heads, {} rows a token",
                grouped(keygen.vocab().into()),
                grouped(keygen.hashed_vocab().into()),
                keygen.orders(),
                keygen.heads(),
                keygen.columns() * keygen.tables()
            );
        }
        for table in &opened.tables {
            let _ = writeln!(
                text,
                "table      layer {}: {} rows of {} B, {} extent(s) a row, {:.1} % of the rows straddle a page",
                table.layer(),
                grouped(table.rows()),
                table.row_bytes(),
                table.parts().len(),
                straddling(table) * 100.0
            );
            for part in table.parts() {
                let _ = writeln!(
                    text,
                    "           {} B every {} B, {} shard(s) of {} rows",
                    part.bytes,
                    part.stride,
                    part.shards.len(),
                    grouped(part.rows_per_shard)
                );
            }
        }
        let bytes: u64 = opened.files.iter().map(|file| file.len).sum();
        let _ = writeln!(
            text,
            "files      {} with {}, of which rows {}, holes {}",
            opened.files.len(),
            bytes_text(bytes),
            bytes_text(opened.row_bytes_total()),
            bytes_text(self.hole_bytes)
        );
        for (i, file) in opened.files.iter().enumerate().take(4) {
            let alignment = self.alignments.get(i).map_or_else(String::new, |a| format!(", reads aligned to {a} B"));
            let _ = writeln!(text, "           {} ({}{alignment})", file.path.display(), bytes_text(file.len));
        }
        if opened.files.len() > 4 {
            let _ = writeln!(text, "           and {} more", opened.files.len() - 4);
        }
        let _ = writeln!(
            text,
            "direct     {}",
            if self.direct { "O_DIRECT" } else { "buffered: O_DIRECT is refused here" }
        );
        let _ = writeln!(text, "synthetic  {}", self.synthetic());
        if let Some((memory, stats)) = &self.running {
            for backend in &stats.backends {
                let _ = writeln!(text, "backend    {} ({})", backend.backend, backend.flags.join(", "));
            }
            let _ = writeln!(
                text,
                "memory     at most {} with the default limits: destinations {}, rows ahead {}, tokens {}, read buffers {}, bookkeeping {}",
                bytes_text(memory.total_bytes()),
                bytes_text(memory.destination_bytes),
                bytes_text(memory.group_bytes),
                bytes_text(memory.token_bytes),
                bytes_text(memory.arena_bytes),
                bytes_text(memory.bookkeeping_bytes)
            );
        }
        for note in &self.notes {
            let _ = writeln!(text, "note       {note}");
        }
        for refused in &self.refused {
            let _ = writeln!(text, "refused    {refused}");
        }
        text
    }
}
