//! `verify`: rows through the scheduler and by plain `pread`, compared byte for byte.
//!
//! Three witnesses: the scheduler's I/O path (rows in bulk, and rows that tokens ask for), the plain reader, and, for synthetic tables,
//! the rows themselves.

use crate::args::VerifyArgs;
use crate::failure::Failure;
use crate::output::{Output, grouped};
use crate::tokens::{self, Random};
use crate::{interrupt, selection};
use engram_sched::{
    Begin, History, Layer, Limits, Model, PlainReader, RequestClass, RowId, Scheduler, StartOptions, Token, TokenError,
};
use serde_json::json;
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// Rows of one bulk read.
const BATCH_ROWS: usize = 8192;

/// Tokens handed over at once, and awaited together.
const CHUNK_TOKENS: usize = 64;

/// Rows of a table with holes that are read beside the written ones.
const HOLE_ROWS: u64 = 1000;

/// Differences that are named one by one.
const NAMED_MAX: usize = 10;

/// What was compared in one table, or for one stream of tokens.
#[derive(Default)]
struct Compared {
    rows: u64,
    /// The scheduler gave other bytes than `pread`.
    differ: u64,
    /// Rows that could prove themselves.
    proofs: u64,
    /// Of these, rows that are not what they should be.
    unproved: u64,
    named: Vec<String>,
}

impl Compared {
    fn wrong(&self) -> u64 {
        self.differ + self.unproved
    }

    /// What the rows said of themselves; nothing if they could not, as those of a real model cannot.
    fn proofs_text(&self) -> String {
        if self.proofs == 0 {
            return String::new();
        }
        format!("; {} prove themselves, {} do not", grouped(self.proofs - self.unproved), self.unproved)
    }

    /// Compares one row; `given` came through the scheduler, `read` by pread.
    fn row(&mut self, model: &Model, table: usize, row: RowId, given: &[u8], read: &[u8]) {
        self.rows += 1;
        let mut fault = None;
        if given != read {
            self.differ += 1;
            fault = Some("the scheduler and pread give different bytes");
        }
        if let Some(right) = model.proves(table, row, read) {
            self.proofs += 1;
            if !right {
                self.unproved += 1;
                fault = Some("the bytes on disk are not those of this row");
            }
        }
        if let Some(fault) = fault
            && self.named.len() < NAMED_MAX
        {
            self.named.push(format!("layer {}, row {row}: {fault}", model.tables()[table].layer()));
        }
    }
}

pub(crate) fn run(args: &VerifyArgs, out: &Output) -> Result<(), Failure> {
    selection::check_io(args.backend, args.direct)?;
    let model = selection::model(&args.dir, &args.model, &args.raw, out)?;
    let reader = model.plain_reader()?;
    let scheduler = Scheduler::start(&model, &options(args))?;
    let began = Instant::now();

    let choices: Vec<Choice> = (0..model.tables().len()).map(|table| Choice::new(&model, table, args)).collect();
    let bar = out.progress(choices.iter().map(Choice::len).sum(), "comparing rows", false);
    let mut tables = Vec::new();
    for (table, choice) in choices.iter().enumerate() {
        tables.push(compare_table(&model, &scheduler, &reader, table, choice, &bar)?);
    }
    bar.finish_and_clear();
    let streamed = compare_tokens(&model, &scheduler, &reader, args)?;
    let stats = scheduler.shutdown(Duration::from_secs(10))?;

    let wrong: u64 = tables.iter().chain([&streamed]).map(Compared::wrong).sum();
    let backend = stats.backends.first().map_or("", |backend| backend.backend);
    let direct = stats.backends.iter().all(|backend| backend.direct);
    if out.json {
        let tables: Vec<_> = tables
            .iter()
            .zip(model.tables())
            .map(|(compared, table)| {
                json!({
                    "layer": table.layer(), "rows": table.rows(), "row_bytes": table.row_bytes(), "checked": compared.rows,
                    "mismatches": compared.differ, "self_proofs": compared.proofs, "self_proof_failures": compared.unproved,
                })
            })
            .collect();
        out.print(serde_json::to_string_pretty(&json!({
            "path": args.dir, "source": model.source().as_str(), "backend": backend, "direct": direct,
            "tables": tables,
            "tokens": {
                "fed": args.tokens, "checked": streamed.rows, "mismatches": streamed.differ,
                "self_proofs": streamed.proofs, "self_proof_failures": streamed.unproved,
            },
            "seconds": (began.elapsed().as_secs_f64() * 1e3).round() / 1e3,
            "ok": wrong == 0,
        }))?)?;
    } else {
        let path = format!("{backend}, {}", if direct { "direct" } else { "buffered" });
        for (compared, table) in tables.iter().zip(model.tables()) {
            let which = if compared.rows == table.rows() { "every row, " } else { "a sample, " };
            out.print(format!(
                "layer {}: {which}{} of {} rows of {} B through the scheduler ({path}) and by pread: {} differ{}",
                table.layer(),
                grouped(compared.rows),
                grouped(table.rows()),
                table.row_bytes(),
                compared.differ,
                compared.proofs_text()
            ))?;
        }
        out.print(format!(
            "tokens: {} fed, {} rows delivered at their layers and by pread: {} differ{}",
            grouped(args.tokens.into()),
            grouped(streamed.rows),
            streamed.differ,
            streamed.proofs_text()
        ))?;
    }
    if wrong == 0 {
        return Ok(());
    }
    let named: Vec<String> = tables.into_iter().chain([streamed]).flat_map(|compared| compared.named).collect();
    Err(Failure::failed(format!(
        "{wrong} rows are wrong:\n  {}\nfetch the table again, or make it anew",
        named[..named.len().min(NAMED_MAX)].join("\n  ")
    )))
}

