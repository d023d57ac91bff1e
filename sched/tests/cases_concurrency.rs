//! Group 4 of `docs/CASES.md`: threads that are not there, asleep, refused or stuck; who pays for what on the engine's thread; and free
//! lists under many hands.
//!
//! A test that cannot run here prints a line that starts with `SKIP:` and says why.
#![cfg(target_os = "linux")]

mod cases_support;
mod environment_support;
mod fault_support;

use cases_support::{World, choices, options};
use engram_sched_core::protocol::index_stack::IndexStack;
use engram_sched_core::{
    AwaitError, Begin, Closed, Limits, Scheduler, ShutdownError, StartError, StartOptions, TokenError,
};
use environment_support::{in_child, is_root, open_descriptors, private_user, threads};
use fault_support::common::{Kind, write_model};
use fault_support::{HangGuard, Lcg, Plan, Walk, heal, stall_all};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Not a test of its own: what [`in_child`] plays.
#[test]
fn a_scenario_in_a_child() {
    let Some((scenario, folder)) = environment_support::scenario() else { return };
    let _guard = HangGuard::new("a scenario", 120);
    match scenario.as_str() {
        "nproc" => at_the_limit_of_threads(&folder),
        "idle" => while_nothing_happens(),
        other => panic!("no scenario {other}"),
    }
    println!("PLAYED {scenario}");
}

// ---- free lists --------------------------------------------------------------------------------------------------------------------

/// A free list whose elements carry the stamp of their owner.
struct Stamped {
    stack: IndexStack,
    owners: Vec<AtomicU32>,
}

impl Stamped {
    fn take(&self, thread: u32) -> Option<u32> {
        let index = self.stack.pop()?;
        let owner = self.owners[index as usize].swap(thread, Ordering::Relaxed);
        assert_eq!(owner, 0, "index {index} has two owners");
        Some(index)
    }

    fn give(&self, thread: u32, index: u32) {
        let owner = self.owners[index as usize].swap(0, Ordering::Relaxed);
        assert_eq!(owner, thread, "the stamp on index {index} is its owner's");
        self.stack.push(index);
    }
}

#[test]
fn an_index_never_has_two_owners() {
    let _guard = HangGuard::new("free lists", 240);
    // More for a long night: ENGRAM_STACK_OPS=100000000.
    let ops = std::env::var("ENGRAM_STACK_OPS").ok().and_then(|n| n.parse().ok()).unwrap_or(24_000_000_u64);
    // Short lists, where an index comes back at once: what a stale `next` needs to do harm.
    for count in [2, 3, 16] {
        let owners = (0..count).map(|_| AtomicU32::new(0)).collect();
        let list = Stamped { stack: IndexStack::full(count), owners };
        let taken = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 1..=16_u32 {
                let (list, taken) = (&list, &taken);
                scope.spawn(move || {
                    let mut mine = 0;
                    // A take and a give are two operations.
                    while mine < ops / 3 / 16 / 2 {
                        // Takes two and gives the first back before the second: whoever has read the first as the head and the second
                        // as what follows would now find the head that it knows, and take what is owned.
                        let pair = (list.take(thread), list.take(thread));
                        for index in [pair.0, pair.1].into_iter().flatten() {
                            list.give(thread, index);
                            mine += 1;
                        }
                        if pair.0.is_none() {
                            std::thread::yield_now();
                        }
                    }
                    taken.fetch_add(mine, Ordering::Relaxed);
                });
            }
        });
        let mut left: Vec<u32> = std::iter::from_fn(|| list.stack.pop()).take(100).collect();
        left.sort_unstable();
        assert_eq!(left, (0..count).collect::<Vec<_>>(), "none lost, none twice");
        println!("{count} indices, 16 threads: taken {} times", taken.into_inner());
    }
}

// ---- wake-ups ----------------------------------------------------------------------------------------------------------------------

