//! Where the emulated engine takes rows from: the scheduler, or a table in memory. All calls of the scheduler that are part of serving
//! are here.

use super::memory::MemoryTables;
use crate::failure::Failure;
use engram_sched::{
    Begin, History, Keygen, Layer, LayerRows, RequestClass, RequestId, Scheduler, Token, TokenError, Window,
};
use std::thread;
use std::time::{Duration, Instant};

/// What a token is to its request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Generated.
    Decode,
    /// Of the prompt.
    Prefill,
}

/// One request's part of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) slot: usize,
    pub(crate) tokens: usize,
    pub(crate) kind: Kind,
}

/// A layer taken.
pub(crate) struct Taken {
    /// Tokens whose rows were there when the layer was reached.
    pub(crate) hidden_tokens: u64,
    /// From the call until the last row was there.
    pub(crate) wait: Duration,
}

/// How a request ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Complete,
    Aborted,
}

/// Shows the rows of one request to a checker, after the clock has stopped.
pub(crate) type Show<'a> = &'a mut dyn FnMut(usize, &[u8]) -> Result<(), Failure>;

/// A place that rows come from; requests are known by the engine's slot.
pub(crate) trait Rows {
    /// A new request in a free slot, of which `before` is computed already.
    fn begin(&mut self, slot: usize, before: &[Token]) -> Result<(), Failure>;
    /// Hands tokens over.
    fn feed(&mut self, slot: usize, pos: u64, tokens: &[Token], kind: Kind) -> Result<(), Failure>;
    /// A forward pass begins with these parts, all of them handed over by the time of its first layer.
    fn submit(&mut self, entries: &[Entry]) -> Result<(), Failure>;
    /// Takes the rows of table `table` for every part of the step; the layer was reached at `called`.
    fn take(&mut self, table: usize, called: Instant, show: Show<'_>) -> Result<Taken, Failure>;
    /// The request has ended.
    fn end(&mut self, slot: usize, end: End);
}

/// Rows from the scheduler.
pub(crate) struct ScheduledRows<'s> {
    scheduler: &'s Scheduler,
    class: RequestClass,
    layers: Vec<Layer>,
    requests: Vec<Option<RequestId>>,
    /// Parts of the step under way.
    entries: Vec<Entry>,
}

impl<'s> ScheduledRows<'s> {
    pub(crate) fn new(scheduler: &'s Scheduler, slots: usize, class: RequestClass) -> Self {
        let layers = scheduler.layers().to_vec();
        Self { scheduler, class, layers, requests: vec![None; slots], entries: Vec::new() }
    }

    fn request(&self, slot: usize) -> Result<RequestId, Failure> {
        self.requests[slot].ok_or_else(|| Failure::failed(format!("slot {slot} of the emulated engine is empty")))
    }
}

