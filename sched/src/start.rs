//! Start and end: checks, threads, shutdown.

use crate::actor::IoActor;
use crate::batch::PAGE_BYTES;
use crate::core::Core;
use crate::geometry::{Geometry, OwnedOrder};
use crate::io::{BackendFactory, BackendOptions, BackendReport, FileSet, OsThreads, Pinned, SpawnThread};
use crate::limits::Resolved;
use crate::placement::{ACTORS_MAX, Placement};
use crate::scheduler::{Layer, Parts, StartOptions};
use crate::sync::{Arc, AtomicUsize, Condvar, Mutex, Ordering, lock, thread};
use crate::{Closed, ShutdownError, StartError, watchdog, workers};
use engram_store::{FileId, Table};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// Reads that a panicking or broken actor leaves in the kernel are waited for this long.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// Decoder layers of a model whose spec does not say.
const LAYERS_DEFAULT: f64 = 48.0;

/// What threads report to those who wait for them.
#[derive(Debug, Default)]
struct Board {
    state: Mutex<BoardState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct BoardState {
    ready: usize,
    refused: Option<StartError>,
    running: usize,
    /// Reads that ended actors have left in the kernel.
    abandoned: u64,
    reports: Vec<BackendReport>,
}

impl Board {
    fn update(&self, change: impl FnOnce(&mut BoardState)) {
        change(&mut lock(&self.state));
        self.changed.notify_all();
    }
}

/// The threads of a scheduler.
pub(crate) struct Threads {
    board: Arc<Board>,
    handles: Mutex<Vec<thread::JoinHandle<()>>>,
}

/// Checks that keys and tables fit each other, and derives the shapes.
fn geometry(parts: &Parts, options: &StartOptions) -> Result<Geometry, StartError> {
    let (keygen, tables) = (&parts.keygen, &parts.tables);
    let mismatch = |why: String| Err(StartError::Mismatch(why));
    if tables.len() != keygen.tables() || tables.is_empty() || tables.len() > 64 {
        return mismatch(format!("the spec has {} tables, the model {}", keygen.tables(), tables.len()));
    }
    for (index, table) in tables.iter().enumerate() {
        if table.layer() != keygen.layer(index) {
            return mismatch(format!("table {index} is for layer {}, not {}", table.layer(), keygen.layer(index)));
        }
        if table.rows() < keygen.table_rows(index) {
            return mismatch(format!(
                "layer {}: the spec addresses {} rows, the table has {}",
                table.layer(),
                keygen.table_rows(index),
                table.rows()
            ));
        }
    }
    let keys: Vec<usize> = match &options.layers {
        None => (0..tables.len()).collect(),
        Some(layers) => {
            let key = |&layer: &Layer| tables.iter().position(|t| t.layer() == layer.0).ok_or(layer);
            let keys: Result<Vec<_>, _> = layers.iter().map(key).collect();
            let mut keys = match keys {
                Ok(keys) => keys,
                Err(layer) => return mismatch(format!("layer {layer} is to be opened, but it has no table")),
            };
            keys.sort_unstable();
            keys.dedup();
            if keys.is_empty() {
                return mismatch("no layer is to be opened".into());
            }
            keys
        }
    };
    let columns = 0..keygen.columns();
    let owned = options.heads.as_ref().map_or(columns.clone(), |h| usize::from(h.start)..usize::from(h.end));
    if owned.is_empty() || owned.end > columns.end {
        return mismatch(format!("heads {owned:?} are to be opened, but the model has {columns:?}"));
    }
    let heads = keygen.heads();
    let orders: Vec<OwnedOrder> = (0..keygen.orders())
        .map(|order| OwnedOrder {
            order,
            heads: owned.start.clamp(order * heads, (order + 1) * heads) - order * heads
                ..owned.end.clamp(order * heads, (order + 1) * heads) - order * heads,
        })
        .filter(|owned| !owned.heads.is_empty())
        .collect();
    let group_rows = orders.iter().map(|owned| owned.heads.len()).max().unwrap_or(0);
    let row_bytes: Vec<usize> = keys.iter().map(|&key| tables[key].row_bytes() as usize).collect();
    let layers_of_model = keygen.spec().num_layers.map_or(LAYERS_DEFAULT, f64::from);
    Ok(Geometry {
        layers: keys.iter().map(|&key| Layer(tables[key].layer())).collect(),
        lead: keys.iter().map(|&key| f64::from(keygen.deadline_layer(key)) / layers_of_model).collect(),
        columns: owned.len(),
        heads: group_rows,
        token_bytes: row_bytes.iter().map(|b| b * owned.len()).collect(),
        group_bytes: row_bytes.iter().map(|b| b * group_rows).max().unwrap_or(0),
        orders,
        row_bytes,
        keys,
    })
}

/// Makes the core for checked parts.
fn core(parts: Parts, options: &StartOptions, placement: Placement) -> Result<Arc<Core>, StartError> {
    let geometry = geometry(&parts, options)?;
    let parts = Parts { tables: geometry.keys.iter().map(|&key| parts.tables[key].clone()).collect(), ..parts };
    let limits = Resolved::new(&options.limits, options.device_share, &geometry, &parts.tables)?;
    Ok(Arc::new(Core::new(parts.keygen, parts.tables, parts.files, geometry, limits, placement)?))
}

impl Threads {
    pub(crate) fn start(parts: Parts, options: &StartOptions) -> Result<(Arc<Core>, Self), StartError> {
        let direct = match options.backend {
            crate::io::BackendChoice::Mmap => crate::io::DirectMode::Off,
            _ => options.direct,
        };
        let files = Arc::new(FileSet::open(&parts.files, direct)?);
        let placement = match options.io_actors {
            Some(actors) => {
                let actors = usize::from(actors);
                if !(1..=ACTORS_MAX).contains(&actors) {
                    let why = format!("{actors} is not in 1..={ACTORS_MAX}");
                    return Err(StartError::Limit { limit: "io_actors", why });
                }
                Placement::round_robin(parts.files.len(), actors)
            }
            None => {
                let devices: Vec<u64> = (0..parts.files.len()).map(|f| files.identity(FileId(f as u32)).0).collect();
                Placement::by_device(&devices, ACTORS_MAX)
            }
        };
        let core = core(parts, options, placement)?;
        let backend = BackendOptions {
            choice: options.backend,
            direct,
            slots: core.limits.slots(),
            slot_bytes: core.limits.slot_bytes,
            ..BackendOptions::default()
        };
        let factories = (0..core.placement.actors())
            .map(|_| BackendFactory::prepare_with(&backend, Arc::clone(&files), &OsThreads))
            .collect::<Result<Vec<_>, _>>()?;
        Self::spawn(core, factories, &OsThreads)
    }

