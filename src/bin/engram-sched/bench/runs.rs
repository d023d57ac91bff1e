//! One run of one arm: a scheduler of its own, the engine, and the proof of what the cache held.

use super::args::Shape;
use super::arm::Arm;
use super::bulk::{self, Cursor};
use super::check::Checker;
use super::drive::{MemoryRows, Rows, ScheduledRows};
use super::engine::{self, Parts};
use super::figures::RunFigures;
use super::machine;
use super::memory::MemoryTables;
use super::traffic::Workload;
use crate::args::{BenchArgs, CacheArg, SwitchArg};
use crate::failure::Failure;
use crate::output::bytes_text;
use crate::tokens::Random;
use engram_keygen::rng::splitmix64;
use engram_sched::{
    BackendChoice, DirectMode, Layer, Limits, Model, RequestClass, RowId, Scheduler, StartError, StartOptions,
};
use engram_sched_core::io::{self, Residency};
use std::fs::File;
use std::time::{Duration, Instant};

/// Rows that are read twice to prove that a buffered run was cold.
const REREAD_ROWS: usize = 256;

/// Most tokens that the scheduler plans ahead for one request.
const AHEAD_TOKENS_MAX: u32 = 1 << 12;

/// Least tokens that the scheduler records for one request before they are planned.
const REQUEST_TOKENS_MIN: u32 = 1 << 16;

/// How long the reads that are out when a run ends may take.
const SHUTDOWN_MAX: Duration = Duration::from_secs(10);

/// What all runs have in common.
pub(crate) struct Runner<'a> {
    pub(crate) args: &'a BenchArgs,
    pub(crate) model: &'a Model,
    pub(crate) memory: Option<&'a MemoryTables>,
    pub(crate) workload: &'a Workload,
    /// Why no timing of this table counts.
    pub(crate) holes: Option<String>,
}

