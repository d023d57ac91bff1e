//! The hot path allocates nothing, counted by the global allocator of this test program.
//!
//! One program of its own, since the allocator is. Counts are per thread, so that the test harness does not disturb
//! them.

use engram_keygen::{History, Keygen, ORDERS_MAX, Spec, Token, TokenMap};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

impl Counting {
    fn count(&self) {
        // Fails only while the thread ends, when nothing is measured.
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
    }
}

// SAFETY: every call is handed to `System` unchanged; counting touches a thread-local without a destructor and
// allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.count();
        // SAFETY: the caller's obligations are those of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above; `ptr` came from `System`.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        self.count();
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations_of(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

#[test]
fn the_hot_path_allocates_nothing() {
    let map = TokenMap::made_up(129_280, 99_092).unwrap();
    let models = [
        ("qwen", Keygen::new(&Spec::qwen_ple(), None).unwrap()),
        ("v41", Keygen::new(&Spec::deepseek_v41(), Some(map)).unwrap()),
    ];
    assert!(allocations_of(|| drop(vec![1_u8])) > 0, "the counter counts");
    for (name, keygen) in &models {
        let mut history = History::new(keygen, History::TAIL_DEFAULT);
        let mut rows = vec![0; keygen.columns()];
        let mut sum = 0;
        let count = allocations_of(|| {
            for i in 0..10_000 {
                let token: Token = i * 7 % 100_000;
                keygen.check(token).unwrap();
                let window = keygen.push(&mut history, token, i % 17 != 0);
                for table in 0..keygen.tables() {
                    keygen.token_rows(table, &window, &mut rows);
                    let mixes: [u64; ORDERS_MAX] = keygen.mixes(table, &window);
                    for (order, mix) in mixes.into_iter().take(keygen.orders()).enumerate() {
                        keygen.rows(table, order, mix, &mut rows[..keygen.heads()]);
                    }
                    sum += rows[0];
                }
                if i % 100 == 99 {
                    history.rollback(3).unwrap();
                }
            }
        });
        assert!(sum > 0);
        assert_eq!(count, 0, "{name}");
        println!("{name}: 10000 tokens, {count} allocations");
    }
}