#[test]
fn ten_thousand_wake_ups_and_none_is_lost() {
    // No sleep of an actor or a waiter has a timeout that could hide a lost wake-up: one that is lost ends this test by its guard.
    let _guard = HangGuard::new("wake-ups", 180);
    let rounds = |scheduler: &Scheduler, name: &str, count: u64| {
        let id = scheduler.begin(Begin::default()).expect("a slot");
        let mut lcg = Lcg(count);
        let before = scheduler.stats();
        for _ in 0..count {
            // From none to some microseconds, across the moments at which an actor looks, announces and sleeps.
            for _ in 0..lcg.below(40) * lcg.below(40) {
                std::hint::spin_loop();
            }
            scheduler.on_token(id, lcg.below(400) as i32).expect("token taken");
            for _ in 0..scheduler.layers().len() {
                assert_eq!(scheduler.await_layer(id).wait().expect("rows").positions().count(), 1);
            }
        }
        scheduler.finish(id);
        let stats = scheduler.stats();
        let (plans, wakes) = (stats.plans - before.plans, stats.wakes - before.wakes);
        assert!(wakes > 0 && plans > 0, "{wakes} wake-ups, {plans} plans");
        println!("{name}: {count} tokens, {plans} plans, {wakes} wake-ups of a sleeping actor");
    };
    let rig = Plan::new(Kind::Qwen, 1).rig();
    rounds(&rig.scheduler, "simulated", 10_000);
    for backend in choices() {
        let world = World::new(Kind::Qwen, backend);
        rounds(&world.scheduler, &format!("{backend:?}"), 10_000);
        world.end();
    }
}

// ---- the end with full queues ------------------------------------------------------------------------------------------------------

#[test]
fn shutdown_with_queues_full_and_actors_stuck_is_bounded() {
    let _guard = HangGuard::new("shutdown with full queues", 120);
    for actors in [1, 4] {
        let mut plan = Plan::new(Kind::V41, actors);
        plan.limits = Limits { requests_max: 32, ahead_tokens_max: 64, await_tokens_max: 16, ..Limits::default() };
        let rig = plan.rig();
        stall_all(&rig);
        // All credit of all slots, each token with a plan of its own: no queue can be asked to hold more.
        let mut lcg = Lcg(4);
        let mut walks: Vec<Walk> = (0..32).map(|_| rig.begin()).collect();
        for _ in 0..100 {
            walks.iter_mut().for_each(|walk| rig.feed(walk, lcg.below(1000) as i32));
        }
        let (fed, over) = (AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for share in walks.chunks(8) {
                let (scheduler, fed, over) = (&rig.scheduler, &fed, &over);
                scope.spawn(move || {
                    loop {
                        for walk in share {
                            match scheduler.on_token(walk.id, 7) {
                                Ok(()) => drop(fed.fetch_add(1, Ordering::Relaxed)),
                                Err(TokenError::LimitReached(_)) => {}
                                Err(TokenError::Closed(Closed::Shutdown)) => return,
                                Err(other) => panic!("{other}"),
                            }
                        }
                        assert!(!over.load(Ordering::SeqCst), "tokens are taken after shutdown has returned");
                    }
                });
            }
            while fed.load(Ordering::Relaxed) < 1000 {
                std::thread::yield_now();
            }
            let busy = rig.scheduler.shutdown(Duration::from_millis(50));
            assert!(matches!(busy, Err(ShutdownError::Busy { threads, .. }) if threads >= 1), "{busy:?}");
        });
        over.store(true, Ordering::SeqCst);
        for walk in &walks {
            let got = rig.scheduler.await_layer(walk.id).wait().map(drop);
            assert_eq!(got, Err(AwaitError::Closed(Closed::Shutdown)));
        }
        heal(&rig);
        let stats = rig.scheduler.shutdown(Duration::from_secs(20)).expect("the reads have ended");
        assert!(stats.plans >= 32 * 8, "{} plans", stats.plans);
    }
}

// ---- threads that do not start -----------------------------------------------------------------------------------------------------

#[test]
fn a_scheduler_whose_threads_do_not_start() {
    if !is_root() {
        return println!("SKIP: the limit of threads binds unprivileged users only, and becoming one needs root");
    }
    in_child("nproc", |dir| {
        drop(write_model(dir, Kind::Qwen, 3));
    });
}

