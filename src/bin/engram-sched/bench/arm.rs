//! An arm: one way to get rows, measured in several runs, and what its runs gave together.

use super::figures::RunFigures;
use crate::args::IssueArg;
use engram_sched::{BackendChoice, Stats};
use std::collections::BTreeSet;
use std::time::Duration;

/// One way to get rows.
pub(crate) struct Arm {
    pub(crate) issue: IssueArg,
    /// I/O path; `None`: the table is in memory.
    pub(crate) backend: Option<BackendChoice>,
    /// What it is called in the table for people.
    pub(crate) name: String,
    pub(crate) sum: Sum,
}

/// The runs of an arm together.
pub(crate) struct Sum {
    pub(crate) figures: RunFigures,
    pub(crate) cpu: Duration,
    pub(crate) rows_requested: u64,
    pub(crate) rows_unique: u64,
    pub(crate) rows_checked: u64,
    pub(crate) rows_checked_warm_up: u64,
    pub(crate) mismatches: u64,
    pub(crate) first_mismatch: Option<String>,
    pub(crate) reads: Reads,
    pub(crate) validity: Validity,
    /// Tokens per second of each run.
    pub(crate) tokens_per_s: Vec<f64>,
    /// Reads per second of each run.
    pub(crate) reads_per_s: Vec<f64>,
    /// Exposed wait per token of each run, all layers together, microseconds.
    pub(crate) exposed_us: Vec<f64>,
}

/// What the I/O path did.
#[derive(Default)]
pub(crate) struct Reads {
    pub(crate) issued: u64,
    pub(crate) bytes: u64,
    enters: u64,
    entered_reads: u64,
    depth_sum: u64,
    pub(crate) backends: BTreeSet<&'static str>,
    pub(crate) direct: Option<bool>,
    pub(crate) flags: BTreeSet<String>,
    pub(crate) notes: BTreeSet<String>,
}

/// What is claimed about the cache, and the proof.
#[derive(Default)]
pub(crate) struct Validity {
    /// A cold run is claimed.
    pub(crate) claimed: bool,
    /// Why the claim does not hold.
    pub(crate) faults: BTreeSet<String>,
    /// Bytes that the device delivered, and that were asked of it (direct paths).
    pub(crate) device_bytes: u64,
    pub(crate) asked_bytes: u64,
    pub(crate) device_counted: bool,
    /// Most of the table that was in the page cache when a run began (buffered paths).
    pub(crate) resident_share: Option<f64>,
    /// First over second read of the same rows (buffered paths), the least of the runs.
    pub(crate) reread_ratio: Option<f64>,
    /// What a second read saves, microseconds, the least of the runs.
    pub(crate) reread_margin_us: Option<f64>,
}

impl Arm {
    /// An arm of a model with `tables` tables, before its first run.
    pub(crate) fn new(issue: IssueArg, backend: Option<BackendChoice>, name: String, tables: usize) -> Self {
        Self { issue, backend, name, sum: Sum::new(tables) }
    }

    /// The same arm, before its first run.
    pub(crate) fn afresh(&self) -> Self {
        Self::new(self.issue, self.backend, self.name.clone(), self.sum.figures.waits.len())
    }
}

impl Sum {
    fn new(tables: usize) -> Self {
        Self {
            figures: RunFigures::new(tables),
            cpu: Duration::ZERO,
            rows_requested: 0,
            rows_unique: 0,
            rows_checked: 0,
            rows_checked_warm_up: 0,
            mismatches: 0,
            first_mismatch: None,
            reads: Reads::default(),
            validity: Validity::default(),
            tokens_per_s: Vec::new(),
            reads_per_s: Vec::new(),
            exposed_us: Vec::new(),
        }
    }

    /// Adds a run; `cpu` is the process's CPU time without the emulation's own, `io` the counters when the clock started, when it
    /// stopped, and after the scheduler was shut down.
    pub(crate) fn add(&mut self, run: &RunFigures, cpu: Duration, io: Option<(&Stats, &Stats, &Stats)>) {
        let seconds = run.wall.as_secs_f64().max(1e-9);
        self.cpu += cpu;
        self.tokens_per_s.push(run.tokens as f64 / seconds);
        self.exposed_us.push(run.exposed_us_per_token());
        self.figures.add(run);
        if let Some((before, after, last)) = io {
            let reads = after.reads - before.reads;
            self.reads_per_s.push(reads as f64 / seconds);
            self.reads.add(before, after, last);
        }
    }

