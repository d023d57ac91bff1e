//! What the users of the emulated engine do: when requests arrive, what they say, how much they want, and when they go away.
//!
//! Everything follows from the seed and the round, so that all arms of a round meet the same requests. A trace is joined with a stream
//! of tokens: block `id` is 512 tokens from `splitmix64(id) % (len - 512)`, so that equal ids are equal tokens and prompts really
//! share their beginnings; a prompt of which nothing is known is a slice that begins with a document.

use super::trace::{BLOCK_TOKENS, Trace};
use crate::args::{ArrivalsArg, TrafficArgs};
use crate::failure::Failure;
use crate::tokens::Random;
use engram_keygen::rng::splitmix64;
use engram_sched::{Keygen, Token};
use std::path::Path;
use std::time::Duration;

/// Coefficient of variation of bursty arrivals: what traces of chat services have at their busier times.
const CV_DEFAULT: f64 = 2.0;

/// Bounds of `--rate` and `--cv`.
const RATE_MAX: f64 = 1e6;
const CV_MIN: f64 = 0.01;
const CV_MAX: f64 = 100.0;

/// The id that ends a document in the vocabularies of DeepSeek, whose specs name none.
const DEEPSEEK_END: Token = 1;

/// How requests arrive.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Arrivals {
    Closed,
    /// Gaps of this mean, seconds, whose squared coefficient of variation is the reciprocal of `shape`.
    Gamma {
        mean: f64,
        shape: f64,
    },
    /// Times of the trace, multiplied.
    Trace {
        stretch: f64,
    },
}

/// The traffic of a benchmark, all rounds.
pub(crate) struct Workload {
    arrivals: Arrivals,
    trace: Option<Trace>,
    prompt: u32,
    output: u32,
    abort_rate: f64,
    seed: u64,
    stream: Vec<Token>,
    /// Where documents of the stream begin.
    documents: Vec<usize>,
}

/// A request as its user sends it.
pub(crate) struct Arrival {
    /// Prompt, then what will be generated but for the last token, which is never computed.
    pub(crate) tokens: Vec<Token>,
    /// Tokens of the prompt, at least one.
    pub(crate) prompt: usize,
    /// Tokens to generate, at least one.
    pub(crate) output: u32,
    /// The user goes away once that many tokens are computed.
    pub(crate) abort_at: Option<usize>,
}

impl Workload {
    /// Checks what the command line asks for; `closed`: arrivals of another kind make no sense.
    pub(crate) fn new(args: &TrafficArgs, closed: Option<&str>) -> Result<Self, Failure> {
        let trace = match &args.trace[..] {
            [format, path] => Some(Trace::read(format, Path::new(path))?),
            _ => None,
        };
        let kind = args.arrivals.unwrap_or(match (closed, &trace) {
            (None, Some(_)) => ArrivalsArg::Trace,
            _ => ArrivalsArg::Closed,
        });
        if let Some(flag) = closed.filter(|_| kind != ArrivalsArg::Closed) {
            return Err(Failure::usage(format!("{flag} keeps a fixed number of requests busy; leave --arrivals out")));
        }
        for (flag, value, least, most) in
            [("--rate", args.rate, 1.0 / RATE_MAX, RATE_MAX), ("--cv", args.cv, CV_MIN, CV_MAX)]
        {
            if value.is_some_and(|value| !(least..=most).contains(&value)) {
                return Err(Failure::usage(format!("{flag} must lie between {least} and {most}")));
            }
        }
        if !(0.0..=1.0).contains(&args.abort_rate) {
            return Err(Failure::usage("--abort-rate is a share of the requests and must lie between 0 and 1"));
        }
        if args.cv.is_some() && kind != ArrivalsArg::Gamma {
            return Err(Failure::usage("--cv shapes the gaps of --arrivals gamma; add that, or leave --cv out"));
        }
        let gamma = |cv: f64| match args.rate {
            Some(rate) => Ok(Arrivals::Gamma { mean: 1.0 / rate, shape: 1.0 / (cv * cv) }),
            None => Err(Failure::usage("random arrivals need their mean: give --rate, in requests a second")),
        };
        let arrivals = match (kind, &trace) {
            (ArrivalsArg::Closed, _) if args.rate.is_some() => {
                return Err(Failure::usage(
                    "--rate has no effect on closed arrivals; give --arrivals poisson or gamma, or leave it out",
                ));
            }
            (ArrivalsArg::Closed, _) => Arrivals::Closed,
            (ArrivalsArg::Poisson, _) => gamma(1.0)?,
            (ArrivalsArg::Gamma, _) => gamma(args.cv.unwrap_or(CV_DEFAULT))?,
            (ArrivalsArg::Trace, None) => {
                return Err(Failure::usage(
                    "--arrivals trace needs one: give --trace azure FILE or --trace mooncake FILE",
                ));
            }
            (ArrivalsArg::Trace, Some(trace)) => {
                let stretch = args.rate.zip(trace.rate()).map_or(1.0, |(want, has)| has / want);
                Arrivals::Trace { stretch }
            }
        };
        Ok(Self {
            arrivals,
            trace,
            prompt: args.prompt,
            output: args.output,
            abort_rate: args.abort_rate,
            seed: args.seed,
            stream: Vec::new(),
            documents: Vec::new(),
        })
    }

