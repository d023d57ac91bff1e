//! What the benchmark found: JSON for machines, a table for people.

use super::args::Shape;
use super::arm::Arm;
use super::cells::Findings;
use super::machine;
use super::stats::{Spread, Waits};
use super::traffic::Workload;
use crate::args::{ArrivalsArg, BenchArgs, CacheArg, ComputeArg, IssueArg, SwitchArg};
use crate::output::{bytes_text, grouped};
use clap::ValueEnum;
use engram_sched::{BackendChoice, Model};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

/// Everything a report is made of.
pub(crate) struct Report<'a> {
    pub(crate) args: &'a BenchArgs,
    pub(crate) shape: &'a Shape,
    pub(crate) model: &'a Model,
    pub(crate) path: &'a Path,
    pub(crate) stream: &'a str,
    pub(crate) workload: &'a Workload,
    pub(crate) findings: &'a Findings,
}

/// The name on the command line.
fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Three decimals are more than any of the clocks give.
pub(super) fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

pub(super) fn spread_json(values: &[f64]) -> Value {
    let spread = Spread::of(values.iter().copied());
    json!({ "median": rounded(spread.median), "min": rounded(spread.min), "max": rounded(spread.max) })
}

fn percentiles_json(waits: &Waits, unit_us: f64) -> Value {
    let p = waits.percentiles();
    let of = |value: f64| rounded(value / unit_us);
    json!({
        "p50": of(p.p50), "p90": of(p.p90), "p99": of(p.p99), "p999": of(p.p999), "max": of(p.max), "mean": of(p.mean),
    })
}

