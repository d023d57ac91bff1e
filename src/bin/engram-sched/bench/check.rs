//! Compares delivered rows with what their row ids say, and counts how often rows repeat.
//!
//! Row ids are derived a second time from the tokens. Rows of a synthetic table prove themselves on the spot; others are remembered by
//! a hash and compared with plain reads after the clock has stopped.

use super::machine;
use crate::failure::Failure;
use engram_sched::{History, Keygen, Model, Token, Window};
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hasher};
use std::time::Duration;

/// A row as it was delivered, to be compared later.
struct Delivered {
    table: u32,
    row: u64,
    hash: u64,
}

/// Tokens of a request, of which the first `uncounted` belong to no figure.
#[derive(Clone, Default)]
struct Sequence {
    tokens: Vec<Token>,
    uncounted: usize,
}

/// Follows the requests of one run.
pub(crate) struct Checker {
    keygen: Keygen,
    model: Option<Model>,
    histories: Vec<History>,
    windows: Vec<Vec<Window>>,
    ids: Vec<u64>,
    /// Token sequences of the requests that live, then of those that ended.
    current: Vec<Sequence>,
    ended: Vec<Sequence>,
    deferred: Vec<Delivered>,
    /// Rows compared, of those that the figures count; a dead position has none.
    pub(crate) checked: u64,
    /// Rows compared before the clock started.
    pub(crate) checked_warm_up: u64,
    /// Rows that differ.
    pub(crate) mismatches: u64,
    /// The first of them.
    pub(crate) first: Option<String>,
    /// CPU time spent here, to be left out of the scheduler's account.
    pub(crate) spent: Duration,
}

impl Checker {
    /// For `slots` slots; `verify`: compare bytes.
    pub(crate) fn new(model: &Model, slots: usize, verify: bool) -> Self {
        let keygen = model.keygen().clone();
        Self {
            model: verify.then(|| model.clone()),
            histories: (0..slots).map(|_| History::new(&keygen, 0)).collect(),
            windows: vec![Vec::new(); slots],
            ids: vec![0; keygen.columns()],
            current: vec![Sequence::default(); slots],
            ended: Vec::new(),
            deferred: Vec::new(),
            checked: 0,
            checked_warm_up: 0,
            mismatches: 0,
            first: None,
            spent: Duration::ZERO,
            keygen,
        }
    }

    /// A new request in this slot, of which `before` is computed already.
    pub(crate) fn begin(&mut self, slot: usize, before: &[Token]) -> Result<(), Failure> {
        self.histories[slot].seed(&self.keygen, before, None, before.len() as u64)?;
        // Older ones bear upon no row.
        let tail = before[before.len().saturating_sub(self.keygen.history_len())..].to_vec();
        let begun = Sequence { uncounted: tail.len(), tokens: tail };
        let ended = std::mem::replace(&mut self.current[slot], begun);
        if ended.tokens.len() > ended.uncounted {
            self.ended.push(ended);
        }
        Ok(())
    }

    /// The figures of a run begin now; what was delivered before is checked all the same.
    pub(crate) fn count_from_here(&mut self) {
        self.ended.clear();
        for sequence in &mut self.current {
            sequence.uncounted = sequence.tokens.len();
        }
        self.checked_warm_up += std::mem::take(&mut self.checked);
        self.spent = Duration::ZERO;
    }

    /// The tokens whose rows the slot's next layers deliver.
    pub(crate) fn tokens(&mut self, slot: usize, tokens: &[Token]) -> Result<(), Failure> {
        self.current[slot].tokens.extend_from_slice(tokens);
        if self.model.is_some() {
            let began = machine::thread_cpu();
            self.windows[slot].clear();
            for &token in tokens {
                let window = self.keygen.push(&mut self.histories[slot], token, true);
                self.windows[slot].push(window);
            }
            self.spent += machine::thread_cpu().saturating_sub(began);
        }
        Ok(())
    }

    /// The rows of table `table` for the slot's tokens, as delivered.
    pub(crate) fn rows(&mut self, slot: usize, table: usize, bytes: &[u8]) -> Result<(), Failure> {
        let Some(model) = &self.model else { return Ok(()) };
        let began = machine::thread_cpu();
        let row_bytes = model.tables()[table].row_bytes() as usize;
        let columns = self.ids.len();
        let want = self.windows[slot].len() * columns * row_bytes;
        if bytes.len() != want {
            return Err(Failure::failed(format!("{} bytes delivered instead of {want}", bytes.len())));
        }
        for (token, window) in bytes.chunks_exact(columns * row_bytes).zip(&self.windows[slot]) {
            self.keygen.token_rows(table, window, &mut self.ids);
            let dead = window.dead();
            for (&row, bytes) in self.ids.iter().zip(token.chunks_exact(row_bytes)) {
                self.checked += u64::from(!dead);
                let right = if dead {
                    bytes.iter().all(|&byte| byte == 0)
                } else {
                    match model.proves(table, row, bytes) {
                        Some(right) => right,
                        None => {
                            self.deferred.push(Delivered { table: table as u32, row, hash: hash(bytes) });
                            true
                        }
                    }
                };
                if !right {
                    self.mismatches += 1;
                    let layer = model.tables()[table].layer();
                    self.first.get_or_insert_with(|| format!("layer {layer}, row {row}: not the bytes of that row"));
                }
            }
        }
        self.spent += machine::thread_cpu().saturating_sub(began);
        Ok(())
    }

    /// Compares the rows that were put off with plain reads.
    pub(crate) fn settle(&mut self) -> Result<(), Failure> {
        let Some(model) = &self.model else { return Ok(()) };
        if self.deferred.is_empty() {
            return Ok(());
        }
        self.deferred.sort_unstable_by_key(|d| (d.table, d.row));
        let reader = model.plain_reader()?;
        let (mut at, mut want, mut bytes) = (None, 0, Vec::new());
        for delivered in self.deferred.drain(..) {
            let table = &model.tables()[delivered.table as usize];
            if at != Some((delivered.table, delivered.row)) {
                bytes.resize(table.row_bytes() as usize, 0);
                reader.read_row(delivered.table as usize, delivered.row, &mut bytes)?;
                at = Some((delivered.table, delivered.row));
                want = hash(&bytes);
            }
            if delivered.hash != want {
                self.mismatches += 1;
                let (layer, row) = (table.layer(), delivered.row);
                self.first.get_or_insert_with(|| format!("layer {layer}, row {row}: not what pread gives"));
            }
        }
        Ok(())
    }

    /// Rows asked for by all tokens so far, and how many of them are different rows.
    pub(crate) fn rows_requested_and_unique(&mut self) -> (u64, u64) {
        let mut unique = HashSet::new();
        let mut requested = 0;
        let tables = self.keygen.tables();
        for sequence in self.ended.iter().chain(&self.current) {
            let mut history = History::new(&self.keygen, 0);
            for (at, &token) in sequence.tokens.iter().enumerate() {
                let window = self.keygen.push(&mut history, token, true);
                if at < sequence.uncounted {
                    continue;
                }
                for table in 0..tables {
                    // A dead position has no rows.
                    if !window.dead() {
                        self.keygen.token_rows(table, &window, &mut self.ids);
                        requested += self.ids.len() as u64;
                        unique.extend(self.ids.iter().map(|row| (table as u32, *row)));
                    }
                }
            }
        }
        (requested, unique.len() as u64)
    }
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}
