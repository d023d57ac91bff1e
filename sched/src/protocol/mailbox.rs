//! Mailbox: the tokens of one request on their way to its keygen actor, a ring of words in order.
//!
//! One producer at a time (the push bit of [`super::tenure`]) and one consumer at a time (the run gate). The ring is also the record
//! of tokens that are not planned yet: the actor takes a token only when it has the credit to plan it, so a long prompt waits here at
//! 4 bytes a token.
//!
//! # Memory ordering
//! `tail` and `head` count words ever pushed and taken. M1 the producer writes the words, M2 it stores `tail` (Release); M3 the
//! consumer loads `tail` (Acquire, pairs with M2) and reads the words, M4 it stores `head` (Release) when it is done with them; M5 the
//! producer loads `head` (Acquire, pairs with M4) before it overwrites. Producers follow each other through the push bit, consumers
//! through the run gate; both hand the counters over.

use crate::sync::seeded::{self, Bug};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// A position's token and whether it is live.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The token id; of a masked position whatever the engine put there.
    pub token: i32,
    /// False: a masked position.
    pub live: bool,
}

/// See the module text.
#[derive(Debug)]
pub struct Mailbox {
    tokens: Box<[AtomicU32]>,
    /// One bit a token, set for masked positions: their ids are the engine's and may be any `i32`.
    masks: Box<[AtomicU32]>,
    tail: AtomicU64,
    head: AtomicU64,
}

impl Mailbox {
    /// A ring for `capacity` (a power of two, >= 32 outside of loom) tokens.
    ///
    /// # Panics
    /// If `capacity` is not a power of two.
    pub fn new(capacity: usize) -> Self {
        assert!(capacity.is_power_of_two());
        let zeroed = |n: usize| (0..n).map(|_| AtomicU32::new(0)).collect();
        Self {
            tokens: zeroed(capacity),
            masks: zeroed(capacity.div_ceil(32)),
            tail: AtomicU64::new(0),
            head: AtomicU64::new(0),
        }
    }

    /// Appends all of `entries`, or none if there is no room. For the one producer.
    #[must_use]
    pub fn push(&self, entries: impl ExactSizeIterator<Item = Entry>) -> bool {
        let tail = self.tail.load(Ordering::Relaxed); // only the producer moves it
        let head = self.head.load(Ordering::Acquire); // M5
        let count = entries.len() as u64;
        if count > self.tokens.len() as u64 - (tail - head) {
            return false;
        }
        if seeded::is(Bug::MailboxTailFirst) {
            self.tail.store(tail + count, Ordering::Release);
        }
        for (at, entry) in (tail..).zip(entries) {
            let index = (at as usize) & (self.tokens.len() - 1);
            self.tokens[index].store(entry.token as u32, Ordering::Relaxed); // M1
            let (word, bit) = (&self.masks[index / 32], 1u32 << (index % 32));
            let mask = word.load(Ordering::Relaxed); // load and store: only the producer writes
            word.store(if entry.live { mask & !bit } else { mask | bit }, Ordering::Relaxed);
        }
        self.tail.store(tail + count, Ordering::Release); // M2
        true
    }

    /// Tokens pushed and not taken. For the consumer.
    pub fn len(&self) -> u64 {
        self.tail.load(Ordering::Acquire) - self.head.load(Ordering::Relaxed)
    }

    /// Whether nothing waits. For the consumer.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes the oldest token. For the one consumer.
    pub fn pop(&self) -> Option<Entry> {
        let head = self.head.load(Ordering::Relaxed); // only the consumer moves it
        if self.tail.load(Ordering::Acquire) == head {
            return None; // M3
        }
        let index = (head as usize) & (self.tokens.len() - 1);
        if seeded::is(Bug::MailboxHeadFirst) {
            self.head.store(head + 1, Ordering::Release);
        }
        let token = self.tokens[index].load(Ordering::Relaxed) as i32;
        let live = self.masks[index / 32].load(Ordering::Relaxed) & (1 << (index % 32)) == 0;
        self.head.store(head + 1, Ordering::Release); // M4
        Some(Entry { token, live })
    }

    /// Drops whatever waits. For the one consumer.
    pub fn clear(&self) {
        self.head.store(self.tail.load(Ordering::Acquire), Ordering::Release);
    }
}