/// Lets the user have so many threads.
fn limit_threads(count: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: one structure that outlives the calls.
    let done = unsafe {
        let read = libc::getrlimit(libc::RLIMIT_NPROC, &raw mut limit) == 0;
        limit.rlim_cur = count.min(limit.rlim_max);
        read && libc::setrlimit(libc::RLIMIT_NPROC, &raw const limit) == 0
    };
    assert!(done, "{}", std::io::Error::last_os_error());
}

/// The first thread is refused, then the second, and so on, until all of them start.
fn at_the_limit_of_threads(folder: &Path) {
    environment_support::drop_privileges(private_user(), 8 << 20);
    for backend in choices() {
        let parts = || {
            let elsewhere = tempfile::tempdir().unwrap();
            let mut parts = write_model(elsewhere.path(), Kind::Qwen, 3);
            for file in &mut parts.files {
                file.path = folder.join(file.path.file_name().unwrap());
            }
            parts
        };
        let limits =
            Limits { workers_max: 2, in_flight_interactive_max: 3, in_flight_bulk_max: 3, ..cases_support::limits() };
        let options = StartOptions { limits, io_actors: Some(2), ..options(backend) };
        let before = (open_descriptors(), threads());
        let mut refused = 0;
        let scheduler = loop {
            assert!(refused < 100, "no end of refusals");
            limit_threads((before.1 + refused) as u64);
            match Scheduler::start(parts(), &options) {
                Ok(scheduler) => break scheduler,
                Err(StartError::Spawn { name, source }) => {
                    assert_eq!(source.kind(), std::io::ErrorKind::WouldBlock, "{name}: {source}");
                    assert!(name.starts_with("engram-"), "{name}");
                }
                Err(other) => panic!("{other}"),
            }
            refused += 1;
            // Those that had started have ended.
            let deadline = Instant::now() + Duration::from_secs(20);
            while (open_descriptors(), threads()) != before {
                assert!(Instant::now() < deadline, "{:?}, not {before:?}", (open_descriptors(), threads()));
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        limit_threads(10_000);
        assert_eq!(threads() - before.1, refused, "each thread was refused once");
        assert!(refused >= 4, "two actors and two workers");
        assert!(cases_support::storm(&scheduler, Kind::Qwen, 1, 100) > 100);
        drop(scheduler);
        println!("{backend:?}: {refused} threads refused one after the other");
    }
}

// ---- idle threads ------------------------------------------------------------------------------------------------------------------

#[test]
fn nothing_happens_while_nothing_happens() {
    in_child("idle", |_| ());
}

/// CPU time of the scheduler's own threads, in nanoseconds, and how often they gave the CPU up.
fn spent() -> (u64, u64) {
    let (mut cpu_ns, mut switches) = (0, 0);
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap().path();
        let read = |name: &str| std::fs::read_to_string(task.join(name)).unwrap_or_default();
        if !read("comm").starts_with("engram-") {
            continue;
        }
        cpu_ns += read("schedstat").split(' ').next().and_then(|n| n.parse::<u64>().ok()).expect("schedstat");
        let status = read("status");
        let voluntary = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).expect("status");
        switches += voluntary.trim().parse::<u64>().expect("a number");
    }
    (cpu_ns, switches)
}

