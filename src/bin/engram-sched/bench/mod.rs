//! `bench`: an emulated engine on a real table, and what it waits for.
//!
//! Arms (ways to get rows) run in turn, forwards and backwards, so that a drift of the machine meets all of them alike. Each run has a
//! scheduler of its own; tokens are the same for every arm of a round. A cold figure carries its proof, or the report says void.

mod args;
mod arm;
mod bulk;
mod cells;
mod check;
mod drive;
mod engine;
mod figures;
mod machine;
mod memory;
mod own_table;
mod prefix;
mod report;
mod report_cells;
mod runs;
mod stats;
mod trace;
mod traffic;

use crate::args::{BackendArg, BenchArgs, IssueArg, ModelArgs};
use crate::failure::Failure;
use crate::output::{Output, bytes_text, grouped};
use crate::{hole_rule, selection, tokens};
use args::Shape;
use arm::Arm;
use cells::{Cell, Findings};
use engram_sched::{BackendChoice, Model};
use memory::MemoryTables;
use report::Report;
use runs::Runner;
use std::path::PathBuf;
use std::time::Duration;
use traffic::Workload;

/// Decoder layers of a model that says nothing about it.
const NUM_LAYERS_DEFAULT: u32 = 48;

/// Prompt tokens of all requests together that take a while to read.
const PROMPTS_NOTED: u64 = 16_384;

/// The least time of an arm in one round.
const ROUND_MIN: Duration = Duration::from_millis(1);

pub(crate) fn run(args: &BenchArgs, out: &Output) -> Result<(), Failure> {
    if args.clean {
        return own_table::clean(args, out);
    }
    let measure = &args.measure;
    selection::check_io(measure.backend, measure.direct)?;
    if measure.duration() / measure.rounds < ROUND_MIN {
        return Err(Failure::usage(format!(
            "--duration {:?} leaves each of {} rounds less than 1 ms; raise it or lower --rounds",
            measure.duration(),
            measure.rounds
        )));
    }
    let closed = match (measure.grid, measure.curve, measure.batch_tokens) {
        (true, ..) => Some("--grid"),
        (_, true, _) => Some("--curve"),
        (.., Some(_)) => Some("--batch-tokens"),
        _ => None,
    };
    let mut workload = Workload::new(&args.traffic, closed)?;
    let stream_for = |vocab| {
        let name = args.traffic.tokens.as_deref().unwrap_or_else(|| tokens::default_stream(vocab));
        tokens::stream(name, args.traffic.seed, vocab)
    };
    let (path, model) = match &args.table {
        Some(path) => (path.clone(), selection::model(path, &args.model, &args.raw, out)?),
        None => {
            if args.raw.row_bytes.is_some() {
                return Err(Failure::usage("--row-bytes and its like describe raw shards: name their folder"));
            }
            if let Some(vocab) = own_table::vocab(args)? {
                stream_for(vocab)?;
            }
            let path = own_table::make(args, out)?;
            // --model named what to make; the table itself says how it was scaled.
            let options = ModelArgs { model: None, token_map: args.model.token_map.clone() };
            let model = selection::model(&path, &options, &args.raw, out)?;
            (path, model)
        }
    };
    let keygen = model.keygen();
    let layers: Vec<u16> = (0..keygen.tables()).map(|table| keygen.deadline_layer(table)).collect();
    let num_layers = keygen.spec().num_layers.map_or(NUM_LAYERS_DEFAULT, u32::from);
    let shape = Shape::new(&args.engine, layers, num_layers, workload.prompt_max())?;
    let shapes = if measure.grid { cells::grid(&shape, args.engine.host_time)? } else { vec![shape.clone()] };
    let (stream, stream_name) = stream_for(keygen.vocab())?;
    workload.set_stream(stream, keygen)?;
    let arms = arms(args, &model, out)?;
    let memory = match arms.iter().any(|arm| arm.backend.is_none()) {
        false => None,
        true => {
            let bar = out.progress(MemoryTables::bytes(&model), "reading the table into memory", true);
            let tables = MemoryTables::read(&model, |bytes| bar.set_position(bytes))?;
            bar.finish_and_clear();
            Some(tables)
        }
    };
    machine::exact_timers();
    let requests = shapes.iter().map(|shape| shape.requests).max().unwrap_or(0);
    let prompts = u64::from(requests) * u64::from(workload.prompt_max());
    if measure.batch_tokens.is_none() && workload.is_closed() && prompts > PROMPTS_NOTED {
        out.note(format!(
            "note: each run begins with the prompts of all requests, up to {} tokens, before its clock starts; that may take longer than \
             --duration",
            grouped(prompts)
        ));
    }
    let runner = Runner {
        args,
        model: &model,
        memory: memory.as_ref(),
        workload: &workload,
        holes: hole_rule::fault(hole_rule::bytes(model.files())?, model.self_proof()),
    };
    runner.settle_storage()?;
    let findings = if measure.curve {
        Findings::Curve(cells::curve(&runner, &shape, &arms, out)?)
    } else {
        let cells = cells::compare(&runner, shapes, &arms, out)?;
        if measure.grid { Findings::Grid(cells) } else { Findings::One(cells) }
    };
    let report = Report {
        args,
        shape: &shape,
        model: &model,
        path: &path,
        stream: &stream_name,
        workload: &workload,
        findings: &findings,
    };
    if out.json {
        out.print(serde_json::to_string_pretty(&report.json())?)?;
    } else {
        out.print(report.text())?;
    }
    verdict(findings.cells())
}