    /// Starts on backends that exist already, one actor each, the files dealt out in turn.
    pub(crate) fn start_with(
        parts: Parts,
        options: &StartOptions,
        backends: Vec<BackendFactory>,
    ) -> Result<(Arc<Core>, Self), StartError> {
        if !(1..=ACTORS_MAX).contains(&backends.len()) {
            let why = format!("{} backends are not in 1..={ACTORS_MAX}", backends.len());
            return Err(StartError::Limit { limit: "io_actors", why });
        }
        let placement = Placement::round_robin(parts.files.len(), backends.len());
        Self::spawn(core(parts, options, placement)?, backends, &OsThreads)
    }

    /// Starts an actor per factory, and the keygen workers.
    fn spawn(
        core: Arc<Core>,
        factories: Vec<BackendFactory>,
        spawner: &dyn SpawnThread,
    ) -> Result<(Arc<Core>, Self), StartError> {
        let threads = Self { board: Arc::new(Board::default()), handles: Mutex::new(Vec::new()) };
        let actors = factories.len();
        threads.board.update(|b| b.reports = vec![BackendReport::default(); actors]);
        let started = threads.spawn_all(&core, factories, spawner).and_then(|()| threads.wait_ready(actors));
        if let Err(error) = started {
            let _ = threads.shutdown(&core, DRAIN_MAX); // those that did start
            return Err(error);
        }
        Ok((core, threads))
    }

