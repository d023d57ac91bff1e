//! Mailbox: messages for a request's keygen actor from the thread that has its front, in order.
//!
//! Used only while another thread runs the actor: who finds the actor idle applies its message itself. So the ring is small, and full
//! only while somebody is at work. One producer at a time (the push bit of [`super::tenure`]) and one consumer at a time (the run gate).
//!
//! # Memory ordering
//! `tail` and `head` count words ever pushed and taken. M1 the producer writes the words, M2 it stores `tail` (Release); M3 the
//! consumer loads `tail` (Acquire, pairs with M2) and reads the words, M4 it stores `head` (Release) when it is done with them; M5 the
//! producer loads `head` (Acquire, pairs with M4) before it overwrites. Producers follow each other through the push bit, consumers
//! through the run gate; both hand the counters over.

use crate::sync::seeded::{self, Bug};
use crate::sync::{AtomicU64, Ordering};

/// See the module text.
#[derive(Debug)]
pub struct Mailbox {
    words: Box<[AtomicU64]>,
    tail: AtomicU64,
    head: AtomicU64,
}

impl Mailbox {
    /// A ring for `capacity` (a power of two) words.
    ///
    /// # Panics
    /// If `capacity` is not a power of two.
    pub fn new(capacity: usize) -> Self {
        assert!(capacity.is_power_of_two());
        Self {
            words: (0..capacity).map(|_| AtomicU64::new(0)).collect(),
            tail: AtomicU64::new(0),
            head: AtomicU64::new(0),
        }
    }

    /// Whether `count` more words fit. For the one producer.
    pub fn has_room(&self, count: usize) -> bool {
        let used = self.tail.load(Ordering::Relaxed) - self.head.load(Ordering::Acquire); // M5
        count as u64 <= self.words.len() as u64 - used
    }

    /// Appends all words. For the one producer, after [`Mailbox::has_room`] for as many.
    pub fn push(&self, words: impl ExactSizeIterator<Item = u64>) {
        let tail = self.tail.load(Ordering::Relaxed); // only the producer moves it
        let count = words.len() as u64;
        if seeded::is(Bug::MailboxTailFirst) {
            self.tail.store(tail + count, Ordering::Release);
        }
        for (at, word) in (tail..).zip(words) {
            self.words[(at as usize) & (self.words.len() - 1)].store(word, Ordering::Relaxed); // M1
        }
        self.tail.store(tail + count, Ordering::Release); // M2
    }

    /// Words ever pushed: what comes before it was pushed before the call.
    pub fn tail(&self) -> u64 {
        self.tail.load(Ordering::Acquire) // M3
    }

    /// Words ever taken. For the consumer.
    pub fn head(&self) -> u64 {
        self.head.load(Ordering::Relaxed)
    }

    /// Takes the oldest word, which was pushed before `tail`. For the one consumer.
    pub fn pop(&self, tail: u64) -> Option<u64> {
        let head = self.head.load(Ordering::Relaxed); // only the consumer moves it
        if head == tail {
            return None;
        }
        if seeded::is(Bug::MailboxHeadFirst) {
            self.head.store(head + 1, Ordering::Release);
        }
        let word = self.words[(head as usize) & (self.words.len() - 1)].load(Ordering::Relaxed);
        self.head.store(head + 1, Ordering::Release); // M4
        Some(word)
    }
}