impl Report<'_> {
    /// The arms of a single comparison, or of the first of several.
    fn arms(&self) -> &[Arm] {
        self.findings.cells().first().map_or(&[], |cell| &cell.arms)
    }

    fn limit_us(&self) -> f64 {
        f64::from(self.args.measure.wait_limit_us)
    }

    /// Whether requests do more than follow each other in equal shapes, so that there is something to tell of them.
    fn is_varied(&self) -> bool {
        let engine = &self.args.engine;
        let cut = self.workload.prompt_max() > self.shape.chunk;
        let plain = self.workload.is_closed() && self.workload.trace_requests().is_none();
        !plain || cut || engine.prefix_cache == SwitchArg::On || self.args.traffic.abort_rate > 0.0
    }

    fn rows_per_token(&self) -> u64 {
        (self.model.keygen().columns() * self.model.tables().len()) as u64
    }

    fn table_bytes(&self) -> u64 {
        self.model.tables().iter().map(|table| table.rows() * u64::from(table.row_bytes())).sum()
    }

    pub(crate) fn json(&self) -> Value {
        let (engine, traffic, measure) = (&self.args.engine, &self.args.traffic, &self.args.measure);
        let first = self.arms().iter().find(|arm| arm.backend.is_some());
        let own = self.workload.trace_requests().is_none();
        // What differs from cell to cell is told there.
        let shape = Some(self.shape);
        let (one, grid, curve) = match self.findings {
            Findings::One(_) => (shape, None, None),
            Findings::Grid(_) => (None, shape, None),
            Findings::Curve(_) => (None, None, shape),
        };
        let trace = self
            .workload
            .trace_requests()
            .map(|requests| json!({ "format": traffic.trace[0], "file": traffic.trace[1], "requests": requests }));
        let mut report = json!({
            "config": {
                "table": self.path, "model": self.model.keygen().spec().name, "table_bytes": self.table_bytes(),
                "table_rows": self.model.tables().iter().map(|table| table.rows()).collect::<Vec<_>>(),
                "row_bytes": self.model.tables().iter().map(|table| table.row_bytes()).collect::<Vec<_>>(),
                "rows_per_token": self.rows_per_token(),
                "requests": one.or(curve).map(|shape| shape.requests), "prompt": own.then_some(traffic.prompt), "output": own.then_some(traffic.output),
                "arrivals": name(self.workload.arrivals()), "rate": self.workload.rate().map(rounded), "trace": trace,
                "abort_rate": traffic.abort_rate, "prefix_cache": name(engine.prefix_cache),
                "chunk": self.shape.chunk, "step_tokens": self.shape.step_tokens, "wait_limit_us": measure.wait_limit_us,
                "batch_tokens": measure.batch_tokens,
                "step_time_us": one.map(|shape| shape.step.as_micros() as u64),
                "host_time_us": one.or(grid).map(|shape| shape.host.as_micros() as u64),
                "num_layers": self.shape.num_layers, "layers": self.shape.layers,
                "compute": name(engine.compute), "cache": name(measure.cache), "tokens": self.stream, "seed": traffic.seed,
                "duration_s": measure.duration().as_secs_f64(), "rounds": measure.rounds, "verify": measure.verify,
                "backend": name(measure.backend), "direct": name(measure.direct), "in_flight": measure.in_flight,
                "issue": self.arms().iter().map(|arm| name(arm.issue)).collect::<Vec<_>>(),
            },
            "environment": {
                "kernel": machine::kernel(), "cpus": machine::cpus(),
                "backend": first.and_then(|arm| arm.sum.reads.backends.first().copied()),
                "direct": first.and_then(|arm| arm.sum.reads.direct),
                "flags": first.map(|arm| &arm.sum.reads.flags),
            },
        });
        match self.findings {
            Findings::One(_) => report["arms"] = self.arms_json(self.arms()),
            Findings::Grid(cells) => report["grid"] = self.grid_json(cells),
            Findings::Curve(cells) => report["curve"] = self.curve_json(cells),
        }
        report
    }

    pub(super) fn arms_json(&self, arms: &[Arm]) -> Value {
        arms.iter().map(|arm| self.arm_json(arm)).collect()
    }

    fn arm_json(&self, arm: &Arm) -> Value {
        let (sum, reads) = (&arm.sum, &arm.sum.reads);
        let figures = &sum.figures;
        let per_token = self.rows_per_token();
        let waits_json = |waits: &[Waits]| -> Value {
            let layer = |(waits, layer): (&Waits, &u16)| {
                let mut json = percentiles_json(waits, 1.0);
                json["layer"] = (*layer).into();
                json
            };
            waits.iter().zip(&self.shape.layers).map(layer).collect()
        };
        let (steps, requests) = (&figures.steps, &figures.requests);
        json!({
            "issue": name(arm.issue),
            "name": arm.name,
            "workload": {
                "tokens": figures.tokens_delivered, "tokens_generated": figures.tokens,
                "rows_requested": sum.rows_requested, "rows_unique": sum.rows_unique,
                "requests": {
                    "arrived": requests.arrived, "complete": requests.complete, "aborted": requests.aborted,
                },
                "prompt_tokens": requests.prompt_tokens, "prompt_tokens_cached": requests.prompt_tokens_cached,
            },
            "reads": {
                "issued": reads.issued, "bytes": reads.bytes,
                "backend": if arm.backend.is_some() { reads.path() } else { "memory".into() },
                "direct": reads.direct, "flags": reads.flags, "notes": reads.notes, "mean_depth": rounded(reads.mean_depth()), "per_enter": reads.per_enter().map(rounded),
                "bytes_per_token": rounded(reads.bytes as f64 / figures.tokens_delivered.max(1) as f64),
            },
            "throughput": {
                "tokens_per_s": rounded(figures.tokens as f64 / sum.seconds()),
                "rows_per_s": rounded(sum.rows_per_s(per_token)),
                "reads_per_s": rounded(reads.issued as f64 / sum.seconds()),
                "cpu_us_per_row": rounded(sum.cpu_us_per_row(per_token)),
                "issue_us_per_token": rounded(figures.issuing.as_secs_f64() * 1e6 / figures.tokens_delivered.max(1) as f64),
            },
            "rounds": {
                "tokens_per_s": spread_json(&sum.tokens_per_s), "reads_per_s": spread_json(&sum.reads_per_s),
                "exposed_us_per_token": spread_json(&sum.exposed_us),
            },
            "wait_us": waits_json(&figures.waits),
            "wait_us_by_class": {
                "decode": waits_json(&figures.decode_waits), "prefill": waits_json(&figures.prefill_waits),
            },
            "first_token_ms": percentiles_json(&figures.first_token, 1e3),
            "exposed_us_per_token": rounded(figures.exposed_us_per_token()),
            "budget_share": rounded(figures.exposed_us_per_token() / self.limit_us().max(1e-3)),
            "goodput": {
                "wait_limit_us": self.args.measure.wait_limit_us, "steps": steps.all, "steps_mixed": steps.mixed,
                "steps_good": steps.good, "share": rounded(sum.good_share()),
                "tokens_per_s": rounded(steps.good_tokens as f64 / sum.seconds()),
            },
            "hidden_share": arm.backend.map(|_| rounded(sum.hidden_share())),
            "verify": { "rows_checked": sum.rows_checked, "rows_checked_warm_up": sum.rows_checked_warm_up, "mismatches": sum.mismatches, "first": sum.first_mismatch },
            "validity": {
                "cold": sum.validity.verdict(), "proof": sum.validity.proof(),
                "ratio": sum.validity.ratio().map(rounded),
                "device_bytes": sum.validity.device_counted.then_some(sum.validity.device_bytes),
            },
        })
    }

    /// The table for people.
    pub(crate) fn text(&self) -> String {
        let mut text = self.heading();
        match self.findings {
            Findings::Grid(cells) => self.grid_table(&mut text, cells),
            Findings::Curve(cells) => self.curve_table(&mut text, cells),
            Findings::One(_) if self.args.measure.batch_tokens.is_some() => self.throughput_table(&mut text),
            Findings::One(_) => {
                self.decode_table(&mut text);
                if self.is_varied() {
                    self.traffic_table(&mut text);
                }
            }
        }
        if let Findings::One(_) = self.findings {
            self.remarks(&mut text);
        }
        text
    }

    fn heading(&self) -> String {
        let (args, shape) = (self.args, self.shape);
        let keygen = self.model.keygen();
        let layers = shape.layers.iter().map(u16::to_string).collect::<Vec<_>>().join(" and ");
        let mut text = String::new();
        let rows: u64 = self.model.tables().iter().map(|table| table.rows()).sum();
        let row_bytes = self.model.tables().first().map_or(0, |table| table.row_bytes());
        let _ = writeln!(
            text,
            "Table    {}: {} rows of {row_bytes} B ({}), {} rows a token, used at layer {layers} of {}",
            self.path.display(),
            grouped(rows),
            bytes_text(self.table_bytes()),
            keygen.columns() * keygen.tables(),
            shape.num_layers,
        );
        if let Some(chunk) = args.measure.batch_tokens {
            let _ =
                writeln!(text, "Engine   {} bulk requests, chunks of {chunk} tokens, no computation", shape.requests);
        } else {
            let doing = if shape.compute == ComputeArg::Asleep { "its device computes" } else { "the CPU computes" };
            let _ = match self.findings {
                Findings::Grid(_) => writeln!(
                    text,
                    "Engine   {doing}, {} ms of each step between sampling and the next pass",
                    rounded(shape.host.as_secs_f64() * 1e3)
                ),
                Findings::Curve(_) => writeln!(text, "Engine   {} requests side by side, {doing}", shape.requests),
                Findings::One(_) => writeln!(
                    text,
                    "Engine   {} requests side by side, {} ms a step ({doing}), {} ms of it between sampling and the next pass",
                    shape.requests,
                    rounded(shape.step.as_secs_f64() * 1e3),
                    rounded(shape.host.as_secs_f64() * 1e3)
                ),
            };
            let _ = writeln!(text, "Traffic  {}", self.traffic_text());
        }
        let cache = if args.measure.cache == CacheArg::Cold { "cold" } else { "warm page cache" };
        let _ = writeln!(
            text,
            "Runs     {} rounds, {:.1} s an arm, {cache}, token stream {}, kernel {}, {} CPUs\n",
            args.measure.rounds,
            args.measure.duration().as_secs_f64(),
            self.stream,
            machine::kernel(),
            machine::cpus()
        );
        text
    }

    /// Who comes when, with what.
    fn traffic_text(&self) -> String {
        let traffic = &self.args.traffic;
        let mut text = match (self.workload.arrivals(), self.workload.rate()) {
            (ArrivalsArg::Closed, _) => "whoever is complete is replaced".to_owned(),
            (arrivals, Some(rate)) => format!("{} arrivals, {:.3} requests/s", name(arrivals), rate),
            (arrivals, None) => format!("{} arrivals, all at once", name(arrivals)),
        };
        let _ = match self.workload.trace_requests() {
            Some(requests) => write!(text, "; {} requests of {}", grouped(requests as u64), traffic.trace[1]),
            None => write!(text, "; prompts of {} tokens, {} generated each", traffic.prompt, traffic.output),
        };
        if self.workload.prompt_max() > self.shape.chunk {
            let _ = write!(text, "; chunks of {} in steps of at most {}", self.shape.chunk, self.shape.step_tokens);
        }
        if self.args.engine.prefix_cache == SwitchArg::On {
            text.push_str("; with a prefix cache");
        }
        if traffic.abort_rate > 0.0 {
            let _ = write!(text, "; {:.1} % go away before they are complete", traffic.abort_rate * 100.0);
        }
        text
    }

    fn decode_table(&self, text: &mut String) {
        let per_token = self.rows_per_token();
        let _ = writeln!(
            text,
            "{:<22} {:>9} {:>9} {:>8}  {:>5} {:>28}  {:>9} {:>7} {:>10}",
            "when rows are asked",
            "tokens/s",
            "rows/s",
            "CPU/row",
            "layer",
            "wait at the layer",
            "wait",
            "hidden",
            "steps in"
        );
        let limit = format!("{} us", self.args.measure.wait_limit_us);
        let _ = writeln!(
            text,
            "{:<22} {:>9} {:>9} {:>8}  {:>5} {:>8} {:>9} {:>9}  {:>9} {:>7} {:>10}",
            "", "", "", "us", "", "p50 us", "p99 us", "max us", "us/token", "", limit
        );
        for arm in self.arms() {
            let (sum, figures) = (&arm.sum, &arm.sum.figures);
            for (i, (waits, layer)) in figures.waits.iter().zip(&self.shape.layers).enumerate() {
                let p = waits.percentiles();
                if i == 0 {
                    let _ = write!(
                        text,
                        "{:<22} {:>9.1} {:>9.0} {:>8.2}",
                        arm.name,
                        figures.tokens as f64 / sum.seconds(),
                        sum.rows_per_s(per_token),
                        sum.cpu_us_per_row(per_token)
                    );
                } else {
                    let _ = write!(text, "{:<51}", "");
                }
                let _ = write!(text, "  {layer:>5} {:>8.1} {:>9.1} {:>9.1}", p.p50, p.p99, p.max);
                if i == 0 {
                    let hidden =
                        if arm.backend.is_some() { format!("{:.1} %", sum.hidden_share() * 100.0) } else { "-".into() };
                    let (exposed, good) = (figures.exposed_us_per_token(), sum.good_share() * 100.0);
                    let _ = write!(text, "  {exposed:>9.1} {hidden:>7} {good:>8.1} %");
                }
                text.push('\n');
            }
        }
    }

    /// What became of the requests, and the waits of generated tokens and of prompts apart.
    fn traffic_table(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "\n{:<22} {:>8} {:>8} {:>7} {:>7} {:>17}  {:<7} {:>5} {:>8} {:>9} {:>9}",
            "",
            "requests",
            "complete",
            "aborted",
            "cached",
            "first token ms",
            "wait of",
            "layer",
            "p50 us",
            "p99 us",
            "p99.9 us"
        );
        for arm in self.arms() {
            let figures = &arm.sum.figures;
            let requests = &figures.requests;
            let first = figures.first_token.percentiles();
            let mut head = format!(
                "{:<22} {:>8} {:>8} {:>7} {:>5.1} % {:>8.1} {:>8.1}",
                arm.name,
                requests.arrived,
                requests.complete,
                requests.aborted,
                requests.prompt_tokens_cached as f64 * 100.0 / requests.prompt_tokens.max(1) as f64,
                first.p50 / 1e3,
                first.p99 / 1e3
            );
            for (kind, waits) in [("decode", &figures.decode_waits), ("prefill", &figures.prefill_waits)] {
                for (waits, layer) in waits.iter().zip(&self.shape.layers) {
                    let p = waits.percentiles();
                    let _ = writeln!(
                        text,
                        "{:<74}  {kind:<7} {layer:>5} {:>8.1} {:>9.1} {:>9.1}",
                        std::mem::take(&mut head),
                        p.p50,
                        p.p99,
                        p.p999
                    );
                }
            }
        }
    }

    fn throughput_table(&self, text: &mut String) {
        let per_token = self.rows_per_token();
        let _ = writeln!(
            text,
            "{:<22} {:>9} {:>9} {:>9} {:>19} {:>8} {:>7} {:>8} {:>10}",
            "", "tokens/s", "rows/s", "reads/s", "(min - max)", "CPU/row", "depth", "/enter", "B/token"
        );
        for arm in self.arms() {
            let (sum, reads) = (&arm.sum, &arm.sum.reads);
            let spread = Spread::of(sum.reads_per_s.iter().copied());
            let _ = writeln!(
                text,
                "{:<22} {:>9.0} {:>9.0} {:>9.0} {:>19} {:>5.2} us {:>7.1} {:>8} {:>10.0}",
                arm.name,
                sum.figures.tokens as f64 / sum.seconds(),
                sum.rows_per_s(per_token),
                reads.issued as f64 / sum.seconds(),
                format!("({:.0} - {:.0})", spread.min, spread.max),
                sum.cpu_us_per_row(per_token),
                reads.mean_depth(),
                reads.per_enter().map_or_else(|| "-".into(), |reads| format!("{reads:.1}")),
                reads.bytes as f64 / sum.figures.tokens_delivered.max(1) as f64
            );
        }
    }

    fn remarks(&self, text: &mut String) {
        text.push('\n');
        for arm in self.arms() {
            let (sum, reads) = (&arm.sum, &arm.sum.reads);
            let mut remark = format!("{:<22} ", arm.name);
            if arm.backend.is_some() {
                let path = reads.path();
                let direct = if reads.direct == Some(true) { "direct" } else { "buffered" };
                let _ = write!(remark, "{path}, {direct}, depth {:.1}; ", reads.mean_depth());
                let _ =
                    write!(remark, "{} of {} rows different; ", grouped(sum.rows_unique), grouped(sum.rows_requested));
                let _ = write!(remark, "cold: {}", sum.validity.verdict());
                if let Some(ratio) = sum.validity.ratio() {
                    let what =
                        if sum.validity.device_counted { "of the bytes from the device" } else { "times a re-read" };
                    let _ = write!(remark, " ({ratio:.2} {what})");
                }
            } else {
                remark.push_str("the whole table in memory, gathered at the layer: the floor");
            }
            if self.args.measure.verify {
                let _ = write!(remark, "; {} rows compared, {} wrong", grouped(sum.rows_checked), sum.mismatches);
            }
            let _ = writeln!(text, "{remark}");
        }
        let notes: BTreeSet<&String> = self.arms().iter().flat_map(|arm| &arm.sum.reads.notes).collect();
        for note in notes {
            let _ = writeln!(text, "note: {note}");
        }
        let (first, later) = (self.shape.layers.first(), self.shape.layers.get(1));
        if let (Some(first), Some(later)) = (first, later)
            && self.arms().iter().any(|arm| arm.issue == IssueArg::AtLayer)
        {
            let _ = writeln!(
                text,
                "note: \"at the layer\" hands tokens over at layer {first}, so that the rows of layer {later} have the time between them"
            );
        }
        if let Some(line) = self.conclusion() {
            let _ = writeln!(text, "\n{line}");
        }
    }

    /// What a newcomer should take home.
    fn conclusion(&self) -> Option<String> {
        let ours = self.arms().iter().find(|arm| arm.issue == IssueArg::AtToken && arm.backend.is_some())?;
        let late =
            self.arms().iter().find(|arm| arm.issue == IssueArg::AtLayer && arm.backend == Some(BackendChoice::Mmap));
        let late = late.or_else(|| self.arms().iter().find(|arm| arm.issue == IssueArg::AtLayer))?;
        let (ours, theirs) = (ours.sum.figures.exposed_us_per_token(), late.sum.figures.exposed_us_per_token());
        Some(
            format!(
                "Asked for at the token, rows keep a token waiting {ours:.0} us on average; read at the layer ({}), {theirs:.0} us.",
                late.name
            ) + &self.why_exposed().unwrap_or_default(),
        )
    }

    /// Why reading at the token cannot hide everything here, in the run's own numbers: the time that it wins against the time that the
    /// device takes for a step, as the arm shows that reads when the layer has been reached.
    fn why_exposed(&self) -> Option<String> {
        let shape = self.shape;
        let late = self
            .arms()
            .iter()
            .find(|arm| arm.issue == IssueArg::AtLayer && arm.backend != Some(BackendChoice::Mmap))?;
        let steps = late.sum.figures.steps.all;
        if steps == 0 || late.sum.reads.issued == 0 {
            return None;
        }
        let lead_ms = shape.lead().as_secs_f64() * 1e3;
        let device_ms = late.sum.figures.waits.first()?.percentiles().mean / 1e3;
        let reads = late.sum.reads.issued as f64 / steps as f64 / shape.layers.len() as f64;
        let verdict = if device_ms > lead_ms {
            "what exceeds the lead cannot be hidden, except by fewer requests, a later layer, a longer step or a faster device"
        } else {
            "which leaves time to spare; what still waits are steps with a new prompt, and the tail of the device"
        };
        Some(format!(
            "\nA token is known {lead_ms:.1} ms before layer {} needs its rows ({:.1} ms of host time and {}/{} of a {:.1} ms step), and \
             the {reads:.0} reads of a step take this device {device_ms:.1} ms ({:.0} reads/s): {verdict}.",
            shape.layers.first()?,
            shape.host.as_secs_f64() * 1e3,
            shape.layers.first()?,
            shape.num_layers,
            shape.step.as_secs_f64() * 1e3,
            reads / (device_ms / 1e3).max(1e-9)
        ))
    }
}