    /// The stream that tokens are taken from.
    pub(crate) fn set_stream(&mut self, stream: Vec<Token>, keygen: &Keygen) -> Result<(), Failure> {
        if self.trace.as_ref().is_some_and(Trace::has_blocks) && stream.len() <= BLOCK_TOKENS {
            return Err(Failure::failed(format!(
                "the stream has {} tokens, and the blocks of a trace are {BLOCK_TOKENS} tokens of it each; give a longer one (--tokens)",
                stream.len()
            )));
        }
        let end = keygen.spec().eos.map_or(DEEPSEEK_END, |end| end as Token);
        let after_ends = stream.iter().enumerate().filter(|&(_, &token)| token == end).map(|(at, _)| at + 1);
        self.documents = std::iter::once(0).chain(after_ends.filter(|&at| at < stream.len())).collect();
        self.stream = stream;
        Ok(())
    }

    pub(crate) fn stream(&self) -> &[Token] {
        &self.stream
    }

    /// Whether a request that ends is replaced at once.
    pub(crate) fn is_closed(&self) -> bool {
        self.arrivals == Arrivals::Closed
    }

    /// The name of the arrivals on the command line.
    pub(crate) fn arrivals(&self) -> ArrivalsArg {
        match self.arrivals {
            Arrivals::Closed => ArrivalsArg::Closed,
            Arrivals::Gamma { shape: 1.0, .. } => ArrivalsArg::Poisson,
            Arrivals::Gamma { .. } => ArrivalsArg::Gamma,
            Arrivals::Trace { .. } => ArrivalsArg::Trace,
        }
    }

    /// Requests a second, where they arrive by themselves.
    pub(crate) fn rate(&self) -> Option<f64> {
        match self.arrivals {
            Arrivals::Closed => None,
            Arrivals::Gamma { mean, .. } => Some(1.0 / mean),
            Arrivals::Trace { stretch } => Some(self.trace.as_ref()?.rate()? / stretch),
        }
    }

    /// Requests of the trace.
    pub(crate) fn trace_requests(&self) -> Option<usize> {
        self.trace.as_ref().map(|trace| trace.lines.len())
    }

    /// The longest prompt.
    pub(crate) fn prompt_max(&self) -> u32 {
        self.trace.as_ref().map_or(self.prompt, Trace::prompt_max)
    }

