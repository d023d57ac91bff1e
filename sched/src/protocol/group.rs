//! Group: the rows of all heads of one (table, order, mix), read once and shared by every cell that wants them.
//!
//! A group has a buffer, references and a list of waiting cells. Its words:
//!
//! - `refs`: one per cell that holds it, one for the assembly. At 0 the group is free, and only its owner touches it.
//! - `remaining`: deposits (extents of rows) to come. Who makes it 0 publishes.
//! - `waiters`: a list of nodes, or CLOSED once published, and ABANDONED. A node is (cell, order); its `next` link lies beside the cell.
//!
//! A group that nobody needs any more is abandoned: its rows need not be read. Nobody means that every node's cell is an orphan, which
//! it stays; orphans wait for their deposits, so neither references nor nodes go away by themselves. The one who has a deposit to make
//! looks at the nodes (while its deposit is out, none of them is freed) and sets ABANDONED by a compare-exchange on the list's head, so
//! that a node that joined meanwhile makes it fail; who joins later is refused and opens another group. Deposits of an abandoned group
//! carry no bytes; the last one serves the orphans, which go home without a look at them.
//!
//! The [`GroupIndex`] finds a group by its key. It is a hint: an entry may be stale and a group may be missing. A finder first pins
//! (`refs` + 1 unless 0), then compares the key in full, and only then joins; so a group that was freed and used again is never
//! mistaken for another, and equal mixes of other orders or tables never mix.
//!
//! # Memory ordering
//! G1 the owner writes key and state, then `open` stores `refs` (Release). G2 `pin` (Acquire on success) pairs with G1 through the chain of
//! read-modify-writes on `refs`: who holds a reference sees the key, and as `refs` > 0 nobody rewrites it. G3 each `deposit` releases
//! its bytes, and the last one acquires them all (AcqRel on `remaining`). G4 the publisher's swap to CLOSED (AcqRel) takes every node
//! pushed before (Release in `join`); a `join` that comes later sees CLOSED (Acquire) and with it the bytes. One of the two holds for
//! every joiner, as both act on one word; ABANDONED is a bit of that word, too, and stays when it is closed. G5 `unpin` is AcqRel: the last one has everybody's use behind it.

use crate::sync::seeded::{self, Bug};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// No node (the end of a list).
const NIL: u32 = 0;
/// The group is published.
const CLOSED: u32 = ABANDONED - 1;
/// Nobody needs the group, and nobody may join it. Nodes are fewer than this.
const ABANDONED: u32 = 1 << 31;

/// `next` links of all nodes, indexed by node.
#[derive(Debug)]
pub struct Links(Box<[AtomicU32]>);

impl Links {
    /// Links for `nodes` nodes.
    pub fn new(nodes: usize) -> Self {
        Self((0..nodes).map(|_| AtomicU32::new(NIL)).collect())
    }
}

/// The cells that waited for a group when it was published.
#[derive(Debug)]
pub struct Waiters(u32);

impl Waiters {
    /// Takes a node off the list. Its link is read here: the caller may free the node at once.
    pub fn next(&mut self, links: &Links) -> Option<u32> {
        let node = self.0.checked_sub(1)?;
        self.0 = links.0[node as usize].load(Ordering::Relaxed); // ordered by G4
        Some(node)
    }
}

/// What became of a wish to join.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Joined {
    /// The node waits; the group's publication serves it.
    Waits,
    /// The group is complete already, its bytes can be seen.
    Complete,
    /// The group was given up, its bytes never come. The caller gives its reference back and opens another.
    Abandoned,
}

/// See the module text.
#[derive(Debug)]
pub struct Group<K> {
    refs: AtomicU32,
    remaining: AtomicU32,
    waiters: AtomicU32,
    key: K,
}

impl<K> Group<K> {
    /// A free group.
    pub fn new(key: K) -> Self {
        Self { refs: AtomicU32::new(0), remaining: AtomicU32::new(0), waiters: AtomicU32::new(NIL), key }
    }

    /// The key: relaxed atomics in production. Written by the owner of a free group, read by holders of a reference.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// Begins an assembly of `deposits` deposits, after the key has been written. Two references exist afterwards: the opener's and
    /// the assembly's. For the one who took the group off the free list.
    pub fn open(&self, deposits: u32) {
        debug_assert_eq!(self.refs.load(Ordering::Relaxed), 0);
        self.remaining.store(deposits, Ordering::Relaxed);
        self.waiters.store(NIL, Ordering::Relaxed);
        self.refs.store(2, Ordering::Release); // G1
    }