impl Runner<'_> {
    /// Writes back what is dirty, so that no run pays for it, and fills or empties the page cache.
    pub(crate) fn settle_storage(&self) -> Result<(), Failure> {
        for file in self.model.files() {
            let open = File::open(&file.path)
                .map_err(|error| Failure::failed(format!("cannot open {}: {error}", file.path.display())))?;
            match self.args.measure.cache {
                CacheArg::Cold => io::evict(&open).map_err(|error| {
                    Failure::failed(format!("cannot empty the page cache of {}: {error}", file.path.display()))
                })?,
                CacheArg::Warm => {
                    std::io::copy(&mut { open }, &mut std::io::sink())
                        .map_err(|error| Failure::failed(format!("cannot read {}: {error}", file.path.display())))?;
                }
            }
        }
        Ok(())
    }

    /// Runs `arm` once on an engine of this shape.
    pub(crate) fn run(&self, shape: &Shape, arm: &mut Arm, round: u32) -> Result<(), Failure> {
        let slots = engine::slots(shape);
        let mut checker = Checker::new(self.model, slots, self.args.measure.verify);
        match arm.backend {
            Some(backend) => self.run_scheduled(shape, arm, backend, round, &mut checker)?,
            None => {
                let memory = self.memory.ok_or_else(|| Failure::failed("the table was not read into memory"))?;
                let mut rows = MemoryRows::new(self.model.keygen(), memory, slots);
                let mut cpu = Cpu::now();
                let figures = self.engine(shape, arm, &mut rows, &mut checker, round, &mut || cpu = Cpu::now())?;
                let spent = cpu.elapsed(&figures, &checker);
                arm.sum.add(&figures, spent, None);
            }
        }
        checker.settle()?;
        let (requested, unique) = checker.rows_requested_and_unique();
        arm.sum.rows_requested += requested;
        arm.sum.rows_unique += unique;
        arm.sum.rows_checked += checker.checked;
        arm.sum.rows_checked_warm_up += checker.checked_warm_up;
        arm.sum.mismatches += checker.mismatches;
        if let Some(first) = checker.first {
            arm.sum.first_mismatch.get_or_insert(first);
        }
        Ok(())
    }

    fn run_scheduled(
        &self,
        shape: &Shape,
        arm: &mut Arm,
        backend: BackendChoice,
        round: u32,
        checker: &mut Checker,
    ) -> Result<(), Failure> {
        let cold = self.args.measure.cache == CacheArg::Cold;
        let resident = if cold { self.evict()? } else { None };
        let scheduler =
            Scheduler::start(self.model, &self.options(shape, backend)).map_err(|error| self.start_failure(error))?;
        let class =
            if self.args.measure.batch_tokens.is_some() { RequestClass::Bulk } else { RequestClass::Interactive };
        let mut rows = ScheduledRows::new(&scheduler, engine::slots(shape), class);
        let at_start = scheduler.stats();
        let device_before = io::process_read_bytes();
        let (mut before, mut cpu) = (at_start.clone(), Cpu::now());
        let mut measured = || (before, cpu) = (scheduler.stats(), Cpu::now());
        let figures = self.engine(shape, arm, &mut rows, checker, round, &mut measured)?;
        let spent = cpu.elapsed(&figures, checker);
        let after = scheduler.stats();
        let direct = after.backends.iter().all(|backend| backend.direct);
        let twice = if cold && !direct { Some(self.read_twice(&scheduler, round)?) } else { None };
        // Reads still out when the engine stopped count on both sides once the scheduler is down.
        let last = scheduler.shutdown(SHUTDOWN_MAX)?;
        if cold {
            match twice {
                Some((first, second)) => arm.sum.validity.buffered_run(resident, first, second),
                None => {
                    let device = device_before.and_then(|before| Some(io::process_read_bytes()? - before));
                    arm.sum.validity.direct_run(device, last.read_bytes - at_start.read_bytes);
                }
            }
        }
        arm.sum.validity.measured(figures.tokens_delivered, after.reads - before.reads);
        if let Some(fault) = &self.holes {
            arm.sum.validity.faults.insert(fault.clone());
        }
        arm.sum.add(&figures, spent, Some((&before, &after, &last)));
        Ok(())
    }

    /// The emulated engine on `rows`; calls `measured` when its clock starts.
    fn engine(
        &self,
        shape: &Shape,
        arm: &Arm,
        rows: &mut dyn Rows,
        checker: &mut Checker,
        round: u32,
        measured: &mut dyn FnMut(),
    ) -> Result<RunFigures, Failure> {
        let measure = &self.args.measure;
        let until = measure.duration() / measure.rounds;
        if let Some(chunk) = measure.batch_tokens {
            let cursor =
                Cursor::new(self.workload.stream(), splitmix64(self.args.traffic.seed ^ (u64::from(round) << 32)));
            return bulk::deliver(shape, chunk as usize, rows, checker, cursor, until, measured);
        }
        let parts = Parts {
            shape,
            issue: arm.issue,
            rows,
            checker,
            traffic: self.workload.round(round, measure.rounds),
            prefix_cache: self.args.engine.prefix_cache == SwitchArg::On,
            wait_limit: Duration::from_micros(u64::from(measure.wait_limit_us)),
        };
        engine::serve(parts, until, measured)
    }

    /// Bytes of the buffer of one read: the default, or what the widest extent needs wherever it begins.
    fn read_buffer_bytes(&self) -> u64 {
        let widest = self.model.tables().iter().flat_map(|table| table.parts()).map(|part| part.bytes).max();
        (u64::from(widest.unwrap_or(0)) / 4096 + 2).max(4) * 4096
    }

    fn options(&self, shape: &Shape, backend: BackendChoice) -> StartOptions {
        let tokens = self.args.measure.batch_tokens.unwrap_or(shape.chunk);
        let in_flight = self.args.measure.in_flight.unwrap_or(0);
        StartOptions {
            backend,
            io_actors: None,
            // A memory map is never direct, and a requirement is about the other arms.
            direct: if backend == BackendChoice::Mmap { DirectMode::Auto } else { self.args.measure.direct.into() },
            limits: Limits {
                requests_max: engine::slots(shape) as u32 + 2,
                // Prompts are handed over whole.
                request_tokens_max: self.workload.prompt_max().max(tokens).max(REQUEST_TOKENS_MIN),
                await_tokens_max: tokens,
                // One chunk is awaited while the next one is read.
                ahead_tokens_max: (2 * tokens.max(32)).min(AHEAD_TOKENS_MAX),
                in_flight_interactive_max: in_flight,
                in_flight_bulk_max: in_flight,
                arena_bytes_max: if in_flight == 0 { 0 } else { u64::from(in_flight) * self.read_buffer_bytes() },
                ..Limits::default()
            },
            ..StartOptions::default()
        }
    }

    /// A limit of the scheduler, in terms of the flags that it follows from.
    fn start_failure(&self, error: StartError) -> Failure {
        let tokens = if self.args.measure.batch_tokens.is_some() { "--batch-tokens" } else { "--chunk" };
        match error {
            StartError::Limit { limit, why } => {
                let (flags, why) = match limit {
                    "in_flight_interactive_max" | "in_flight_bulk_max" | "arena_bytes_max" => {
                        ("--in-flight".into(), why)
                    }
                    "prefetch_bytes_max" => ("--requests".into(), "their rows ahead do not fit into 1 GiB".into()),
                    _ => (format!("--requests or {tokens}"), why),
                };
                Failure::usage(format!("the scheduler cannot be given this much; lower {flags} ({why})"))
            }
            StartError::Memory { bytes, source } => Failure::failed(format!(
                "{} of memory cannot be reserved ({source}); lower --requests or {tokens}",
                bytes_text(bytes)
            )),
            other => other.into(),
        }
    }

    /// Empties the page cache of the table; the share that stayed.
    fn evict(&self) -> Result<Option<f64>, Failure> {
        let (mut resident_pages, mut total_pages) = (0, 0);
        for file in self.model.files() {
            let open = File::open(&file.path)?;
            io::evict(&open)?;
            match io::residency(&open)? {
                Residency::Pages { resident, total } => {
                    resident_pages += resident;
                    total_pages += total;
                }
                Residency::Unknown => return Ok(None),
            }
        }
        Ok(Some(resident_pages as f64 / total_pages.max(1) as f64))
    }

    /// Mean microseconds of a row read for the first time, and of the same rows at once again.
    fn read_twice(&self, scheduler: &Scheduler, round: u32) -> Result<(f64, f64), Failure> {
        let table = &self.model.tables()[0];
        let mut random = Random::new(self.args.traffic.seed ^ 0x7265_7265_6164 ^ u64::from(round));
        let rows: Vec<RowId> = (0..REREAD_ROWS).map(|_| random.below(table.rows())).collect();
        let mut bytes = vec![0; REREAD_ROWS * table.row_bytes() as usize];
        let mut time = || -> Result<f64, Failure> {
            let called = Instant::now();
            scheduler.read_rows(Layer(table.layer()), &rows, &mut bytes)?;
            Ok(called.elapsed().as_secs_f64() * 1e6 / REREAD_ROWS as f64)
        };
        Ok((time()?, time()?))
    }
}

/// CPU time of the process since a moment.
struct Cpu(Duration);

impl Cpu {
    fn now() -> Self {
        Self(machine::process_cpu())
    }

    /// Without what the emulation and the checker spent themselves.
    fn elapsed(&self, figures: &RunFigures, checker: &Checker) -> Duration {
        let all = machine::process_cpu().saturating_sub(self.0);
        all.saturating_sub(figures.emulating).saturating_sub(checker.spent)
    }
}
