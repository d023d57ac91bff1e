//! Group assembly: join against the last deposit against the last reference; free lists and credit beside it.
//!
//! Scenarios: (a) a joiner finds a group while its last deposit publishes it: the joiner's node is served exactly once and sees the
//! bytes; (b) a finder pins a group while its last reference goes and its next owner opens it under another key: while it is
//! pinned, the key that was compared is the key of the bytes; (c) two threads on a free list of two; (d) a taker that finds no credit against a giver;
//! (e) two depositors find a group whose one cell is an orphan, and give it up, while a joiner comes: either the joiner is served with the
//! bytes, or it is told and the group's bytes never come; the orphan is served once in any case.
#![cfg(loom)]

use engram_sched_core::protocol::credit::Credit;
use engram_sched_core::protocol::group::{Group, Joined, Links};
use engram_sched_core::protocol::index_stack::IndexStack;
use engram_sched_core::sync::seeded::Bug;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Arc, Notify};
use loom::thread;
use loom_tests::{catches, passes};

struct Key {
    key: UnsafeCell<u32>,
    bytes: UnsafeCell<u32>,
}

struct World {
    group: Group<Key>,
    links: Links,
    served: AtomicUsize,
}

// SAFETY: whether accesses may overlap is what the models find out.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

impl World {
    fn new() -> Arc<Self> {
        let key = Key { key: UnsafeCell::new(0), bytes: UnsafeCell::new(0) };
        Arc::new(Self { group: Group::new(key), links: Links::new(2), served: AtomicUsize::new(0) })
    }

    /// For an owner.
    fn open(&self, key: u32, deposits: u32) {
        // SAFETY: owned.
        self.group.key().key.with_mut(|k| unsafe { *k = key });
        self.group.open(deposits);
    }

    fn serve(&self) {
        // SAFETY: published, and pinned for the node.
        assert_eq!(self.group.key().bytes.with(|b| unsafe { *b }), 1, "a waiter saw an incomplete group");
        self.served.fetch_add(1, Ordering::Relaxed);
        let _ = self.group.unpin();
    }

    fn deposit(&self) {
        // SAFETY: the one depositor.
        self.group.key().bytes.with_mut(|b| unsafe { *b = 1 });
        if let Some(mut waiters) = self.group.deposit() {
            while waiters.next(&self.links).is_some() {
                self.serve();
            }
            let _ = self.group.unpin();
        }
    }
}

fn join_against_publish() {
    let world = World::new();
    world.open(7, 1);
    assert_eq!(world.group.join(0, &world.links), Joined::Waits); // the opener's node
    let depositor = {
        let world = Arc::clone(&world);
        thread::spawn(move || world.deposit())
    };
    let mut wanted = 1;
    if world.group.pin() {
        wanted = 2;
        if world.group.join(1, &world.links) == Joined::Complete {
            world.serve();
        }
    }
    depositor.join().unwrap();
    assert_eq!(world.served.load(Ordering::Relaxed), wanted, "a waiter was not served exactly once");
}

/// A group whose key is read by finders as in production, in relaxed words: what its references do not order, nothing does.
struct Reused {
    group: Group<Words>,
    links: Links,
}

struct Words {
    key: AtomicUsize,
    bytes: AtomicUsize,
}

const MISTAKEN: &str = "a group was taken for another";

impl Reused {
    /// For the owner of a free group: all its life up to its publication. The opener's reference is left.
    fn live(&self, key: usize) {
        self.group.key().key.store(key, Ordering::Relaxed);
        self.group.open(1);
        self.group.key().bytes.store(10 * key, Ordering::Relaxed);
        let _ = self.group.deposit(); // nobody waits
        let _ = self.group.unpin(); // the assembly's reference
    }

    /// Gives the opener's, or a finder's, reference back. Whoever has the last one uses the group for other rows.
    fn let_go(&self) {
        if self.group.unpin() {
            self.live(8);
        }
    }

    /// Looks for 7: while the group is pinned, the key that was compared is the key of the bytes.
    fn find(&self) {
        if !self.group.pin() {
            return;
        }
        let words = self.group.key();
        let key = words.key.load(Ordering::Relaxed);
        if key == 7 {
            assert_eq!(self.group.join(0, &self.links), Joined::Complete, "{MISTAKEN}"); // 7 was published, and is as long as it is pinned
            assert_eq!(words.bytes.load(Ordering::Relaxed), 70, "{MISTAKEN}");
        }
        assert_eq!(words.key.load(Ordering::Relaxed), key, "{MISTAKEN}");
        if key == 7 {
            self.let_go();
        } else {
            let _ = self.group.unpin();
        }
    }
}

fn pin_against_reuse() {
    let words = Words { key: AtomicUsize::new(0), bytes: AtomicUsize::new(0) };
    let world = Arc::new(Reused { group: Group::new(words), links: Links::new(1) });
    world.live(7);
    let finder = {
        let world = Arc::clone(&world);
        thread::spawn(move || world.find())
    };
    world.let_go();
    finder.join().unwrap();
}