fn while_nothing_happens() {
    if !Path::new("/proc/self/schedstat").exists() {
        return println!("SKIP: this kernel does not count the CPU time of threads by the nanosecond");
    }
    // One scheduler on each kind of backend, all in this process, warm.
    let worlds: Vec<World> = choices().into_iter().map(|backend| World::new(Kind::Qwen, backend)).collect();
    let rig = Plan::new(Kind::Qwen, 1).rig();
    assert!(worlds.iter().all(|world| world.storm(1, 40) > 0));
    std::thread::sleep(Duration::from_millis(300));
    let (cpu_before, switches_before) = spent();
    let begun = Instant::now();
    std::thread::sleep(Duration::from_secs(2));
    let (cpu_ns, switches) = spent();
    let (cpu_ns, switches) = (cpu_ns - cpu_before, switches - switches_before);
    println!("{:?} without a token: {} us of CPU, {switches} sleeps", begun.elapsed(), cpu_ns / 1000);
    assert!(cpu_ns < begun.elapsed().as_nanos() as u64 / 100, "{cpu_ns} ns: below 1 % of a core");
    // Nobody wakes up to look; a few are allowed to whoever had not slept yet.
    assert!(switches <= 4, "{switches} sleeps though nothing happened");

    // A token now and then costs its own work, not the time until the next.
    let (cpu_before, _) = spent();
    let begun = Instant::now();
    for tok in 0..8 {
        worlds.iter().for_each(|world| assert_eq!(world.one(tok).expect("rows"), 16));
        let mut walk = rig.prompt(&[tok]);
        rig.drain(&mut walk);
        rig.scheduler.finish(walk.id);
        std::thread::sleep(Duration::from_millis(100));
    }
    let cpu_ns = spent().0 - cpu_before;
    println!("{:?} with a token every 100 ms: {} us of CPU", begun.elapsed(), cpu_ns / 1000);
    assert!(cpu_ns < begun.elapsed().as_nanos() as u64 / 4, "{cpu_ns} ns");
    worlds.into_iter().for_each(|world| drop(world.end()));
}

// ---- system calls on the engine's thread -------------------------------------------------------------------------------------------

/// The listener of the filter that the engine's thread has installed; stored without a system call, as each of them waits for us.
static LISTENER: AtomicI32 = AtomicI32::new(-1);
/// What the engine's thread is doing; 0: nothing that is counted.
static PHASE: AtomicU32 = AtomicU32::new(0);

const FEED: u32 = 1;
const TAKE: u32 = 2;
const FEED_SATURATED: u32 = 3;