fn options(args: &VerifyArgs) -> StartOptions {
    StartOptions {
        io_actors: None,
        backend: args.backend.into(),
        direct: args.direct.into(),
        limits: Limits { requests_max: 16, await_tokens_max: CHUNK_TOKENS as u32, ..Limits::default() },
        ..StartOptions::default()
    }
}

/// Which rows of a table are compared.
enum Choice {
    All(u64),
    Some(Vec<RowId>),
}

impl Choice {
    fn new(model: &Model, table: usize, args: &VerifyArgs) -> Self {
        let rows = model.tables()[table].rows();
        let mut random = Random::new(args.seed ^ table as u64);
        let mut spread = |n: u64| distinct(&mut random, n, rows);
        let written = model.self_proof().and_then(|proof| proof.sparse_rows.as_ref()).map(|rows| &rows[table]);
        let mut chosen = match (written, args.sample) {
            (None, None) => return Self::All(rows),
            (None, Some(n)) if n >= rows => return Self::All(rows),
            (None, Some(n)) => spread(n),
            // Of a table with holes, every row that was written, and some that were not.
            (Some(written), None) => {
                let mut chosen = spread(HOLE_ROWS);
                chosen.extend(written);
                chosen
            }
            (Some(written), Some(n)) => {
                let step = (written.len() as u64).div_ceil(n.max(2)).max(1) as usize;
                let mut chosen: Vec<RowId> = written.iter().copied().step_by(step).collect();
                chosen.extend([0, rows - 1]);
                chosen
            }
        };
        chosen.sort_unstable();
        chosen.dedup();
        Self::Some(chosen)
    }

    fn len(&self) -> u64 {
        match self {
            Self::All(rows) => *rows,
            Self::Some(rows) => rows.len() as u64,
        }
    }

    /// Rows `at..`, at most a batch.
    fn batch(&self, at: u64) -> Vec<RowId> {
        let end = (at + BATCH_ROWS as u64).min(self.len());
        match self {
            Self::All(_) => (at..end).collect(),
            Self::Some(rows) => rows[at as usize..end as usize].to_vec(),
        }
    }
}

/// `n` different rows of `rows`, the first and the last among them (Floyd's algorithm).
fn distinct(random: &mut Random, n: u64, rows: u64) -> Vec<RowId> {
    let mut chosen = HashSet::from([0, rows - 1]);
    let n = n.min(rows).saturating_sub(chosen.len() as u64);
    let inner = rows.saturating_sub(2);
    for last in inner - n..inner {
        let drawn = 1 + random.below(last + 1);
        if !chosen.insert(drawn) {
            chosen.insert(1 + last);
        }
    }
    chosen.into_iter().collect()
}

