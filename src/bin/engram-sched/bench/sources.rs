//! Where the emulated engine takes rows from: the scheduler, or a table in memory.

use crate::failure::Failure;
use engram_sched::{Begin, History, Keygen, Layer, LayerRows, Model, RequestClass, RequestId, Scheduler, Token, TokenError, Window};
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

/// Whole tables in memory.
pub(crate) struct MemoryTables {
    /// Per table: bytes of a row, and the rows back to back.
    tables: Vec<(usize, Vec<u8>)>,
}

impl MemoryTables {
    /// Reads every row of `model`; `progress` gets the bytes read so far.
    pub(crate) fn read(model: &Model, mut progress: impl FnMut(u64)) -> Result<Self, Failure> {
        const ROWS_PER_READ: u64 = 16_384;
        let reader = model.plain_reader()?;
        let mut tables = Vec::new();
        let mut done = 0;
        for table in model.tables() {
            let row_bytes = table.row_bytes() as usize;
            let mut bytes = vec![0; table.rows() as usize * row_bytes];
            for first in (0..table.rows()).step_by(ROWS_PER_READ as usize) {
                crate::interrupt::check()?;
                let rows = ROWS_PER_READ.min(table.rows() - first);
                let span = first as usize * row_bytes..(first + rows) as usize * row_bytes;
                reader.read_range(table, first, rows, &mut bytes[span])?;
                done += rows * row_bytes as u64;
                progress(done);
            }
            tables.push((row_bytes, bytes));
        }
        Ok(Self { tables })
    }

    /// The memory that [`read`](Self::read) takes.
    pub(crate) fn bytes(model: &Model) -> u64 {
        model.tables().iter().map(|table| table.rows() * u64::from(table.row_bytes())).sum()
    }
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
        let (row_bytes, bytes) = &self.tables.tables[table];
        self.gathered.clear();
        let mut tokens = 0;
        for entry in entries {
            for window in &self.windows[entry.slot] {
                self.keygen.token_rows(table, window, &mut self.ids);
                if window.dead() {
                    self.gathered.resize(self.gathered.len() + self.ids.len() * row_bytes, 0);
                    continue;
                }
                for &id in &self.ids {
                    let at = id as usize * row_bytes;
                    self.gathered.extend_from_slice(&bytes[at..at + row_bytes]);
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