    /// Time of all runs, seconds; never zero.
    pub(crate) fn seconds(&self) -> f64 {
        self.figures.wall.as_secs_f64().max(1e-9)
    }

    /// Share of the steps that kept the engine waiting no longer than the limit.
    pub(crate) fn good_share(&self) -> f64 {
        self.figures.steps.good as f64 / self.figures.steps.all.max(1) as f64
    }

    /// Rows delivered per second.
    pub(crate) fn rows_per_s(&self, rows_per_token: u64) -> f64 {
        self.rows_delivered(rows_per_token) as f64 / self.seconds()
    }

    /// Rows delivered.
    pub(crate) fn rows_delivered(&self, rows_per_token: u64) -> u64 {
        self.figures.tokens_delivered * rows_per_token
    }

    /// CPU per delivered row, microseconds.
    pub(crate) fn cpu_us_per_row(&self, rows_per_token: u64) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.rows_delivered(rows_per_token).max(1) as f64
    }

    /// Share of the (token, layer) pairs whose rows were there when the layer was reached.
    pub(crate) fn hidden_share(&self) -> f64 {
        self.figures.hidden as f64 / self.figures.awaited.max(1) as f64
    }
}

impl Reads {
    fn add(&mut self, before: &Stats, after: &Stats, last: &Stats) {
        self.issued += after.reads - before.reads;
        self.bytes += after.read_bytes - before.read_bytes;
        // Calls into the kernel are reported by an actor when it ends, for all its life.
        self.enters += last.backends.iter().map(|backend| backend.enters).sum::<u64>();
        self.entered_reads += last.reads;
        self.depth_sum += after.depth_sum - before.depth_sum;
        for backend in &last.backends {
            self.backends.insert(backend.backend);
            self.direct = Some(self.direct.unwrap_or(true) && backend.direct);
            self.flags.extend(backend.flags.iter().cloned());
            self.notes.extend(backend.notes.iter().cloned());
        }
    }

    /// The paths taken.
    pub(crate) fn path(&self) -> String {
        self.backends.iter().copied().collect::<Vec<_>>().join("+")
    }

    /// Reads in flight, on average over the reads.
    pub(crate) fn mean_depth(&self) -> f64 {
        self.depth_sum as f64 / self.issued.max(1) as f64
    }

    /// Reads per call into the kernel; `None` where reads are no calls.
    pub(crate) fn per_enter(&self) -> Option<f64> {
        let calls = self.enters > 0 && !self.backends.contains("mmap");
        calls.then(|| self.entered_reads as f64 / self.enters as f64)
    }
}

