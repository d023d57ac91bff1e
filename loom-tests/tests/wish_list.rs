//! Wish list and mailbox: wishes of several threads beside one producer's words; nothing is lost, one thread's order is kept, and a step's
//! nodes are left again only when they have been taken.
//!
//! Scenarios: (a) one thread pushes a word, a wish, a word, while another thread runs the actor; (b) a second thread leaves a wish as well;
//! (c) a step is cancelled at once, and the next one takes its slot, and so its node, if it can.
//!
//! `Request` repeats `Core::drain_mailbox`, `take_wishes` and `accept_wishes`, and the order of `submit_step`; the protocols are the real
//! ones.
#![cfg(loom)]

use engram_sched_core::protocol::lease::Lease;
use engram_sched_core::protocol::mailbox::Mailbox;
use engram_sched_core::protocol::run_gate::RunGate;
use engram_sched_core::protocol::wish_list::{WishLinks, WishList};
use engram_sched_core::sync::seeded::Bug;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use loom_tests::{catches, passes};

const ORDER: &str = "a wish or a word was lost or out of order";
const NODES: usize = 2;

/// What the actor has seen, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Seen {
    Word(u64),
    Wish(u64),
}

#[derive(Default)]
struct Actor {
    /// Value, and words that come before.
    early: Vec<(u64, u64)>,
    seen: Vec<Seen>,
}

struct Request {
    mailbox: Mailbox,
    wishes: WishList,
    links: WishLinks,
    /// Of each node: what its wish is about, which only its owner may change; words before it; the lease of its step.
    values: [UnsafeCell<u64>; NODES],
    after: [AtomicU64; NODES],
    leases: [Lease; NODES],
    actor: RunGate<Actor>,
}

// SAFETY: whether accesses may overlap is what the models find out.
unsafe impl Sync for Request {}
// SAFETY: as above.
unsafe impl Send for Request {}

impl Request {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            mailbox: Mailbox::new(4),
            wishes: WishList::new(),
            links: WishLinks::new(NODES),
            values: [UnsafeCell::new(0), UnsafeCell::new(0)],
            after: [AtomicU64::new(0), AtomicU64::new(0)],
            leases: [Lease::new(), Lease::new()],
            actor: RunGate::new(Actor::default()),
        })
    }

    fn word(&self, word: u64) {
        assert!(self.mailbox.has_room(1));
        self.mailbox.push([word].into_iter());
        self.run();
    }

    /// A step of one layer and one entry begins, if its slot is free: references of the handle, the layer and the wish.
    fn submit(&self, node: usize, value: u64) -> bool {
        if self.leases[node].claim(3).is_none() {
            return false;
        }
        // SAFETY: the owner of the node.
        self.values[node].with_mut(|v| unsafe { *v = value });
        self.after[node].store(self.mailbox.tail(), Ordering::Relaxed);
        self.wishes.push(node as u32, &self.links);
        self.run();
        true
    }

    /// The step is cancelled: its layer is complete, its handle lets go.
    fn cancel(&self, node: usize) {
        self.leases[node].release();
        self.leases[node].release();
    }

    fn run(&self) {
        if let Some(runner) = self.actor.notify() {
            let left = runner.run(|actor| {
                self.drain(actor);
                true
            });
            assert!(left.is_none());
        }
    }

    fn drain(&self, actor: &mut Actor) {
        let tail = self.mailbox.tail();
        let new = actor.early.len();
        for (taken, node) in self.wishes.take(&self.links).enumerate() {
            assert!(taken < NODES, "the list is a ring");
            let node = node as usize;
            // SAFETY: the node is ours until its reference is given back.
            let value = self.values[node].with(|v| unsafe { *v });
            actor.early.push((value, self.after[node].load(Ordering::Relaxed)));
            self.leases[node].release();
        }
        actor.early[new..].reverse();
        loop {
            let (head, seen) = (self.mailbox.head(), &mut actor.seen);
            actor.early.retain(|&(value, after)| {
                if after <= head {
                    seen.push(Seen::Wish(value));
                }
                after > head
            });
            let Some(word) = self.mailbox.pop(tail) else { break };
            actor.seen.push(Seen::Word(word));
        }
    }

    /// What the actor has seen, when everybody is done.
    fn seen(&self) -> Vec<Seen> {
        let mut seen = Vec::new();
        let runner = self.actor.notify().expect("the gate is claimed by nobody");
        runner.run(|actor| {
            self.drain(actor);
            assert_eq!(actor.early, [], "{ORDER}");
            seen.clone_from(&actor.seen);
            true
        });
        seen
    }
}

fn spawn(request: &Arc<Request>, f: impl Fn(&Request) + 'static) -> thread::JoinHandle<()> {
    let request = Arc::clone(request);
    thread::spawn(move || f(&request))
}

fn program_order() {
    let request = Request::new();
    let runner = spawn(&request, Request::run);
    request.word(1);
    assert!(request.submit(0, 7));
    request.word(2);
    runner.join().unwrap();
    assert_eq!(request.seen(), [Seen::Word(1), Seen::Wish(7), Seen::Word(2)], "{ORDER}");
}

fn two_pushers() {
    let request = Request::new();
    let other = spawn(&request, |request| assert!(request.submit(1, 8)));
    assert!(request.submit(0, 7));
    request.word(1);
    other.join().unwrap();
    let mut seen = request.seen();
    let other = seen.iter().position(|&s| s == Seen::Wish(8));
    seen.remove(other.expect(ORDER));
    assert_eq!(seen, [Seen::Wish(7), Seen::Word(1)], "{ORDER}");
}

fn a_node_left_again() {
    let request = Request::new();
    let runner = spawn(&request, Request::run);
    assert!(request.submit(0, 7));
    request.cancel(0);
    let again = request.submit(0, 8);
    runner.join().unwrap();
    let seen = request.seen();
    assert_eq!(seen, [Seen::Wish(7), Seen::Wish(8)][..1 + usize::from(again)], "{ORDER}");
}

#[test]
fn wish_list() {
    passes("wish list, program order", program_order);
    passes("wish list, two pushers", two_pushers);
    passes("wish list, a node left again", a_node_left_again);
    catches("wish list", Bug::WishRelaxed, "Causality violation", program_order);
}