/// A group of two extents whose first node is an orphan's, and a cell that wants it after all.
struct Abandoned {
    group: Group<[UnsafeCell<u32>; 2]>,
    links: Links,
    orphans: AtomicUsize,
    joiners: AtomicUsize,
}

// SAFETY: whether accesses may overlap is what the models find out.
unsafe impl Sync for Abandoned {}
// SAFETY: as above.
unsafe impl Send for Abandoned {}

const ORPHAN: u32 = 0;
const JOINER: u32 = 1;
const INCOMPLETE: &str = "a waiter saw an incomplete group";

impl Abandoned {
    fn serve(&self, node: u32) {
        if node == JOINER {
            for extent in self.group.key() {
                // SAFETY: published, and pinned for the node.
                assert_eq!(extent.with(|b| unsafe { *b }), 1, "{INCOMPLETE}");
            }
            self.joiners.fetch_add(1, Ordering::Relaxed);
        } else {
            self.orphans.fetch_add(1, Ordering::Relaxed);
        }
        let _ = self.group.unpin();
    }

    /// An actor gets to its extent: it is read, unless nobody needs it.
    fn deposit(&self, extent: usize) {
        if !self.group.abandon(&self.links, |node| node == ORPHAN).0 {
            // SAFETY: the depositor's own extent.
            self.group.key()[extent].with_mut(|b| unsafe { *b = 1 });
        }
        if let Some(mut waiters) = self.group.deposit() {
            while let Some(node) = waiters.next(&self.links) {
                self.serve(node);
            }
            let _ = self.group.unpin();
        }
    }
}

fn abandon_against_join() {
    let world = Arc::new(Abandoned {
        group: Group::new([UnsafeCell::new(0), UnsafeCell::new(0)]),
        links: Links::new(2),
        orphans: AtomicUsize::new(0),
        joiners: AtomicUsize::new(0),
    });
    world.group.open(2);
    assert_eq!(world.group.join(ORPHAN, &world.links), Joined::Waits);
    let other = {
        let world = Arc::clone(&world);
        thread::spawn(move || world.deposit(1))
    };
    let joiner = {
        let world = Arc::clone(&world);
        thread::spawn(move || {
            if !world.group.pin() {
                return 0;
            }
            match world.group.join(JOINER, &world.links) {
                Joined::Waits => 1,
                Joined::Complete => {
                    world.serve(JOINER);
                    1
                }
                Joined::Abandoned => {
                    let _ = world.group.unpin();
                    0
                }
            }
        })
    };
    world.deposit(0);
    other.join().unwrap();
    let joined = joiner.join().unwrap();
    let served = (world.orphans.load(Ordering::Relaxed), world.joiners.load(Ordering::Relaxed));
    assert_eq!(served, (1, joined), "a waiter was not served exactly once");
}

struct Pool {
    stack: IndexStack,
    owners: [AtomicUsize; 2],
}

impl Pool {
    fn take(&self) -> Option<u32> {
        let index = self.stack.pop()?;
        assert_eq!(self.owners[index as usize].fetch_add(1, Ordering::Relaxed), 0, "an index has two owners");
        Some(index)
    }

    fn give(&self, index: u32) {
        self.owners[index as usize].fetch_sub(1, Ordering::Relaxed);
        self.stack.push(index);
    }
}

fn free_list_of_two() {
    let pool = Arc::new(Pool { stack: IndexStack::full(2), owners: [AtomicUsize::new(0), AtomicUsize::new(0)] });
    let other = {
        let pool = Arc::clone(&pool);
        thread::spawn(move || {
            let first = pool.take();
            let second = pool.take();
            if let Some(first) = first {
                pool.give(first);
            }
            second
        })
    };
    let a = pool.take();
    let b = pool.take();
    let _ = (a, b, other.join().unwrap());
}

fn credit_runs_out() {
    let world = Arc::new((Credit::new(0), Notify::new()));
    let giver = {
        let world = Arc::clone(&world);
        thread::spawn(move || {
            if world.0.give(1) {
                world.1.notify();
            }
        })
    };
    while !world.0.take(1) {
        world.1.wait();
    }
    giver.join().unwrap();
}

#[test]
fn group() {
    passes("group, join against publish", join_against_publish);
    passes("group, pin against reuse", pin_against_reuse);
    catches("group", Bug::GroupJoinIgnoresClosed, "a waiter was not served exactly once", join_against_publish);
    catches("group", Bug::GroupPinsDead, MISTAKEN, pin_against_reuse);
}

#[test]
fn free_list_and_credit() {
    passes("index stack of two", free_list_of_two);
    passes("credit runs out", credit_runs_out);
    catches("index stack", Bug::StackTagFrozen, "an index has two owners", free_list_of_two);
    catches("credit", Bug::CreditForgetsWant, "deadlock", credit_runs_out);
}

#[test]
fn abandon() {
    passes("group abandon", abandon_against_join);
    catches("group abandon", Bug::GroupJoinsAbandoned, INCOMPLETE, abandon_against_join);
    catches("group abandon", Bug::GroupAbandonsBlindly, INCOMPLETE, abandon_against_join);
}
