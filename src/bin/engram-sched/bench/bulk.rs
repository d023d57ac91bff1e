//! Throughput: bulk requests whose rows are taken as fast as they come, without computation.

use super::args::Shape;
use super::check::Checker;
use super::drive::{End, Entry, Kind, Rows};
use super::figures::RunFigures;
use crate::failure::Failure;
use crate::interrupt;
use engram_sched::Token;
use std::time::{Duration, Instant};

/// A stream read in order from a place, over and over.
pub(crate) struct Cursor<'a> {
    stream: &'a [Token],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(stream: &'a [Token], at: u64) -> Self {
        Self { stream, at: (at % stream.len() as u64) as usize }
    }

    fn take(&mut self, n: usize) -> Vec<Token> {
        let tokens = (self.at..self.at + n).map(|i| self.stream[i % self.stream.len()]).collect();
        self.at = (self.at + n) % self.stream.len();
        tokens
    }
}

/// Delivers chunks of `chunk` tokens of each request, one chunk ahead, until `until` has passed.
pub(crate) fn deliver(
    shape: &Shape,
    chunk: usize,
    rows: &mut dyn Rows,
    checker: &mut Checker,
    mut cursor: Cursor<'_>,
    until: Duration,
    measured: &mut dyn FnMut(),
) -> Result<RunFigures, Failure> {
    let mut figures = RunFigures::new(shape.layers.len());
    let mut ahead = Vec::new();
    for slot in 0..shape.requests as usize {
        rows.begin(slot, &[])?;
        checker.begin(slot, &[])?;
        ahead.push((0u64, Vec::new()));
    }
    measured();
    let start = Instant::now();
    let mut stopping = false;
    loop {
        for (slot, (fed, chunk_ahead)) in ahead.iter_mut().enumerate() {
            interrupt::check()?;
            let next = if stopping { Vec::new() } else { cursor.take(chunk) };
            if !next.is_empty() {
                let called = Instant::now();
                rows.feed(slot, *fed, &next, Kind::Prefill)?;
                figures.issuing += called.elapsed();
                *fed += next.len() as u64;
            }
            let due = std::mem::replace(chunk_ahead, next);
            if due.is_empty() {
                continue;
            }
            checker.tokens(slot, &due)?;
            rows.submit(&[Entry { slot, tokens: due.len(), kind: Kind::Prefill }])?;
            for table in 0..shape.layers.len() {
                let taken = rows.take(table, Instant::now(), &mut |slot, bytes| checker.rows(slot, table, bytes))?;
                figures.waits[table].record(taken.wait, due.len() as u64);
                figures.hidden += taken.hidden_tokens;
                figures.awaited += due.len() as u64;
            }
            figures.tokens += due.len() as u64;
            figures.tokens_delivered += due.len() as u64;
        }
        if stopping {
            break;
        }
        stopping = start.elapsed() >= until;
    }
    figures.wall = start.elapsed();
    for slot in 0..shape.requests as usize {
        rows.end(slot, End::Complete);
    }
    Ok(figures)
}
