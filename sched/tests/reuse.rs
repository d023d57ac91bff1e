//! Four request slots, ten thousand lives, reads stalled most of the time: nothing leaks, and nothing late reaches a later life. Alone in
//! its process, as it watches the process's memory.

mod fault_support;

use engram_sched_core::{AwaitError, TokenError};
use fault_support::common::Kind;
use fault_support::{HangGuard, Lcg, Plan, Walk, heal, stall_all};
use std::time::{Duration, Instant};

#[test]
fn slots_are_used_again_ten_thousand_times_while_reads_stall() {
    let _guard = HangGuard::new("slot reuse", 120);
    for (kind, actors) in [(Kind::Qwen, 1), (Kind::V41, 2)] {
        let mut plan = Plan::new(kind, actors);
        plan.limits.requests_max = 4;
        let rig = plan.rig();
        let mut lcg = Lcg(5);
        let mut resident = 0;
        let mut lives = Vec::new();
        for round in 0..10_000u32 {
            if round % 40 == 0 {
                stall_all(&rig);
            }
            if lives.len() == 4 {
                let walk: Walk = lives.swap_remove(lcg.below(4) as usize);
                match lcg.below(3) {
                    0 => rig.scheduler.abort(walk.id),
                    1 => {
                        // With a range bound to the slot's destination.
                        assert!(matches!(rig.scheduler.await_layer(walk.id).try_take(), Ok(None)));
                        rig.scheduler.abort(walk.id);
                    }
                    _ => {
                        let mut layer = rig.scheduler.await_layer(walk.id);
                        assert!(matches!(layer.try_take(), Ok(None)));
                        rig.scheduler.abort(walk.id);
                        assert!(matches!(layer.try_take(), Err(AwaitError::UnknownRequest(_))));
                    }
                }
                assert_eq!(rig.scheduler.on_token(walk.id, 1), Err(TokenError::UnknownRequest(walk.id)));
            }
            let toks: Vec<i32> = (0..1 + lcg.below(6)).map(|_| lcg.below(400) as i32).collect();
            lives.push(rig.prompt(&toks));
            if round % 40 == 39 {
                // The late reads of dozens of ended requests arrive; those alive get their rows and nothing else.
                heal(&rig);
                for walk in &mut lives {
                    rig.feed(walk, lcg.below(400) as i32);
                    rig.drain_all(walk);
                }
                lives.drain(..).for_each(|walk| rig.scheduler.finish(walk.id));
                if round == 1999 {
                    resident = resident_pages();
                }
            }
        }
        let grown = resident_pages().saturating_sub(resident) * 4096;
        assert!(grown < 16 << 20, "memory grew by {grown} bytes");
        rig.assert_slots_return(4);
        // All credit has come back: as much as the windows allow is planned without an await.
        let (rows, deadline) = (rig.scheduler.stats().rows, Instant::now() + Duration::from_secs(20));
        lives.extend((0..4).map(|_| rig.prompt(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10])));
        let window = 4 * 8 * rig.oracle.keygen.columns() * rig.tables.len();
        while rig.scheduler.stats().rows - rows < window as u64 {
            assert!(Instant::now() < deadline, "some credit never came back");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(rig.scheduler.stats().rows - rows, window as u64, "and no more than that");
        println!("{kind:?} x{actors}: 10,000 lives in 4 slots, resident memory grew by {grown} bytes");
    }
}

fn resident_pages() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|n| n.parse().ok()).unwrap_or(0)
}