impl Rows for ScheduledRows<'_> {
    fn begin(&mut self, slot: usize, before: &[Token]) -> Result<(), Failure> {
        let begin = Begin { start_pos: before.len() as u64, history: before, class: self.class, ..Begin::default() };
        self.requests[slot] = Some(self.scheduler.begin(begin)?);
        Ok(())
    }

    fn feed(&mut self, slot: usize, pos: u64, tokens: &[Token], kind: Kind) -> Result<(), Failure> {
        let request = self.request(slot)?;
        loop {
            let fed = match (kind, tokens) {
                (Kind::Decode, [token]) => self.scheduler.on_token(request, *token),
                _ => self.scheduler.on_tokens(request, pos, tokens, None),
            };
            match fed {
                Err(TokenError::Busy) => thread::yield_now(),
                other => return Ok(other?),
            }
        }
    }

    fn submit(&mut self, entries: &[Entry]) -> Result<(), Failure> {
        self.entries.clear();
        self.entries.extend_from_slice(entries);
        Ok(())
    }

    fn take(&mut self, table: usize, called: Instant, show: Show<'_>) -> Result<Taken, Failure> {
        let layer = self.layers[table];
        let entries = &self.entries;
        let mut hidden_tokens = 0;
        let mut held: Vec<Option<LayerRows<'_>>> = Vec::with_capacity(entries.len());
        for entry in entries {
            let rows = self.scheduler.await_layer_at(self.request(entry.slot)?, layer).try_take()?;
            hidden_tokens += if rows.is_some() { entry.tokens as u64 } else { 0 };
            held.push(rows);
        }
        for (entry, rows) in entries.iter().zip(&mut held) {
            if rows.is_none() {
                *rows = Some(self.scheduler.await_layer_at(self.request(entry.slot)?, layer).wait()?);
            }
        }
        let wait = called.elapsed();
        for (entry, rows) in entries.iter().zip(held.iter().flatten()) {
            if rows.shape()[0] != entry.tokens {
                let got = rows.shape()[0];
                return Err(Failure::failed(format!("layer {layer}: rows of {got} tokens for {} fed", entry.tokens)));
            }
            show(entry.slot, rows.bytes())?;
        }
        Ok(Taken { hidden_tokens, wait })
    }

    fn end(&mut self, slot: usize, end: End) {
        if let Some(request) = self.requests[slot].take() {
            match end {
                End::Complete => self.scheduler.finish(request),
                End::Aborted => self.scheduler.abort(request),
            }
        }
    }
}

/// Rows gathered from tables that were read into memory.
pub(crate) struct MemoryRows<'m> {
    keygen: &'m Keygen,
    tables: &'m MemoryTables,
    histories: Vec<History>,
    windows: Vec<Vec<Window>>,
    ids: Vec<u64>,
    gathered: Vec<u8>,
    /// Slots of the step under way.
    slots: Vec<usize>,
}

impl<'m> MemoryRows<'m> {
    pub(crate) fn new(keygen: &'m Keygen, tables: &'m MemoryTables, slots: usize) -> Self {
        Self {
            keygen,
            tables,
            histories: (0..slots).map(|_| History::new(keygen, 0)).collect(),
            windows: vec![Vec::new(); slots],
            ids: vec![0; keygen.columns()],
            gathered: Vec::new(),
            slots: Vec::new(),
        }
    }
}

impl Rows for MemoryRows<'_> {
    fn begin(&mut self, slot: usize, before: &[Token]) -> Result<(), Failure> {
        self.histories[slot].seed(self.keygen, before, None, before.len() as u64)?;
        self.windows[slot].clear();
        Ok(())
    }

    fn feed(&mut self, slot: usize, _pos: u64, tokens: &[Token], _: Kind) -> Result<(), Failure> {
        self.windows[slot].clear();
        for &token in tokens {
            let window = self.keygen.push(&mut self.histories[slot], token, true);
            self.windows[slot].push(window);
        }
        Ok(())
    }

    fn submit(&mut self, entries: &[Entry]) -> Result<(), Failure> {
        self.slots.clear();
        self.slots.extend(entries.iter().map(|entry| entry.slot));
        Ok(())
    }

    fn take(&mut self, table: usize, called: Instant, show: Show<'_>) -> Result<Taken, Failure> {
        let row_bytes = self.tables.row_bytes(table);
        self.gathered.clear();
        let mut tokens = 0;
        for &slot in &self.slots {
            for window in &self.windows[slot] {
                self.keygen.token_rows(table, window, &mut self.ids);
                if window.dead() {
                    self.gathered.resize(self.gathered.len() + self.ids.len() * row_bytes, 0);
                    continue;
                }
                for &row in &self.ids {
                    self.gathered.extend_from_slice(self.tables.row(table, row));
                }
            }
            tokens += self.windows[slot].len() as u64;
        }
        let wait = called.elapsed();
        let mut at = 0;
        for &slot in &self.slots {
            let end = at + self.windows[slot].len() * self.ids.len() * row_bytes;
            show(slot, &self.gathered[at..end])?;
            at = end;
        }
        Ok(Taken { hidden_tokens: tokens, wait })
    }

    fn end(&mut self, _slot: usize, _end: End) {}
}