/// Which arms to run.
fn arms(args: &BenchArgs, model: &Model, out: &Output) -> Result<Vec<Arm>, Failure> {
    let backend = BackendChoice::from(args.measure.backend);
    let suffix = if args.measure.backend == BackendArg::Mmap { ", memory map" } else { "" };
    let need = MemoryTables::bytes(model);
    let free = machine::memory_available_bytes();
    let fits = free.is_none_or(|free| need < free / 10 * 8);
    let issue = &args.measure.issue;
    let tables = model.tables().len();
    if args.measure.batch_tokens.is_some() {
        if !issue.is_empty() {
            return Err(Failure::usage("--batch-tokens has no layers to issue at; leave --issue out"));
        }
        return Ok(vec![Arm::new(IssueArg::AtToken, Some(backend), format!("bulk{suffix}"), tables)]);
    }
    let named = |issue| {
        let backend = (issue != IssueArg::Memory).then_some(backend);
        let name = match issue {
            IssueArg::AtToken => "at the token",
            IssueArg::AtStep => "at the step",
            IssueArg::AtLayer => "at the layer",
            IssueArg::Memory => return Arm::new(issue, backend, "table in memory".into(), tables),
        };
        Arm::new(issue, backend, format!("{name}{suffix}"), tables)
    };
    if args.measure.curve {
        // The second one shows what the device takes when nothing is hidden.
        return Ok([IssueArg::AtToken, IssueArg::AtLayer].map(named).into());
    }
    if !issue.is_empty() {
        if issue.contains(&IssueArg::Memory) && !fits {
            return Err(Failure::failed(format!(
                "the memory arm needs {} and {} are free; take a smaller table or leave it out",
                bytes_text(need),
                bytes_text(free.unwrap_or(0))
            )));
        }
        let mut chosen: Vec<IssueArg> = Vec::new();
        for &issue in issue {
            if !chosen.contains(&issue) {
                chosen.push(issue);
            }
        }
        return Ok(chosen.into_iter().map(named).collect());
    }
    let mut arms = Vec::new();
    if fits {
        arms.push(named(IssueArg::Memory));
    } else {
        out.note(format!("note: the table ({}) does not fit into memory: no memory arm", bytes_text(need)));
    }
    arms.extend([IssueArg::AtToken, IssueArg::AtStep, IssueArg::AtLayer].map(named));
    if args.measure.backend != BackendArg::Mmap {
        arms.push(Arm::new(IssueArg::AtLayer, Some(BackendChoice::Mmap), "memory map, at layer".into(), tables));
    }
    Ok(arms)
}

/// Wrong rows are a failure; a cold run without proof is void.
fn verdict(cells: &[Cell]) -> Result<(), Failure> {
    let named = || cells.iter().flat_map(|cell| cell.arms.iter().map(|arm| (cell.name(cells), arm)));
    for (cell, arm) in named() {
        if arm.sum.mismatches > 0 {
            let first = arm.sum.first_mismatch.as_deref().unwrap_or("");
            return Err(Failure::failed(format!("{cell}{}: {} wrong rows ({first})", arm.name, arm.sum.mismatches)));
        }
    }
    let void: Vec<String> = named()
        .filter(|(_, arm)| arm.sum.validity.verdict() == "void")
        .map(|(cell, arm)| format!("{cell}{}: {}", arm.name, arm.sum.validity.proof()))
        .collect();
    if void.is_empty() { Ok(()) } else { Err(Failure::Void(void.join("\n>>> VOID: "))) }
}

/// The user's folder for caches: `$XDG_CACHE_HOME`, else `~/.cache`.
fn cache_folder() -> Result<PathBuf, Failure> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache"))).ok_or_else(|| {
        Failure::failed("no folder for caches: neither XDG_CACHE_HOME nor HOME is an absolute path; give --dir")
    })
}