/// Has every system call of the calling thread reported to [`LISTENER`]; reading the clock, which need not be one, is let pass.
fn report_system_calls() -> std::io::Result<()> {
    let stmt = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let mut program = [
        stmt(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter {
            jt: 0,
            jf: 1,
            ..stmt(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_clock_gettime as u32)
        },
        stmt(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
        stmt(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_USER_NOTIF),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: plain values, and one structure that outlives the calls.
    let listener = unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 {
            return Err(std::io::Error::last_os_error());
        }
        let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const filter)
    };
    if listener < 0 {
        return Err(std::io::Error::last_os_error());
    }
    LISTENER.store(listener as i32, Ordering::SeqCst);
    Ok(())
}

/// Lets the system calls of the engine's thread go on, and counts them by phase and number, until that thread has ended.
fn supervise(over: &AtomicBool, counts: &Mutex<BTreeMap<(u32, i64), u64>>) {
    while LISTENER.load(Ordering::SeqCst) < 0 {
        if over.load(Ordering::SeqCst) {
            return; // no filter could be installed
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let listener = LISTENER.load(Ordering::SeqCst);
    loop {
        let mut poll = libc::pollfd { fd: listener, events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure that outlives the call.
        unsafe { libc::poll(&raw mut poll, 1, -1) };
        if poll.revents & libc::POLLIN == 0 {
            break; // nobody is left under the filter
        }
        // SAFETY: structures of the kernel's layout, for which zeros are valid and which outlive the calls; the call that goes on is
        // the one that the thread made, with the arguments that it had.
        unsafe {
            let mut call: libc::seccomp_notif = std::mem::zeroed();
            if libc::ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut call) != 0 {
                continue;
            }
            let phase = PHASE.load(Ordering::SeqCst);
            *counts.lock().unwrap().entry((phase, i64::from(call.data.nr))).or_default() += 1;
            let mut answer: libc::seccomp_notif_resp = std::mem::zeroed();
            answer.id = call.id;
            answer.flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
            libc::ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer);
        }
    }
    // SAFETY: the descriptor is this function's.
    unsafe { libc::close(listener) };
}

fn in_phase<T>(phase: u32, call: impl FnOnce() -> T) -> T {
    PHASE.store(phase, Ordering::SeqCst);
    let result = call();
    PHASE.store(0, Ordering::SeqCst);
    result
}

#[test]
fn on_token_makes_no_system_call_but_a_wake() {
    let _guard = HangGuard::new("system calls", 120);
    const TOKENS: u64 = 300;
    let worlds: Vec<World> = choices().into_iter().map(|backend| World::new(Kind::V41, backend)).collect();
    // One read in flight at a time, and it stalls: this actor has no room for more, and is told nothing.
    let mut plan = Plan::new(Kind::V41, 1);
    plan.limits = Limits { ahead_tokens_max: 64, in_flight_interactive_max: 1, ..plan.limits };
    let rig = plan.rig();
    stall_all(&rig);
    let stuck = rig.begin();
    rig.scheduler.on_token(stuck.id, 3).unwrap();
    while rig.scheduler.stats().reads < 1 {
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(50));
    let counts = Mutex::new(BTreeMap::new());
    let over = AtomicBool::new(false);
    let hidden = std::thread::scope(|scope| {
        scope.spawn(|| supervise(&over, &counts));
        let engine = scope.spawn(|| {
            let requests: Vec<_> = worlds.iter().map(|w| w.scheduler.begin(Begin::default()).unwrap()).collect();
            let mut lcg = Lcg(3);
            let mut hidden = 0;
            let mut token = |world: &World, id, counted: bool| {
                let phase = |phase| if counted { phase } else { 0 };
                in_phase(phase(FEED), || world.scheduler.on_token(id, lcg.below(400) as i32)).expect("token taken");
                // Until the rows are there, an engine computes.
                std::thread::sleep(Duration::from_millis(2));
                let mut taken = 0;
                let mut layers = 0;
                while layers < world.scheduler.layers().len() {
                    // Without waiting: nothing, if the machine was too busy to have read the rows meanwhile.
                    let done = in_phase(phase(TAKE), || {
                        let mut layer = world.scheduler.await_layer(id);
                        layer.try_take().expect("no error").map(drop).is_some()
                    });
                    layers += usize::from(done);
                    taken += u64::from(done);
                    if !done {
                        std::thread::yield_now();
                    }
                }
                hidden += taken;
            };
            (0..40).for_each(|_| worlds.iter().zip(&requests).for_each(|(world, &id)| token(world, id, false)));
            if let Err(e) = report_system_calls() {
                println!("SKIP: system calls cannot be reported: {e}");
                over.store(true, Ordering::SeqCst);
                return None;
            }
            for _ in 0..TOKENS / worlds.len() as u64 {
                worlds.iter().zip(&requests).for_each(|(world, &id)| token(world, id, true));
            }
            for tok in 0..60 {
                in_phase(FEED_SATURATED, || rig.scheduler.on_token(stuck.id, tok)).expect("token taken");
            }
            Some(hidden)
        });
        engine.join().unwrap()
    });
    heal(&rig);
    let Some(hidden) = hidden else { return };
    let counts = counts.into_inner().unwrap();
    let of =
        |phase: u32| counts.iter().filter(|&(&(p, _), _)| p == phase).map(|(&(_, nr), &n)| (nr, n)).collect::<Vec<_>>();
    println!(
        "{TOKENS} tokens, {hidden} layers taken; feeding: {:?}, taking: {:?}, feeding busy actors: {:?}",
        of(FEED),
        of(TAKE),
        of(FEED_SATURATED)
    );
    assert!(of(0).iter().map(|c| c.1).sum::<u64>() >= TOKENS, "the sleeps in between were seen");
    // A wake is a write to the ring's doorbell, or a notification by futex, whose lock the actor may hold at that moment: then it takes
    // a call to wait for the lock and one to hand it on. There is one at most for each token.
    let feeding: BTreeMap<i64, u64> = of(FEED).into_iter().collect();
    let calls = |nr| feeding.get(&nr).copied().unwrap_or(0);
    assert!(feeding.keys().all(|nr| [libc::SYS_write, libc::SYS_futex].contains(nr)), "{feeding:?}");
    assert!(calls(libc::SYS_write) <= TOKENS && calls(libc::SYS_futex) <= 3 * TOKENS, "{feeding:?}");
    assert!(!feeding.is_empty(), "the actors slept, and were woken");
    assert_eq!(of(TAKE), [], "rows that are there cost no system call");
    assert_eq!(of(FEED_SATURATED), [], "nor do tokens for actors that have no room");
}
