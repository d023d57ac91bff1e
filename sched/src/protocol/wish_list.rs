//! Wish list: steps that want positions of a request, left for the request's keygen actor by whoever submits them.
//!
//! A list of preallocated nodes (one for each entry of each step), so it is never full and takes any number of threads. It stands beside
//! the mailbox; what a thread did to a request before it submitted a step must still come first. So a wish remembers how far the mailbox
//! had got (`after`), and the actor merges the two by it.
//!
//! # Memory ordering
//! W1 `push` (Release) publishes the node and everything the pusher did before, its mailbox words included; W2 `take` (Acquire) pairs with
//! it. The actor reads the mailbox's tail first and takes the wishes afterwards: a wish that was left before a word of that tail is in
//! the list by then (the word's release and the tail's acquire see to it). Hence neither overtakes the other, if one thread made both.
//! `next` is written before W1 by the node's owner, and read after W2 by the taker.

use crate::sync::seeded::{self, Bug};
use crate::sync::{AtomicU32, Ordering};

/// No node.
const NIL: u32 = u32::MAX;

/// The head of a request's list.
#[derive(Debug)]
pub struct WishList {
    head: AtomicU32,
}

impl Default for WishList {
    fn default() -> Self {
        Self::new()
    }
}

/// The `next` links of all nodes.
#[derive(Debug)]
pub struct WishLinks(Box<[AtomicU32]>);

impl WishLinks {
    /// Links for `nodes` nodes.
    pub fn new(nodes: usize) -> Self {
        Self((0..nodes).map(|_| AtomicU32::new(NIL)).collect())
    }
}

impl WishList {
    /// An empty list.
    pub fn new() -> Self {
        Self { head: AtomicU32::new(NIL) }
    }

    /// Leaves a node. For its owner, who leaves it nowhere else and does not change it until it is taken: a node that is in a list twice
    /// makes a ring of it. (The step's lease has a reference for each.)
    pub fn push(&self, node: u32, links: &WishLinks) {
        let ordering = if seeded::is(Bug::WishRelaxed) { Ordering::Relaxed } else { Ordering::Release };
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            links.0[node as usize].store(head, Ordering::Relaxed);
            match self.head.compare_exchange_weak(head, node, ordering, Ordering::Relaxed) {
                Ok(_) => return, // W1
                Err(now) => head = now,
            }
        }
    }

    /// Takes all nodes, the newest first. For the one consumer.
    pub fn take<'l>(&self, links: &'l WishLinks) -> impl Iterator<Item = u32> + use<'l> {
        let mut at = match self.head.load(Ordering::Relaxed) {
            NIL => NIL,                                  // usual; who pushes notifies the actor afterwards
            _ => self.head.swap(NIL, Ordering::Acquire), // W2
        };
        std::iter::from_fn(move || {
            let node = at;
            // Read before the node is given out: its owner may reuse it then.
            at = links.0.get(node as usize)?.load(Ordering::Relaxed);
            Some(node)
        })
    }
}
