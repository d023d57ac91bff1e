//! Group index: a stale candidate is never mistaken. A finder is served the bytes of the key that it wants, or it opens a group itself.
//!
//! The index has one set here, so all keys meet in it. Scenarios: a finder of key 7 looks it up while the last reference of 7's group
//! goes: the group is taken out, and opened again (a) under another key with another tag, (b) under another key with the same tag (equal
//! hashes), (c) outside of the index, with the very words of the finder's key but other rows (the path of `read_rows`), (d) under the
//! same key again; (e) two openers and a remover share a set: no entry is lost, and none is taken out for another.
//!
//! The steps of `want_group` and `unpin` in `sched/src/core.rs` are repeated here in `Finder::want` and `World::unpin`, key words and
//! index entries being relaxed as they are there; so the twins that leave out a comparison are seeded here.
#![cfg(loom)]

use engram_sched_core::protocol::group::{Group, GroupIndex, IndexPlace, Joined, Links};
use engram_sched_core::protocol::index_stack::IndexStack;
use engram_sched_core::sync::seeded::{self, Bug};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::thread;
use loom_tests::{catches, passes};

const MISTAKEN: &str = "a finder was served the bytes of another key";

/// The finder's key, and the one that takes its group's place.
const KEY: u64 = 7;
const OTHER: u64 = 8;

/// As in production: relaxed words. The bytes tell for which rows they were read.
struct Key {
    mix: AtomicU64,
    place: AtomicU32,
    bytes: UnsafeCell<u64>,
}

struct World {
    index: GroupIndex,
    groups: [Group<Key>; 2],
    links: Links,
    free: IndexStack,
    /// For each node (one per thread) the rows that it was served; 0: none yet.
    served: [AtomicU64; 2],
}

// SAFETY: whether accesses may overlap is what the models find out.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

impl World {
    fn new() -> Arc<Self> {
        let group = || Group::new(Key { mix: AtomicU64::new(0), place: AtomicU32::new(0), bytes: UnsafeCell::new(0) });
        Arc::new(Self {
            index: GroupIndex::new(1),
            groups: [group(), group()],
            links: Links::new(2),
            free: IndexStack::full(2),
            served: [AtomicU64::new(0), AtomicU64::new(0)],
        })
    }

    /// `open_group`: under a hash, or outside of the index.
    fn open(&self, mix: u64, hash: Option<u64>) -> u32 {
        let group = self.free.pop().expect("a group is free");
        let key = self.groups[group as usize].key();
        key.mix.store(mix, Ordering::Relaxed);
        let place = hash.and_then(|hash| self.index.insert(hash, group)).map_or(0, IndexPlace::to_word);
        key.place.store(place, Ordering::Relaxed);
        self.groups[group as usize].open(1);
        group
    }

    fn unpin(&self, group: u32) {
        let place = self.groups[group as usize].key().place.load(Ordering::Relaxed);
        if self.groups[group as usize].unpin() {
            if let Some(place) = IndexPlace::from_word(place) {
                self.index.remove(place);
            }
            // SAFETY: the last reference is gone, the group is ours.
            self.groups[group as usize].key().bytes.with_mut(|b| unsafe { *b = 0xDB });
            self.free.push(group);
        }
    }

    fn serve(&self, group: u32, node: usize) {
        // SAFETY: published, and pinned for the node.
        let rows = self.groups[group as usize].key().bytes.with(|b| unsafe { *b });
        assert_eq!(self.served[node].swap(rows, Ordering::Relaxed), 0, "a node is served once");
        self.unpin(group);
    }

    /// The I/O actor's whole work on a group: `rows` are what the opener asked to be read.
    fn assemble(&self, group: u32, rows: u64) {
        // SAFETY: the one depositor.
        self.groups[group as usize].key().bytes.with_mut(|b| unsafe { *b = rows });
        let mut waiters = self.groups[group as usize].deposit().expect("one deposit");
        while let Some(node) = waiters.next(&self.links) {
            self.serve(group, node as usize);
        }
        self.unpin(group);
    }