    /// What arrives in round `round` of `rounds`; a trace is entered at that part of its length.
    pub(crate) fn round(&self, round: u32, rounds: u32) -> Traffic<'_> {
        let line = self.trace.as_ref().map_or(0, |trace| trace.lines.len() * round as usize / rounds as usize);
        let seed = splitmix64(self.seed ^ (u64::from(round) << 32));
        let entered = self.trace.as_ref().map_or(Duration::ZERO, |trace| trace.lines[line].at);
        let (random, cursor) = (Random::new(seed), self.place(seed));
        let mut traffic = Traffic { workload: self, random, cursor, line, entered, due: None };
        traffic.due = traffic.next_due();
        traffic
    }

    fn place(&self, at: u64) -> usize {
        (at % self.stream.len() as u64) as usize
    }

    /// `tokens` tokens of the stream from `at`, which starts over at its end.
    fn slice(&self, at: usize, tokens: usize) -> impl Iterator<Item = Token> {
        self.stream[at..].iter().chain(self.stream.iter().cycle()).copied().take(tokens)
    }

    /// Tokens of line `line` of a trace, as many as are computed.
    fn line_tokens(&self, trace: &Trace, line: usize) -> Vec<Token> {
        let entry = &trace.lines[line];
        let (prompt, computed) = (entry.prompt as usize, (entry.prompt + entry.output) as usize - 1);
        let key = splitmix64(!(line as u64));
        let mut tokens = Vec::with_capacity(computed);
        if entry.blocks.is_empty() {
            let document = self.documents[(key % self.documents.len() as u64) as usize];
            tokens.extend(self.slice(document, computed));
            return tokens;
        }
        let starts = (self.stream.len() - BLOCK_TOKENS) as u64;
        for &id in &entry.blocks {
            let left = prompt - tokens.len();
            tokens.extend(self.slice((splitmix64(id) % starts) as usize, left.min(BLOCK_TOKENS)));
        }
        tokens.extend(self.slice(self.place(key), computed - prompt));
        tokens
    }
}

/// The requests of one round, in order.
pub(crate) struct Traffic<'a> {
    workload: &'a Workload,
    random: Random,
    /// Where the next prompt is in the stream, if no trace says.
    cursor: usize,
    /// Of the trace, the next one.
    line: usize,
    /// When the first of them arrived in the trace.
    entered: Duration,
    due: Option<Duration>,
}

impl Traffic<'_> {
    /// When the next request arrives, since the round's start; `None`: at any time (closed), or nobody comes any more.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.due
    }

    /// Whether a request that ends is replaced at once.
    pub(crate) fn is_closed(&self) -> bool {
        self.workload.is_closed()
    }

    /// The next request; `None` at the end of a trace.
    pub(crate) fn next(&mut self) -> Option<Arrival> {
        let workload = self.workload;
        let (prompt, output, tokens) = match &workload.trace {
            Some(trace) => {
                let line = trace.lines.get(self.line)?;
                (line.prompt, line.output, workload.line_tokens(trace, self.line))
            }
            None => {
                let (prompt, output) = (workload.prompt, workload.output);
                let computed = (prompt + output) as usize - 1;
                let tokens = workload.slice(self.cursor, computed).collect();
                self.cursor = (self.cursor + computed) % workload.stream.len();
                (prompt, output, tokens)
            }
        };
        // Always drawn, so that the rate changes who goes away and nothing else.
        let (leaves, at) = (self.random.unit() < workload.abort_rate, self.random.below(tokens.len() as u64));
        self.line += 1;
        self.due = self.next_due();
        Some(Arrival { tokens, prompt: prompt as usize, output, abort_at: leaves.then_some(at as usize) })
    }

    /// When the request after the one at `self.due` arrives.
    fn next_due(&mut self) -> Option<Duration> {
        let line = match &self.workload.trace {
            Some(trace) => Some(trace.lines.get(self.line)?.at),
            None => None,
        };
        match self.workload.arrivals {
            Arrivals::Closed => None,
            Arrivals::Gamma { mean, shape } => {
                let gap = Duration::from_secs_f64(mean / shape * gamma(&mut self.random, shape));
                Some(self.due.unwrap_or_default() + gap)
            }
            Arrivals::Trace { stretch } => Some((line? - self.entered).mul_f64(stretch)),
        }
    }
}