    fn spawn_all(
        &self,
        core: &Arc<Core>,
        factories: Vec<BackendFactory>,
        spawner: &dyn SpawnThread,
    ) -> Result<(), StartError> {
        for (index, factory) in factories.into_iter().enumerate() {
            let (io_core, board) = (Arc::clone(core), Arc::clone(&self.board));
            let body = move || io_thread(&io_core, index, factory, &board);
            self.spawn_one(core, spawner, format!("engram-io-{index}"), body)?;
        }
        let watched = Arc::clone(core);
        self.spawn_one(core, spawner, "engram-watchdog".into(), move || watchdog::watch(&watched))?;
        for index in 0..core.limits.workers {
            let worker_core = Arc::clone(core);
            let body = move || workers::work(&worker_core);
            self.spawn_one(core, spawner, format!("engram-keygen-{index}"), body)?;
        }
        Ok(())
    }

    fn spawn_one(
        &self,
        core: &Arc<Core>,
        spawner: &dyn SpawnThread,
        name: String,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<(), StartError> {
        self.board.update(|b| b.running += 1);
        let (core, board, thread) = (Arc::clone(core), Arc::clone(&self.board), name.clone());
        let counted = move || {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(body)) {
                let why = format!("thread {thread} panicked: {}", panic_message(&*panic));
                core.fail(format!("{why}; every wait fails since then, reopen the scheduler"));
                board.update(|b| b.refused = Some(StartError::Thread { why }));
            }
            board.update(|b| b.running -= 1);
        };
        match spawner.spawn(name.clone(), Box::new(counted)) {
            Ok(handle) => {
                lock(&self.handles).push(handle);
                Ok(())
            }
            Err(source) => {
                self.board.update(|b| b.running -= 1);
                Err(StartError::Spawn { name, source })
            }
        }
    }

    fn wait_ready(&self, actors: usize) -> Result<(), StartError> {
        let mut state = lock(&self.board.state);
        loop {
            if let Some(refused) = state.refused.take() {
                return Err(refused);
            }
            if state.ready == actors {
                return Ok(());
            }
            state = self.board.changed.wait(state).unwrap_or_else(|e| e.into_inner());
        }
    }

    /// What each actor's backend uses; the first also tells why the scheduler failed, if it did.
    pub(crate) fn reports(&self, core: &Core) -> Vec<BackendReport> {
        if core.is_forked_child() {
            return Vec::new(); // the lock may be held for ever
        }
        let mut reports = lock(&self.board.state).reports.clone();
        if let Some(first) = reports.first_mut() {
            first.notes.extend(lock(&core.failures).iter().cloned());
        }
        reports
    }

    /// Leaves the threads alone: in a child of `fork(2)` there are none, and what is known of them must not be given back.
    pub(crate) fn forget(&mut self) {
        let handles = self.handles.get_mut().unwrap_or_else(|e| e.into_inner());
        std::mem::take(handles).into_iter().for_each(std::mem::forget);
    }