    /// `want_group`, for a node: joins what it finds (true), or opens and assembles a group of its own.
    fn want(&self, mix: u64, hash: u64, node: u32) -> bool {
        for group in self.index.candidates(hash) {
            let found = &self.groups[group as usize];
            if !found.pin() {
                continue;
            }
            let key = found.key();
            let same_key = seeded::is(Bug::GroupSkipsKey) || key.mix.load(Ordering::Relaxed) == mix;
            let listed = seeded::is(Bug::GroupIgnoresPlace) || key.place.load(Ordering::Relaxed) != 0;
            if !(same_key && listed) {
                self.unpin(group);
                continue;
            }
            if found.join(node, &self.links) == Joined::Complete {
                self.serve(group, node as usize);
            }
            return true;
        }
        let group = self.open(mix, Some(hash));
        assert_eq!(self.groups[group as usize].join(node, &self.links), Joined::Waits);
        self.assemble(group, mix);
        false
    }
}

/// What becomes of the finder's group once its last reference is gone.
#[derive(Clone, Copy)]
struct Reuse {
    mix: u64,
    hash: Option<u64>,
    rows: u64,
}

const TAG: u64 = 1 << 32;

fn stale_candidate(reuse: Reuse) {
    let world = World::new();
    let (finders, owners) = (0, 1);
    let first = world.open(KEY, Some(TAG));
    assert_eq!(world.groups[first as usize].join(owners, &world.links), Joined::Waits);
    let finder = {
        let world = Arc::clone(&world);
        thread::spawn(move || world.want(KEY, TAG, finders))
    };
    // Complete, served, and free unless the finder holds it; then opened again: the free list is last in, first out.
    world.assemble(first, KEY);
    assert_eq!(world.served[owners as usize].swap(0, Ordering::Relaxed), KEY, "{MISTAKEN}");
    let second = world.open(reuse.mix, reuse.hash);
    assert_eq!(world.groups[second as usize].join(owners, &world.links), Joined::Waits);
    world.assemble(second, reuse.rows);
    finder.join().unwrap();
    let served = |node: u32| world.served[node as usize].load(Ordering::Relaxed);
    assert_eq!(served(finders), KEY, "{MISTAKEN}");
    assert_eq!(served(owners), reuse.rows, "{MISTAKEN}");
    nothing_left(&world);
}

/// All groups are free, and the index has no entry.
fn nothing_left(world: &World) {
    for hash in [TAG, 2 * TAG] {
        assert_eq!(world.index.candidates(hash).count(), 0, "an entry was left behind");
    }
    assert!(world.free.pop().is_some() && world.free.pop().is_some() && world.free.pop().is_none());
}

fn another_tag() {
    stale_candidate(Reuse { mix: OTHER, hash: Some(2 * TAG), rows: OTHER });
}

fn the_same_tag() {
    stale_candidate(Reuse { mix: OTHER, hash: Some(TAG), rows: OTHER });
}

fn outside_of_the_index() {
    stale_candidate(Reuse { mix: KEY, hash: None, rows: OTHER });
}

fn the_same_key() {
    stale_candidate(Reuse { mix: KEY, hash: Some(TAG), rows: KEY });
}

fn insert_and_remove() {
    let world = World::new();
    let first = world.open(KEY, Some(TAG));
    let other = {
        let world = Arc::clone(&world);
        thread::spawn(move || world.open(OTHER, Some(2 * TAG)))
    };
    // The opener's and the assembly's reference: the first group's entry goes, the other's stays.
    world.unpin(first);
    world.unpin(first);
    let other = other.join().unwrap();
    assert_eq!(world.index.candidates(TAG).count(), 0, "an entry was left behind");
    assert_eq!(world.index.candidates(2 * TAG).collect::<Vec<_>>(), [other], "an entry was lost");
    world.unpin(other);
    world.unpin(other);
    nothing_left(&world);
}

#[test]
fn group_index() {
    passes("group index, another tag", another_tag);
    passes("group index, the same tag", the_same_tag);
    passes("group index, outside of the index", outside_of_the_index);
    passes("group index, the same key", the_same_key);
    passes("group index, insert and remove", insert_and_remove);
    catches("group index", Bug::GroupSkipsKey, MISTAKEN, the_same_tag);
    catches("group index", Bug::GroupIgnoresPlace, MISTAKEN, outside_of_the_index);
    catches("group index", Bug::GroupPinsDead, "Causality violation", the_same_tag);
}