/// A draw from the gamma distribution of this shape and scale 1 (Marsaglia and Tsang 2000).
fn gamma(random: &mut Random, shape: f64) -> f64 {
    if shape < 1.0 {
        // One minus it lies in (0, 1].
        let boost = (1.0 - random.unit()).powf(1.0 / shape);
        return gamma(random, shape + 1.0) * boost;
    }
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let normal = (-2.0 * (1.0 - random.unit()).ln()).sqrt() * (std::f64::consts::TAU * random.unit()).cos();
        let v = (1.0 + c * normal).powi(3);
        if v > 0.0 && (1.0 - random.unit()).ln() < 0.5 * normal * normal + d - d * v + d * v.ln() {
            return d * v;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command};
    use clap::Parser;
    use engram_sched::Spec;
    use std::fs;

    fn workload(line: &str) -> Result<Workload, Failure> {
        let Command::Bench(args) = Args::parse_from(format!("engram-sched bench {line}").split_whitespace()).command
        else {
            panic!("not bench");
        };
        let mut workload = Workload::new(&args.traffic, None)?;
        let keygen = Keygen::new(&Spec::qwen_ple(), None).unwrap();
        let stream = (0..3000).map(|at| if at % 1000 == 999 { 248_044 } else { at }).collect();
        workload.set_stream(stream, &keygen)?;
        Ok(workload)
    }

    fn gaps(line: &str, n: usize) -> Vec<f64> {
        let workload = workload(line).ok().unwrap();
        let mut traffic = workload.round(0, 4);
        let mut before = 0.0;
        let mut gap = || {
            let due = traffic.due().unwrap().as_secs_f64();
            traffic.next().unwrap();
            let gap = due - before;
            before = due;
            gap
        };
        (0..n).map(|_| gap()).collect()
    }

    /// Mean, and coefficient of variation.
    fn moments(values: &[f64]) -> (f64, f64) {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
        (mean, variance.sqrt() / mean)
    }

    #[test]
    fn random_gaps_have_their_mean_and_spread() {
        for (line, cv) in [
            ("--arrivals poisson --rate 50", 1.0),
            ("--arrivals gamma --rate 50", 2.0),
            ("--arrivals gamma --rate 50 --cv 0.5", 0.5),
        ] {
            let (mean, spread) = moments(&gaps(line, 20_000));
            assert!((mean * 50.0 - 1.0).abs() < 0.05 && (spread / cv - 1.0).abs() < 0.05, "{line}: {mean} {spread}");
        }
    }

    #[test]
    fn a_round_repeats_itself_and_differs_from_the_next() {
        let workload = workload("--abort-rate 0.5 --prompt 5 --output 4").ok().unwrap();
        let arrivals = |round| {
            let mut traffic = workload.round(round, 4);
            (0..200).map(|_| traffic.next().unwrap()).map(|a| (a.tokens, a.abort_at)).collect::<Vec<_>>()
        };
        let first = arrivals(0);
        assert_eq!(first, arrivals(0));
        assert_ne!(first, arrivals(1));
        let aborted: Vec<usize> = first.iter().filter_map(|(_, at)| *at).collect();
        assert!((70..130).contains(&aborted.len()), "{}", aborted.len());
        assert!(aborted.contains(&0) && aborted.contains(&7) && aborted.iter().all(|&at| at < 8));
        assert!(first.iter().all(|(tokens, _)| tokens.len() == 8));
    }

    #[test]
    fn a_trace_gives_times_lengths_and_shared_beginnings() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.jsonl");
        let line = |at, prompt, blocks| {
            format!(
                "{{\"timestamp\": {at}, \"input_length\": {prompt}, \"output_length\": 3, \"hash_ids\": {blocks}}}\n"
            )
        };
        fs::write(&path, line(0, 700, "[4, 9]") + &line(1000, 600, "[4, 5]") + &line(3000, 512, "[6]")).unwrap();
        let trace = format!("--trace mooncake {}", path.display());
        let joined = workload(&trace).ok().unwrap();
        assert_eq!(
            (joined.prompt_max(), joined.arrivals(), joined.trace_requests()),
            (700, ArrivalsArg::Trace, Some(3))
        );
        let mut traffic = joined.round(0, 1);
        let mut taken = Vec::new();
        let mut due = Vec::new();
        while let Some(at) = traffic.due() {
            due.push(at.as_millis());
            taken.push(traffic.next().unwrap());
        }
        assert!(traffic.next().is_none());
        assert_eq!(due, [0, 1000, 3000]);
        assert_eq!(taken[0].tokens[..512], taken[1].tokens[..512], "block 4");
        assert_ne!(taken[0].tokens[512..600], taken[1].tokens[512..600], "blocks 9 and 5");
        let start = (splitmix64(6) % (3000 - 512)) as usize;
        assert_eq!(taken[2].tokens[..512], joined.stream()[start..start + 512]);
        assert_eq!((taken[2].tokens.len(), taken[2].prompt, taken[2].output), (514, 512, 3));
        // Stretched to a rate, entered in the middle, in a closed loop, and with random arrivals.
        let mut later = joined.round(2, 3);
        assert_eq!((later.due(), later.next().map(|a| a.prompt)), (Some(Duration::ZERO), Some(512)));
        assert!(later.due().is_none() && later.next().is_none());
        let faster = workload(&format!("{trace} --rate 2")).ok().unwrap();
        let mut traffic = faster.round(0, 1);
        traffic.next();
        assert_eq!((traffic.due(), faster.rate()), (Some(Duration::from_secs(1) / 3), Some(2.0)));
        let closed = workload(&format!("{trace} --arrivals closed")).ok().unwrap();
        let mut traffic = closed.round(0, 1);
        assert!(traffic.is_closed() && traffic.due().is_none());
        assert_eq!((0..4).filter_map(|_| traffic.next()).count(), 3);
        let random = workload(&format!("{trace} --arrivals poisson --rate 9")).ok().unwrap();
        let mut traffic = random.round(0, 1);
        assert_eq!((0..3).filter_map(|_| traffic.due().and(traffic.next())).count(), 3);
        assert!(traffic.due().is_none());
    }

    #[test]
    fn a_prompt_of_unknown_content_begins_with_a_document() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.csv");
        fs::write(&path, "2023-11-16 18:15:46,700,2\n".repeat(20)).unwrap();
        let workload = workload(&format!("--trace azure {}", path.display())).ok().unwrap();
        let mut traffic = workload.round(0, 1);
        let mut begins: Vec<Token> = (0..20).map(|_| traffic.next().unwrap().tokens[0]).collect();
        begins.sort();
        begins.dedup();
        assert_eq!(begins, [0, 1000, 2000]);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (line, why) in [
            ("--arrivals poisson", "give --rate"),
            ("--arrivals gamma --cv 2", "give --rate"),
            ("--arrivals trace", "--trace azure FILE"),
            ("--rate 3", "closed arrivals"),
            ("--arrivals poisson --rate 0", "--rate must lie"),
            ("--arrivals poisson --rate 3 --cv 2", "--cv shapes"),
            ("--arrivals gamma --rate 3 --cv 0", "--cv must lie"),
            ("--abort-rate 1.5", "--abort-rate"),
            ("--trace splitwise x", "azure and mooncake"),
        ] {
            let failure = workload(line).err().unwrap_or_else(|| panic!("{line}"));
            assert_eq!(failure.exit_code(), 2, "{line}");
            let text = failure.text();
            assert!(text.contains(why), "{line}: {text}");
        }
    }
}
