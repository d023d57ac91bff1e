//! Run gate and mailbox: no lost token, order kept, one runner at a time, hand-over to another thread.
//!
//! Scenarios: (a) a producer pushes two tokens one by one while another thread notifies for another reason; (b) a ring of one word,
//! whose word is used again; (c) the claim is passed on to a worker in the middle.
#![cfg(loom)]

use engram_sched_core::protocol::mailbox::Mailbox;
use engram_sched_core::protocol::run_gate::RunGate;
use engram_sched_core::sync::seeded::Bug;
use loom::sync::{Arc, Mutex};
use loom::thread;
use loom_tests::{catches, passes};

struct Request {
    mailbox: Mailbox,
    gate: RunGate<Vec<u64>>,
}

impl Request {
    fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self { mailbox: Mailbox::new(capacity), gate: RunGate::new(Vec::new()) })
    }

    fn push(&self, token: u64) {
        while !self.mailbox.has_room(1) {
            thread::yield_now();
        }
        self.mailbox.push([token].into_iter());
        self.run();
    }

    fn run(&self) {
        if let Some(runner) = self.gate.notify() {
            let left = runner.run(|seen| {
                self.drain(seen);
                true
            });
            assert!(left.is_none());
        }
    }

    fn drain(&self, seen: &mut Vec<u64>) {
        let tail = self.mailbox.tail();
        while let Some(token) = self.mailbox.pop(tail) {
            seen.push(token);
        }
    }

    fn seen(&self) -> Vec<u64> {
        let mut seen = Vec::new();
        let runner = self.gate.notify().expect("a token was lost or out of order: the gate is claimed by nobody");
        runner.run(|all| {
            seen.clone_from(all);
            true
        });
        seen
    }
}

fn two_tokens(capacity: usize) {
    let request = Request::new(capacity);
    let other = {
        let request = Arc::clone(&request);
        thread::spawn(move || request.run())
    };
    request.push(7);
    request.push(8);
    other.join().unwrap();
    assert_eq!(request.seen(), [7, 8], "a token was lost or out of order");
}

fn tokens_and_a_notifier() {
    two_tokens(4);
}

fn a_word_used_again() {
    two_tokens(1);
}

fn passed_on() {
    let request = Request::new(4);
    let handed = Arc::new(Mutex::new(None));
    let producer = {
        let (request, handed) = (Arc::clone(&request), Arc::clone(&handed));
        thread::spawn(move || {
            assert!(request.mailbox.has_room(1));
            request.mailbox.push([7].into_iter());
            if let Some(runner) = request.gate.notify()
                && let Some(claim) = runner.run(|_| false)
            {
                *handed.lock().unwrap() = Some(claim.pass_on());
            }
        })
    };
    request.run();
    producer.join().unwrap();
    if let Some(claim) = handed.lock().unwrap().take() {
        request.gate.take_up(claim).run(|seen| {
            request.drain(seen);
            true
        });
    }
    assert_eq!(request.seen(), [7], "a token was lost or out of order");
}

#[test]
fn run_gate_and_mailbox() {
    passes("run gate, tokens and a notifier", tokens_and_a_notifier);
    passes("mailbox, a word used again", a_word_used_again);
    passes("run gate, passed on", passed_on);
    let lost = "a token was lost or out of order";
    catches("run gate", Bug::GateForgetsPending, lost, tokens_and_a_notifier);
    catches("run gate", Bug::GateReleaseRelaxed, "Causality violation", tokens_and_a_notifier);
    catches("mailbox", Bug::MailboxTailFirst, lost, tokens_and_a_notifier);
    catches("mailbox", Bug::MailboxHeadFirst, lost, a_word_used_again);
}