    /// Takes a reference unless the group is free.
    #[must_use]
    pub fn pin(&self) -> bool {
        if seeded::is(Bug::GroupPinsDead) {
            self.refs.fetch_add(1, Ordering::AcqRel);
            return true;
        }
        self.refs
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |refs| (refs > 0).then_some(refs + 1)) // G2
            .is_ok()
    }

    /// Gives a reference back. True: it was the last, the caller owns the group and returns it to the free list.
    #[must_use]
    pub fn unpin(&self) -> bool {
        self.refs.fetch_sub(1, Ordering::AcqRel) == 1 // G5
    }

    /// Lets `node` wait for the group. The caller holds a reference for the node.
    #[must_use]
    pub fn join(&self, node: u32, links: &Links) -> Joined {
        let mut head = self.waiters.load(Ordering::Acquire);
        loop {
            if head & ABANDONED != 0 && !seeded::is(Bug::GroupJoinsAbandoned) {
                return Joined::Abandoned;
            }
            if head & CLOSED == CLOSED && !seeded::is(Bug::GroupJoinIgnoresClosed) {
                return Joined::Complete; // G4
            }
            links.0[node as usize].store(head, Ordering::Relaxed);
            let mine = head & ABANDONED | (node + 1);
            match self.waiters.compare_exchange_weak(head, mine, Ordering::Release, Ordering::Acquire) {
                Ok(_) => return Joined::Waits,
                Err(now) => head = now,
            }
        }
    }

    /// Whether the group is complete (its bytes can be seen). The caller holds a reference.
    pub fn is_published(&self) -> bool {
        self.waiters.load(Ordering::Acquire) == CLOSED // G4
    }

    /// Gives the group up if `is_orphan` is true of every node, or finds that done; returns whether it is given up, and whether by this
    /// call. For one who has a deposit to make. Most groups are needed by the node that joined last: this is one look.
    pub fn abandon(&self, links: &Links, is_orphan: impl Fn(u32) -> bool) -> (bool, bool) {
        let head = self.waiters.load(Ordering::Acquire);
        if head & ABANDONED != 0 {
            return (true, false);
        }
        let mut nodes = Waiters(head);
        while let Some(node) = nodes.next(links) {
            if !is_orphan(node) {
                return (false, false);
            }
        }
        if seeded::is(Bug::GroupAbandonsBlindly) {
            self.waiters.fetch_or(ABANDONED, Ordering::AcqRel);
            return (true, true);
        }
        match self.waiters.compare_exchange(head, head | ABANDONED, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => (true, true),
            Err(now) => (now & ABANDONED != 0, false), // joined meanwhile, or given up by another depositor
        }
    }

    /// One extent has arrived (or failed). The last one publishes: it gets the waiters, and owns the assembly's reference.
    #[must_use]
    pub fn deposit(&self) -> Option<Waiters> {
        (self.remaining.fetch_sub(1, Ordering::AcqRel) == 1) // G3
            .then(|| Waiters(self.waiters.fetch_or(CLOSED, Ordering::AcqRel) & !ABANDONED)) // G4
    }
}

const WAYS: usize = 8;

/// Finds groups by a hash of their key: sets of 8 entries `tag << 32 | group + 1`.
#[derive(Debug)]
pub struct GroupIndex {
    ways: Box<[AtomicU64]>,
    sets: usize,
}

/// Where an entry was put.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexPlace(u32);

impl IndexPlace {
    /// As a word that is never 0.
    pub fn to_word(self) -> u32 {
        self.0 + 1
    }

    /// Back from a word; `None` for 0.
    pub fn from_word(word: u32) -> Option<Self> {
        word.checked_sub(1).map(Self)
    }
}

impl GroupIndex {
    /// For about `groups` groups at a time.
    pub fn new(groups: usize) -> Self {
        let sets = (groups / (WAYS / 2)).next_power_of_two();
        Self { ways: (0..sets * WAYS).map(|_| AtomicU64::new(0)).collect(), sets }
    }

    fn set(&self, hash: u64) -> std::ops::Range<usize> {
        let set = (hash as usize) & (self.sets - 1);
        set * WAYS..(set + 1) * WAYS
    }

    /// The groups whose keys may have this hash. Stale entries are possible: pin, then compare.
    pub fn candidates(&self, hash: u64) -> impl Iterator<Item = u32> {
        self.ways[self.set(hash)].iter().filter_map(move |way| {
            let entry = way.load(Ordering::Relaxed); // a hint; `pin` orders
            (entry != 0 && entry >> 32 == hash >> 32).then(|| entry as u32 - 1)
        })
    }

    /// Enters a group; `None` if its set is full (it is then read again by whoever wants it too).
    pub fn insert(&self, hash: u64, group: u32) -> Option<IndexPlace> {
        let entry = (hash >> 32) << 32 | u64::from(group + 1);
        self.set(hash)
            .find(|&way| self.ways[way].compare_exchange(0, entry, Ordering::Relaxed, Ordering::Relaxed).is_ok())
            .map(|way| IndexPlace(way as u32))
    }

    /// Takes a group's entry out. For the one who owns the group after its last reference.
    pub fn remove(&self, place: IndexPlace) {
        self.ways[place.0 as usize].store(0, Ordering::Relaxed);
    }
}