fn compare_table(
    model: &Model,
    scheduler: &Scheduler,
    reader: &PlainReader,
    table: usize,
    choice: &Choice,
    bar: &indicatif::ProgressBar,
) -> Result<Compared, Failure> {
    let row_bytes = model.tables()[table].row_bytes() as usize;
    let layer = Layer(model.tables()[table].layer());
    let mut compared = Compared::default();
    let (mut given, mut read) = (Vec::new(), vec![0; row_bytes]);
    let mut at = 0;
    while at < choice.len() {
        interrupt::check()?;
        let rows = choice.batch(at);
        given.resize(rows.len() * row_bytes, 0);
        scheduler.read_rows(layer, &rows, &mut given)?;
        for (&row, given) in rows.iter().zip(given.chunks_exact(row_bytes)) {
            reader.read_row(table, row, &mut read)?;
            compared.row(model, table, row, given, &read);
        }
        at += rows.len() as u64;
        bar.inc(rows.len() as u64);
    }
    Ok(compared)
}

/// Feeds tokens and compares what the layers deliver.
fn compare_tokens(
    model: &Model,
    scheduler: &Scheduler,
    reader: &PlainReader,
    args: &VerifyArgs,
) -> Result<Compared, Failure> {
    let keygen = model.keygen();
    let stream = tokens::zipf(args.seed, keygen.vocab(), args.tokens as usize);
    let mut compared = Compared::default();
    let mut ids = vec![0; keygen.columns()];
    let begin = Begin { class: RequestClass::Bulk, ..Begin::default() };
    let request = scheduler.begin(begin)?;
    let mut history = History::new(keygen, 0);
    let mut read = Vec::new();
    for (chunk, tokens) in stream.chunks(CHUNK_TOKENS).enumerate() {
        interrupt::check()?;
        feed(scheduler, request, (chunk * CHUNK_TOKENS) as u64, tokens)?;
        let windows: Vec<_> = tokens.iter().map(|&token| keygen.push(&mut history, token, true)).collect();
        for table in 0..keygen.tables() {
            let rows = scheduler.await_layer_at(request, Layer(keygen.layer(table))).wait()?;
            let row_bytes = model.tables()[table].row_bytes() as usize;
            if rows.shape() != [tokens.len(), ids.len(), row_bytes] {
                return Err(Failure::failed(format!("{:?} delivered for {} tokens", rows.shape(), tokens.len())));
            }
            read.resize(row_bytes, 0);
            for (token, window) in windows.iter().enumerate() {
                keygen.token_rows(table, window, &mut ids);
                for (head, &row) in ids.iter().enumerate() {
                    if window.dead() {
                        read.fill(0);
                        let zeros = rows.row(token, head) == read.as_slice();
                        compared.rows += 1;
                        compared.differ += u64::from(!zeros);
                        continue;
                    }
                    reader.read_row(table, row, &mut read)?;
                    compared.row(model, table, row, rows.row(token, head), &read);
                }
            }
        }
    }
    scheduler.finish(request);
    Ok(compared)
}

fn feed(scheduler: &Scheduler, request: engram_sched::RequestId, pos: u64, tokens: &[Token]) -> Result<(), TokenError> {
    loop {
        match scheduler.on_tokens(request, pos, tokens, None) {
            Err(TokenError::Busy) => std::thread::yield_now(),
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_their_size_and_hold_the_ends() {
        for (n, rows) in [(1, 1), (2, 2), (2, 100), (50, 100), (99, 100), (100, 100), (500, 100), (1000, 320_001_536)] {
            let mut chosen = distinct(&mut Random::new(n), n, rows);
            chosen.sort_unstable();
            chosen.dedup();
            assert_eq!(chosen.len() as u64, n.min(rows).max(2.min(rows)), "{n} of {rows}");
            assert_eq!((chosen[0], *chosen.last().unwrap()), (0, rows - 1));
        }
    }
}
