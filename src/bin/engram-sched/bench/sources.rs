//! Where the emulated engine takes rows from: the scheduler, or a table in memory.

use super::memory::MemoryTables;
use crate::failure::Failure;
use engram_sched::{
    Begin, History, Keygen, Layer, LayerRows, RequestClass, RequestId, Scheduler, Token, TokenError, Window,
};
use std::thread;
use std::time::{Duration, Instant};

/// One request's part of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) slot: usize,
    pub(crate) tokens: usize,
}

/// A layer taken.
pub(crate) struct Taken {
    /// Tokens whose rows were there when the layer was reached.
    pub(crate) hidden_tokens: u64,
    /// From the call until the last row was there.
    pub(crate) wait: Duration,
}

/// Shows the rows of one request to a checker, after the clock has stopped.
pub(crate) type Show<'a> = &'a mut dyn FnMut(usize, &[u8]) -> Result<(), Failure>;

/// A place that rows come from; requests are known by the engine's slot.
pub(crate) trait Rows {
    /// A new request in a free slot.
    fn begin(&mut self, slot: usize) -> Result<(), Failure>;
    /// Hands tokens over.
    fn feed(&mut self, slot: usize, pos: u64, tokens: &[Token]) -> Result<(), Failure>;
    /// Takes the rows of table `table` for every entry; the layer was reached at `called`.
    fn take(&mut self, table: usize, entries: &[Entry], called: Instant, show: Show<'_>) -> Result<Taken, Failure>;
    /// The request has ended.
    fn finish(&mut self, slot: usize);
}

/// Rows from the scheduler.
pub(crate) struct ScheduledRows<'s> {
    scheduler: &'s Scheduler,
    class: RequestClass,
    layers: Vec<Layer>,
    requests: Vec<Option<RequestId>>,
}

impl<'s> ScheduledRows<'s> {
    pub(crate) fn new(scheduler: &'s Scheduler, slots: usize, class: RequestClass) -> Self {
        Self { scheduler, class, layers: scheduler.layers().to_vec(), requests: vec![None; slots] }
    }

    fn request(&self, slot: usize) -> Result<RequestId, Failure> {
        self.requests[slot].ok_or_else(|| Failure::failed(format!("slot {slot} of the emulated engine is empty")))
    }
}

impl Rows for ScheduledRows<'_> {
    fn begin(&mut self, slot: usize) -> Result<(), Failure> {
        self.requests[slot] = Some(self.scheduler.begin(Begin { class: self.class, ..Begin::default() })?);
        Ok(())
    }

    fn feed(&mut self, slot: usize, pos: u64, tokens: &[Token]) -> Result<(), Failure> {
        let request = self.request(slot)?;
        loop {
            let fed = match tokens {
                [token] => self.scheduler.on_token(request, *token),
                tokens => self.scheduler.on_tokens(request, pos, tokens, None),
            };
            match fed {
                Err(TokenError::Busy) => thread::yield_now(),
                other => return Ok(other?),
            }
        }
    }

    fn take(&mut self, table: usize, entries: &[Entry], called: Instant, show: Show<'_>) -> Result<Taken, Failure> {
        let layer = self.layers[table];
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

    fn finish(&mut self, slot: usize) {
        if let Some(request) = self.requests[slot].take() {
            self.scheduler.finish(request);
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
        }
    }
}

impl Rows for MemoryRows<'_> {
    fn begin(&mut self, slot: usize) -> Result<(), Failure> {
        self.histories[slot] = History::new(self.keygen, 0);
        self.windows[slot].clear();
        Ok(())
    }

    fn feed(&mut self, slot: usize, _pos: u64, tokens: &[Token]) -> Result<(), Failure> {
        self.windows[slot].clear();
        for &token in tokens {
            let window = self.keygen.push(&mut self.histories[slot], token, true);
            self.windows[slot].push(window);
        }
        Ok(())
    }

    fn take(&mut self, table: usize, entries: &[Entry], called: Instant, show: Show<'_>) -> Result<Taken, Failure> {
        let row_bytes = self.tables.row_bytes(table);
        self.gathered.clear();
        let mut tokens = 0;
        for entry in entries {
            for window in &self.windows[entry.slot] {
                self.keygen.token_rows(table, window, &mut self.ids);
                if window.dead() {
                    self.gathered.resize(self.gathered.len() + self.ids.len() * row_bytes, 0);
                    continue;
                }
                for &row in &self.ids {
                    self.gathered.extend_from_slice(self.tables.row(table, row));
                }
            }
            tokens += self.windows[entry.slot].len() as u64;
        }
        let wait = called.elapsed();
        let mut at = 0;
        for entry in entries {
            let end = at + self.windows[entry.slot].len() * self.ids.len() * row_bytes;
            show(entry.slot, &self.gathered[at..end])?;
            at = end;
        }
        Ok(Taken { hidden_tokens: tokens, wait })
    }

    fn finish(&mut self, _slot: usize) {}
}
