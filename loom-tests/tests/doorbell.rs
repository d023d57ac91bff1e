//! Doorbell and plan queue: no lost wake, no false sleep, one or two producers; close against push and against sleep.
//!
//! Scenarios: (a) one producer, an actor that sleeps; (b) two producers, two bands; (c) close against a push under way; (d) close
//! against an actor that goes to sleep.
#![cfg(loom)]

use engram_sched_core::protocol::plan_queue::{PlanQueue, PushError};
use engram_sched_core::sync::seeded::Bug;
use loom::sync::{Arc, Notify};
use loom::thread;
use loom_tests::{catches, passes};

struct Door {
    queue: PlanQueue<u32, 2>,
    wake: Notify,
}

impl Door {
    fn new() -> Arc<Self> {
        Arc::new(Self { queue: PlanQueue::new(2), wake: Notify::new() })
    }

    fn push(&self, band: usize, value: u32) -> bool {
        match self.queue.push(band, value) {
            Ok(wake) => {
                if wake {
                    self.wake.notify();
                }
                true
            }
            Err(PushError::Closed(_)) => false,
            Err(PushError::Full(_)) => panic!("the band has room"),
        }
    }

    /// The actor: takes everything until `expected` values came, or the queue is closed and empty.
    fn drain(&self, expected: usize) -> Vec<u32> {
        let mut got = Vec::new();
        loop {
            let closed = self.queue.is_closed();
            for band in 0..2 {
                while let Some(value) = self.queue.pop(band) {
                    got.push(value);
                }
            }
            if got.len() == expected || closed {
                return got;
            }
            self.queue.bell().announce();
            if self.queue.is_empty() && !self.queue.is_closed() {
                self.wake.wait();
            }
            self.queue.bell().retract();
        }
    }
}

fn one_producer() {
    let door = Door::new();
    let producer = {
        let door = Arc::clone(&door);
        thread::spawn(move || assert!(door.push(0, 7)))
    };
    assert_eq!(door.drain(1), [7]);
    producer.join().unwrap();
}

fn two_producers() {
    let door = Door::new();
    let producers: Vec<_> = (0..2)
        .map(|band| {
            let door = Arc::clone(&door);
            thread::spawn(move || assert!(door.push(band, band as u32)))
        })
        .collect();
    assert_eq!(door.drain(2).len(), 2);
    producers.into_iter().for_each(|p| p.join().unwrap());
}

fn close_against_push() {
    let door = Door::new();
    let producer = {
        let door = Arc::clone(&door);
        thread::spawn(move || door.push(0, 7))
    };
    door.queue.close();
    let mut drained = 0;
    while door.queue.pop(0).is_some() {
        drained += 1;
    }
    let accepted = producer.join().unwrap();
    assert_eq!(drained, usize::from(accepted), "an accepted plan was lost at close");
}

fn close_against_sleep() {
    let door = Door::new();
    let closer = {
        let door = Arc::clone(&door);
        thread::spawn(move || {
            door.queue.close();
            door.wake.notify(); // always: see `Core::close`
        })
    };
    assert_eq!(door.drain(usize::MAX), []);
    closer.join().unwrap();
}

#[test]
fn doorbell() {
    passes("doorbell, one producer", one_producer);
    passes("doorbell, two producers", two_producers);
    catches("doorbell", Bug::DoorbellRingFence, "deadlock", one_producer);
    catches("doorbell", Bug::DoorbellSleepFence, "deadlock", one_producer);
}

#[test]
fn plan_queue_close() {
    passes("plan queue, close against push", close_against_push);
    passes("plan queue, close against sleep", close_against_sleep);
    catches("plan queue", Bug::QueueCloseIgnoresPushers, "an accepted plan was lost at close", close_against_push);
}
