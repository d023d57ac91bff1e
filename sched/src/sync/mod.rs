//! The one door to concurrency primitives.
//!
//! Production builds get `std`, crossbeam and `atomic-waker`; under `cfg(loom)` the same names are loom's, so that the models
//! of `loom-tests` explore the production protocols. No other module names `std::sync`, `std::thread`, `UnsafeCell` or crossbeam
//! (`tests/tidy.rs` keeps the door).

#[cfg(loom)]
mod imp {
    pub use concurrent_queue::ConcurrentQueue;
    pub use loom::cell::UnsafeCell;
    pub use loom::future::AtomicWaker;
    pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
    pub use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
    pub use loom::{hint, thread};
}

#[cfg(not(loom))]
mod imp {
    pub use atomic_waker::AtomicWaker;
    pub use crossbeam_utils::CachePadded;
    pub use std::hint;
    pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
    pub use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
    pub use std::thread;

    /// `std::cell::UnsafeCell` with loom's `with` / `with_mut` interface.
    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub struct UnsafeCell<T: ?Sized>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        /// Wraps a value.
        pub const fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        /// Calls `f` with a pointer for shared reads.
        #[inline(always)]
        pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        /// Calls `f` with a pointer for exclusive access.
        #[inline(always)]
        pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}

#[cfg(not(loom))]
pub mod process;
pub mod seeded;

pub use imp::*;

/// A waker that unparks the calling thread, made once per thread, for the blocking forms of futures.
#[cfg(not(loom))]
pub fn thread_waker() -> std::task::Waker {
    struct Unpark(thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
        fn wake_by_ref(self: &Arc<Self>) {
            self.0.unpark();
        }
    }
    std::thread_local! {
        static WAKER: std::task::Waker = Arc::new(Unpark(thread::current())).into();
    }
    WAKER.with(Clone::clone)
}

/// Locks a mutex; a panic of another holder does not spread (the data are valid between statements wherever this is used).
#[cfg(not(loom))]
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A bounded lock-free MPMC queue: crossbeam's `ArrayQueue`, or `concurrent-queue` under loom (a mutex in its place would add
/// the happens-before edges that a missing fence needs to be seen without).
#[derive(Debug)]
pub struct BoundedQueue<T> {
    #[cfg(not(loom))]
    queue: crossbeam_queue::ArrayQueue<T>,
    #[cfg(loom)]
    queue: ConcurrentQueue<T>,
}

impl<T> BoundedQueue<T> {
    /// A queue for at most `capacity` (>= 1) elements, allocated at once.
    pub fn new(capacity: usize) -> Self {
        #[cfg(not(loom))]
        let queue = crossbeam_queue::ArrayQueue::new(capacity);
        #[cfg(loom)]
        let queue = ConcurrentQueue::bounded(capacity);
        Self { queue }
    }

    /// Appends, or gives the value back if the queue is full. Never waits.
    pub fn push(&self, value: T) -> Result<(), T> {
        #[cfg(not(loom))]
        return self.queue.push(value);
        #[cfg(loom)]
        return self.queue.push(value).map_err(|e| e.into_inner());
    }

    /// Takes the oldest element. Never waits.
    pub fn pop(&self) -> Option<T> {
        #[cfg(not(loom))]
        return self.queue.pop();
        #[cfg(loom)]
        return self.queue.pop().ok();
    }

    /// Whether the queue held nothing at some moment of the call.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}
