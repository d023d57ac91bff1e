//! Index stack: a lock-free free list of indices, last in first out, so that warm buffers are used again first.
//!
//! A Treiber stack over indices with a tag: `head = tag << 32 | index + 1`, and one `next` word per index.
//!
//! # Memory ordering
//! `push` publishes with Release what the owner last did to the element; `pop` acquires it. The tag moves with every pop and push, so
//! a `pop` that read `next` of an element which was popped and pushed again meanwhile (ABA, CASES 4.11) fails its compare-exchange: it
//! would have to sleep through exactly 2^32 operations.

use crate::sync::seeded::{self, Bug};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// See the module text.
#[derive(Debug)]
pub struct IndexStack {
    head: AtomicU64,
    next: Box<[AtomicU32]>,
}

fn pack(head: u64, index_plus_one: u32) -> u64 {
    let tag = if seeded::is(Bug::StackTagFrozen) { 0 } else { (head >> 32).wrapping_add(1) };
    tag << 32 | u64::from(index_plus_one)
}

impl IndexStack {
    /// All of `0..count` are free; 0 is on top.
    pub fn full(count: u32) -> Self {
        let next = (0..count).map(|i| AtomicU32::new(if i + 1 < count { i + 2 } else { 0 })).collect();
        Self { head: AtomicU64::new(u64::from(count > 0)), next }
    }

    /// Takes an index; its holder owns the element.
    pub fn pop(&self) -> Option<u32> {
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let index = (head as u32).checked_sub(1)?;
            let next = self.next[index as usize].load(Ordering::Relaxed); // may be stale: then the tag has moved
            match self.head.compare_exchange_weak(head, pack(head, next), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(index),
                Err(now) => head = now,
            }
        }
    }

    /// Gives an index back.
    pub fn push(&self, index: u32) {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            self.next[index as usize].store(head as u32, Ordering::Relaxed);
            match self.head.compare_exchange_weak(head, pack(head, index + 1), Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}