impl Validity {
    /// `valid`, `void` or `not-claimed`.
    pub(crate) fn verdict(&self) -> &'static str {
        match (self.claimed, self.faults.is_empty()) {
            // A figure of nothing, or of holes, is void whatever it claims of the cache.
            (_, false) => "void",
            (true, true) => "valid",
            (false, true) => "not-claimed",
        }
    }

    /// Device bytes over bytes asked (direct paths), or first over second read (buffered paths).
    pub(crate) fn ratio(&self) -> Option<f64> {
        if self.device_counted && self.asked_bytes > 0 {
            return Some(self.device_bytes as f64 / self.asked_bytes as f64);
        }
        self.reread_ratio
    }

    /// The proof in a sentence.
    pub(crate) fn proof(&self) -> String {
        if !self.faults.is_empty() {
            return self.faults.iter().cloned().collect::<Vec<_>>().join("; ");
        }
        if !self.claimed {
            return "no cold run is claimed".into();
        }
        if self.device_counted {
            return "direct reads; /proc/self/io accounts for them".into();
        }
        format!(
            "page cache evicted before each run ({:.2} % resident); reading the same rows again saves {:.1} us a row",
            self.resident_share.unwrap_or(0.0) * 100.0,
            self.reread_margin_us.unwrap_or(0.0)
        )
    }

    /// The least device bytes over bytes asked that a direct run may have.
    pub(crate) const DEVICE_SHARE_MIN: f64 = 0.95;
    /// Most of a table that may be in the page cache when a buffered run begins.
    pub(crate) const RESIDENT_SHARE_MAX: f64 = 0.01;
    /// A second read of the same rows must be faster by this ratio ...
    pub(crate) const REREAD_RATIO_MIN: f64 = 5.0;
    /// ... or by this margin, microseconds a row.
    pub(crate) const REREAD_MARGIN_US_MIN: f64 = 2.0;

    /// What was done while the clock ran; a span without tokens or reads measures nothing.
    pub(crate) fn measured(&mut self, tokens: u64, reads: u64) {
        let nothing = match (tokens, reads) {
            (0, _) => "no token was delivered while the clock ran: raise --duration or lower --rounds",
            (_, 0) => "no read was issued while the clock ran: raise --duration or lower --rounds",
            _ => return,
        };
        self.faults.insert(nothing.into());
    }

    /// A direct run: what the device delivered against what was asked of it.
    pub(crate) fn direct_run(&mut self, device_bytes: Option<u64>, asked_bytes: u64) {
        self.claimed = true;
        let Some(device_bytes) = device_bytes else {
            self.faults.insert("/proc/self/io cannot be read, so nothing proves that the device was read".into());
            return;
        };
        self.device_counted = true;
        self.device_bytes += device_bytes;
        self.asked_bytes += asked_bytes;
        let share = device_bytes as f64 / asked_bytes.max(1) as f64;
        if asked_bytes == 0 {
            self.faults.insert("no read was issued".into());
        } else if share < Self::DEVICE_SHARE_MIN {
            self.faults.insert(format!(
                "the device delivered {:.1} % of the bytes asked for, not 95 %: the table is not on a disk, or something caches it",
                share * 100.0
            ));
        }
    }

    /// A buffered run: residency when it began, and mean times of a first and a second read of the same rows, microseconds.
    pub(crate) fn buffered_run(&mut self, resident_share: Option<f64>, first_us: f64, second_us: f64) {
        self.claimed = true;
        match resident_share {
            None => {
                self.faults.insert("not told what the page cache holds: the kernel says it to a file's owner only; run as the table's owner or as \
                     root, or read directly (--direct require)"
                        .into());
            }
            Some(share) => {
                self.resident_share = Some(self.resident_share.unwrap_or(0.0).max(share));
                if share > Self::RESIDENT_SHARE_MAX {
                    self.faults.insert(format!(
                        "{:.1} % of the table stayed in the page cache; does another process map it?",
                        share * 100.0
                    ));
                }
            }
        }
        let (ratio, margin) = (first_us / second_us.max(1e-3), first_us - second_us);
        self.reread_ratio = Some(self.reread_ratio.map_or(ratio, |least| least.min(ratio)));
        self.reread_margin_us = Some(self.reread_margin_us.map_or(margin, |least| least.min(margin)));
        if ratio < Self::REREAD_RATIO_MIN && margin < Self::REREAD_MARGIN_US_MIN {
            self.faults.insert(format!(
                "a second read of the same rows took {second_us:.1} us a row after {first_us:.1} us, not {} times or {} us less: the \
                 first one was served from memory, or the second was not",
                Self::REREAD_RATIO_MIN,
                Self::REREAD_MARGIN_US_MIN
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_direct_run_needs_the_device() {
        let mut validity = Validity::default();
        assert_eq!(validity.verdict(), "not-claimed");
        validity.direct_run(Some(96), 100);
        assert_eq!((validity.verdict(), validity.ratio()), ("valid", Some(0.96)));
        validity.direct_run(Some(50), 100);
        assert_eq!(validity.verdict(), "void");
        assert!(validity.proof().contains("50.0 %"), "{}", validity.proof());
        let mut blind = Validity::default();
        blind.direct_run(None, 100);
        assert_eq!(blind.verdict(), "void");
        let mut empty = Validity::default();
        empty.measured(3, 5);
        assert_eq!(empty.verdict(), "not-claimed");
        empty.measured(0, 5);
        assert_eq!(empty.verdict(), "void");
        let mut unread = Validity::default();
        unread.measured(3, 0);
        assert!(unread.verdict() == "void" && unread.proof().contains("no read"));
        let mut idle = Validity::default();
        idle.direct_run(Some(0), 0);
        assert_eq!(idle.verdict(), "void");
    }

    #[test]
    fn a_buffered_run_needs_eviction_and_a_slower_first_read() {
        let mut validity = Validity::default();
        validity.buffered_run(Some(0.002), 90.0, 3.0);
        assert_eq!(validity.verdict(), "valid");
        validity.buffered_run(Some(0.2), 90.0, 3.0);
        assert_eq!(validity.verdict(), "void");
        let mut warm = Validity::default();
        warm.buffered_run(Some(0.0), 3.0, 2.9);
        assert_eq!(warm.verdict(), "void");
        let mut blind = Validity::default();
        blind.buffered_run(None, 90.0, 3.0);
        assert_eq!(blind.verdict(), "void");
    }
}