    /// Closes the core and waits, at most `timeout`, for its threads.
    pub(crate) fn shutdown(&self, core: &Core, timeout: Duration) -> Result<(), ShutdownError> {
        if core.is_forked_child() {
            return Err(ShutdownError::ForkedChild);
        }
        core.close(Closed::Shutdown);
        let this = thread::current().id();
        if lock(&self.handles).iter().any(|handle| handle.thread().id() == this) {
            // The last handle was dropped by a waker on a thread of ours, which cannot wait for itself. It ends by itself.
            return Err(ShutdownError::Busy { threads: lock(&self.board.state).running });
        }
        let deadline = Instant::now().checked_add(timeout); // none: for ever
        let mut state = lock(&self.board.state);
        while state.running > 0 {
            let left = deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Err(ShutdownError::Busy { threads: state.running });
            }
            state = self.board.changed.wait_timeout(state, left).unwrap_or_else(|e| e.into_inner()).0;
        }
        let abandoned = state.abandoned;
        drop(state);
        for handle in lock(&self.handles).drain(..) {
            let _ = handle.join(); // its panic, if any, has been seen to
        }
        if abandoned > 0 { Err(ShutdownError::Abandoned { reads: abandoned }) } else { Ok(()) }
    }
}

/// An I/O actor's thread. The backend and its buffers outlive whatever unwinds out of the actor, and are drained here.
fn io_thread(core: &Arc<Core>, index: usize, factory: BackendFactory, board: &Board) {
    // Counted over all schedulers of the process, so that two models do not share one CPU while others are free.
    static PINNED: AtomicUsize = AtomicUsize::new(0);
    let pinned = crate::io::pin_to_allowed_cpu(PINNED.fetch_add(1, Ordering::Relaxed));
    let backend = match factory.build() {
        Ok(backend) => backend,
        Err(error) => {
            board.update(|b| b.refused = Some(error));
            return;
        }
    };
    if let Err(error) = check_backend(core, &*backend) {
        board.update(|b| b.refused = Some(error));
        return;
    }
    let _ = core.doors[index].waker.set(backend.waker());
    let mut actor = IoActor::new(Arc::clone(core), index, backend);
    let report = |actor: &mut IoActor| {
        let mut report = actor.backend().report();
        if let Pinned::No { why } = &pinned {
            report.notes.push(format!("I/O actor {index} is not pinned: {why}"));
        }
        report
    };
    let first = report(&mut actor);
    board.update(|b| {
        b.reports[index] = first.clone();
        b.ready += 1;
    });
    let ended = catch_unwind(AssertUnwindSafe(|| actor.run()));
    let cause = match ended {
        Ok(Ok(())) => None,
        Ok(Err(errno)) => Some(std::io::Error::from_raw_os_error(errno).to_string()),
        Err(panic) => Some(format!("it panicked: {}", panic_message(&*panic))),
    };
    // A backend that has failed may fail at this, too; the cause is told all the same.
    let last = catch_unwind(AssertUnwindSafe(|| report(&mut actor))).unwrap_or(first);
    board.update(|b| b.reports[index] = last);
    if let Some(cause) = cause {
        core.fail(format!("I/O actor {index} stopped: {cause}; every wait fails since then, reopen the scheduler"));
    }
    let drained = catch_unwind(AssertUnwindSafe(|| actor.backend().drain(DRAIN_MAX)));
    let left = drained.unwrap_or_else(|_| actor.in_flight());
    board.update(|b| b.abandoned += left as u64);
}

/// Refuses a backend whose slots do not hold the widest extent, wherever it begins.
fn check_backend(core: &Core, backend: &dyn crate::io::Backend) -> Result<(), StartError> {
    let refuse = |why| Err(StartError::Backend { backend: "given", why });
    if backend.slots() == 0 {
        return refuse("it has no buffer slots".into());
    }
    let widest = core.tables.iter().flat_map(Table::parts).map(|p| u64::from(p.bytes)).max().unwrap_or(0);
    for file in 0..core.files.len() {
        let align = u64::from(backend.alignment(FileId(file as u32))).max(PAGE_BYTES);
        let need = (widest + 2 * align - 2) / align * align;
        if need > u64::from(backend.slot_bytes()) {
            let path = core.files[file].path.display();
            let got = backend.slot_bytes();
            return refuse(format!("an extent of {widest} bytes of {path} needs slots of {need} bytes, it has {got}"));
        }
    }
    Ok(())
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(message), _) => message,
        (_, Some(message)) => message,
        _ => "no message",
    }
}
