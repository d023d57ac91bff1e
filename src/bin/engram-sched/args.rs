//! The command line.

use clap::{Parser, Subcommand, ValueEnum};
use engram_sched::{BackendChoice, DirectMode};
use std::path::PathBuf;
use std::time::Duration;

/// Reads n-gram embedding rows (DeepSeek-V4.1 Engram, Qwen3.8 PLE) ahead of the layer that needs them.
#[derive(Parser, Debug)]
#[command(name = "engram-sched", version, max_term_width = 110)]
pub(crate) struct Args {
    /// Print the result as JSON.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print results and errors only: no notes, no progress.
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Row ids of tokens, one JSON line per token.
    Rows(RowsArgs),
    /// Build the token map of a tokenizer, and verify it.
    TokenMap(TokenMapArgs),
    /// Make a synthetic table whose rows prove themselves.
    Synth(SynthArgs),
    /// Say what a table directory or checkpoint is.
    Inspect(InspectArgs),
    /// Read rows through the scheduler and by plain pread, and compare.
    Verify(VerifyArgs),
    /// Measure what reading ahead hides: an emulated engine on a real table.
    Bench(Box<BenchArgs>),
}

/// Which model, where the table does not say.
#[derive(clap::Args, Debug, Default)]
pub(crate) struct ModelArgs {
    /// qwen-ple, deepseek-v41, demo, or a spec file (.toml, .json).
    #[arg(long, short, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// Token map of a model with a compressed vocabulary (little-endian i32), or a tokenizer.json.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_map: Option<PathBuf>,
}

/// Where rows lie in raw shards without a manifest.
#[derive(clap::Args, Debug, Default)]
pub(crate) struct RawArgs {
    /// Raw shards without a manifest: bytes of a row.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) row_bytes: Option<u32>,
    /// Raw shards without a manifest: rows of every shard but the last.
    #[arg(long, value_name = "ROWS", requires = "row_bytes", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rows_per_shard: Option<u64>,
    /// Raw shards without a manifest: rows of the whole table.
    #[arg(long, value_name = "ROWS", requires = "row_bytes", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rows: Option<u64>,
    /// Raw shards without a manifest: zero-based decoder layer that consumes the rows.
    #[arg(long, value_name = "LAYER", requires = "row_bytes")]
    pub(crate) layer: Option<u16>,
}

#[derive(clap::Args, Debug)]
pub(crate) struct RowsArgs {
    /// qwen-ple, deepseek-v41, demo, a spec file (.toml, .json), or a table directory.
    #[arg(long, short, value_name = "MODEL")]
    pub(crate) model: String,
    /// Token map of a model with a compressed vocabulary (little-endian i32), or a tokenizer.json.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_map: Option<PathBuf>,
    /// Ids right before the first token, oldest first; without it the sequence starts at the first token.
    #[arg(long, value_name = "IDS", value_delimiter = ',', allow_hyphen_values = true)]
    pub(crate) history: Vec<i64>,
    /// Tokens from a file of little-endian u32 (.gz accepted), or - for standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    pub(crate) tokens: Option<PathBuf>,
    /// Token ids.
    #[arg(value_name = "TOKEN", allow_negative_numbers = true, required_unless_present = "tokens")]
    pub(crate) token: Vec<i64>,
}

#[derive(clap::Args, Debug)]
pub(crate) struct TokenMapArgs {
    /// The model's tokenizer.json.
    #[arg(long, value_name = "FILE")]
    pub(crate) tokenizer: PathBuf,
    /// Where to write the map (little-endian i32, one per raw id).
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// Refuse unless the compressed vocabulary has this size.
    #[arg(long, value_name = "V")]
    pub(crate) expect_vocab: Option<u32>,
    /// Refuse unless the file has this sha256 (hex).
    #[arg(long, value_name = "HEX")]
    pub(crate) expect_sha256: Option<String>,
}

/// How a synthetic table is laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum LayoutArg {
    /// Our own records, one extent per row, with a manifest.
    Packed,
    /// Raw shards, shard_000.bin and so on.
    Shards,
    /// A checkpoint as the model's authors publish it.
    Safetensors,
}

#[derive(clap::Args, Debug)]
pub(crate) struct SynthArgs {
    /// qwen-ple, deepseek-v41, demo, or a spec file (.toml, .json).
    #[arg(long, short, value_name = "MODEL")]
    pub(crate) model: String,
    /// Bytes of all rows, such as 64M or 2GiB, at most those of the model: the geometry is scaled to it, row width, heads and orders stay.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, required_unless_present = "sparse_full")]
    pub(crate) bytes: Option<u64>,
    /// Layout of the files.
    #[arg(long, value_enum, default_value = "packed")]
    pub(crate) layout: LayoutArg,
    /// The full geometry as sparse files, with a few thousand rows written at their true offsets.
    #[arg(long, conflicts_with = "bytes")]
    pub(crate) sparse_full: bool,
    /// Bytes of a row, where the model leaves a choice (Qwen: 160 for FP8, 320 for BF16).
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) row_bytes: Option<u32>,
    /// Which rows a sparse table holds (with --sparse-full; a table written in full holds every row) [default: 0].
    #[arg(long, conflicts_with = "bytes")]
    pub(crate) seed: Option<u64>,
    /// Directory to make; it must not exist or be empty.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
}

#[derive(clap::Args, Debug)]
pub(crate) struct InspectArgs {
    /// Table directory or checkpoint.
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) raw: RawArgs,
}

#[derive(clap::Args, Debug)]
pub(crate) struct VerifyArgs {
    /// Table directory or checkpoint.
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) raw: RawArgs,
    /// Check this many random rows of each table, the first and the last among them, instead of every row.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..))]
    pub(crate) sample: Option<u64>,
    /// Tokens fed through the scheduler besides.
    #[arg(long, value_name = "N", default_value_t = 2048)]
    pub(crate) tokens: u32,
    /// Seed of the sample and of the tokens.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// I/O path.
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) backend: BackendArg,
    /// Whether reads bypass the page cache (O_DIRECT).
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) direct: DirectArg,
}

/// I/O path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum BackendArg {
    /// io_uring, or pread where it is refused.
    Auto,
    /// io_uring or an error.
    IoUring,
    /// A pool of threads calling pread.
    Pread,
    /// A memory map.
    Mmap,
}

/// Whether reads bypass the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum DirectArg {
    /// Bypass the page cache where the file system allows it, else read through it.
    Auto,
    /// Bypass the page cache, or end with an error.
    Require,
    /// Read through the page cache.
    Off,
}

impl From<BackendArg> for BackendChoice {
    fn from(arg: BackendArg) -> Self {
        match arg {
            BackendArg::Auto => Self::Auto,
            BackendArg::IoUring => Self::IoUring,
            BackendArg::Pread => Self::Pread,
            BackendArg::Mmap => Self::Mmap,
        }
    }
}

impl From<DirectArg> for DirectMode {
    fn from(arg: DirectArg) -> Self {
        match arg {
            DirectArg::Auto => Self::Auto,
            DirectArg::Require => Self::Require,
            DirectArg::Off => Self::Off,
        }
    }
}

/// When the emulated engine hands tokens over.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, ValueEnum)]
pub(crate) enum IssueArg {
    /// As soon as a token is known: sampled, or a prompt that waits for its turn.
    AtToken,
    /// When the step that computes it begins.
    AtStep,
    /// When the layer is reached.
    AtLayer,
    /// Not at all: the table is in memory and the rows are gathered at the layer.
    Memory,
}

/// What the emulated engine does while it computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum ComputeArg {
    /// Sleeps, as an engine whose device computes.
    Asleep,
    /// Spins, as an engine that computes on this CPU.
    Busy,
}

/// What the page cache holds when a run begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum CacheArg {
    /// Nothing of the table, and the report proves it.
    Cold,
    /// The whole table.
    Warm,
}

/// When requests arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum ArrivalsArg {
    /// Always as many requests as run side by side: one that ends is replaced, and its successor waits one step for its turn.
    Closed,
    /// At random, independently of each other (--rate).
    Poisson,
    /// In bursts (--rate, --cv).
    Gamma,
    /// At the times of a trace (--trace; --rate stretches them).
    Trace,
}

/// On or off.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum SwitchArg {
    On,
    Off,
}

/// Reads that a scheduler has buffers for at most.
const IN_FLIGHT_MAX: i64 = 4096;

/// Time of each arm, where the command line names none: of one comparison, and of each cell of a grid or point of a curve.
const DURATION_DEFAULT: Duration = Duration::from_secs(7);
const DURATION_CELL_DEFAULT: Duration = Duration::from_secs(2);

#[derive(clap::Args, Debug)]
pub(crate) struct BenchArgs {
    /// Table directory or checkpoint; without it the benchmark makes its own table and keeps it for the next run.
    #[arg(value_name = "DIR")]
    pub(crate) table: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) raw: RawArgs,
    /// Where the benchmark's own table is kept [default: the user's cache folder].
    #[arg(long, value_name = "DIR", conflicts_with = "table")]
    pub(crate) dir: Option<PathBuf>,
    /// Size of the benchmark's own table [default: 2GiB, or the model's full size if that is less].
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "table")]
    pub(crate) bytes: Option<u64>,
    /// Remove the benchmark's own table and stop.
    #[arg(long, conflicts_with = "table")]
    pub(crate) clean: bool,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) traffic: TrafficArgs,
    #[command(flatten)]
    pub(crate) measure: MeasureArgs,
}

/// The emulated engine.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Engine")]
pub(crate) struct EngineArgs {
    /// Requests that run side by side (with open arrivals: at most; as many again wait with their prompts handed over).
    #[arg(long, visible_alias = "batch", value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) requests: u32,
    /// Most tokens of one prompt in a step; longer prompts take several steps, beside the requests that decode.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) chunk: u32,
    /// Most tokens of a step: first those that decode, then whole chunks of prompts in order of arrival [default: 2048, or what
    /// all requests and a chunk need].
    #[arg(long, value_name = "N")]
    pub(crate) step_tokens: Option<u32>,
    /// Whether prompts skip the whole 512-token blocks that an earlier prompt with the same beginning has computed (a cache that
    /// forgets nothing).
    #[arg(long, value_enum, default_value = "off")]
    pub(crate) prefix_cache: SwitchArg,
    /// Time of one forward pass, such as 25ms; 0: no computation.
    #[arg(long, value_name = "TIME", default_value = "25ms", value_parser = parse_time)]
    pub(crate) step_time: Duration,
    /// End of each step that passes between sampling and the next forward pass (scheduling, detokenising).
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = parse_time)]
    pub(crate) host_time: Duration,
    /// Decoder layers of the model [default: as the spec or config says].
    #[arg(long, value_name = "N")]
    pub(crate) num_layers: Option<u32>,
    /// What the engine does while it computes.
    #[arg(long, value_enum, default_value = "asleep")]
    pub(crate) compute: ComputeArg,
}

/// What the engine's users do.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Traffic")]
pub(crate) struct TrafficArgs {
    /// When requests arrive [default: trace with --trace, else closed].
    #[arg(long, value_enum)]
    pub(crate) arrivals: Option<ArrivalsArg>,
    /// Requests a second, on average (poisson, gamma; a trace is stretched to it) [default for a trace: its own].
    #[arg(long, value_name = "R")]
    pub(crate) rate: Option<f64>,
    /// Coefficient of variation of the times between arrivals (gamma): 1 is poisson, more is burstier [default: 2].
    #[arg(long, value_name = "X")]
    pub(crate) cv: Option<f64>,
    /// Lengths, times and shared beginnings of a trace (.gz accepted). azure: TIMESTAMP,ContextTokens,GeneratedTokens; mooncake:
    /// JSON lines with timestamp, input_length, output_length, hash_ids. Its tokens are taken from --tokens.
    #[arg(long, num_args = 2, value_names = ["azure|mooncake", "FILE"], conflicts_with_all = ["prompt", "output"])]
    pub(crate) trace: Vec<String>,
    /// Tokens of each prompt.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) prompt: u32,
    /// Tokens each request generates.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) output: u32,
    /// Share of the requests whose user goes away before they are complete, 0 to 1, each at a random token of its life.
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    pub(crate) abort_rate: f64,
    /// Token stream: docs (real text in the vocabularies of Qwen and DeepSeek), zipf, uniform (the worst case), or a file of
    /// little-endian u32 (.gz accepted) [default: docs where it fits the model's vocabulary, else zipf].
    #[arg(long, value_name = "STREAM")]
    pub(crate) tokens: Option<String>,
    /// Seed of the stream's start, of generated tokens, and of whatever else is random.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

/// What is compared, and for how long.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Measurement")]
pub(crate) struct MeasureArgs {
    /// Arms to run, interleaved [default: all four, and a memory map].
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) issue: Vec<IssueArg>,
    /// Every combination of steps of 10, 25 and 50 ms with 1, 8, 32 and 128 requests.
    #[arg(long, conflicts_with_all = ["requests", "step_time", "curve", "batch_tokens"])]
    pub(crate) grid: bool,
    /// The exposed wait over the time that the device takes for a step, at leads of 0.25 to 4 times that time.
    #[arg(long, conflicts_with_all = ["step_time", "host_time", "num_layers", "issue", "batch_tokens"])]
    pub(crate) curve: bool,
    /// Throughput instead of decoding: chunks of N tokens, the next chunk fed before the last one is awaited.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536),
          conflicts_with_all = ["arrivals", "trace", "prefix_cache", "abort_rate", "chunk", "step_tokens"])]
    pub(crate) batch_tokens: Option<u32>,
    /// Wait of a step, all its layers together, that is still good.
    #[arg(long, value_name = "US", default_value_t = 500)]
    pub(crate) wait_limit_us: u32,
    /// I/O path of the arms.
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) backend: BackendArg,
    /// Whether reads bypass the page cache (O_DIRECT); the memory map arm never does.
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) direct: DirectArg,
    /// State of the page cache when a run begins.
    #[arg(long, value_enum, default_value = "cold")]
    pub(crate) cache: CacheArg,
    /// Time of each arm, all rounds together; at least 1 ms a round [default: 7s; in a grid or curve 2s a cell].
    #[arg(long = "duration", value_name = "TIME", value_parser = parse_time)]
    duration_given: Option<Duration>,
    /// Rounds: each runs every arm once, in turn forwards and backwards.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Compare every delivered row with what its row id says.
    #[arg(long)]
    pub(crate) verify: bool,
    /// Reads in flight per device [default: 32 while requests decode, 64 in bulk].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=IN_FLIGHT_MAX))]
    pub(crate) in_flight: Option<u32>,
}

impl MeasureArgs {
    /// Time of each arm, all rounds together.
    pub(crate) fn duration(&self) -> Duration {
        let default = if self.grid || self.curve { DURATION_CELL_DEFAULT } else { DURATION_DEFAULT };
        self.duration_given.unwrap_or(default)
    }
}

/// `2GiB`, `64M`, `4096`: binary units.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(format!("unknown unit {unit:?}; use B, KiB, MiB, GiB or TiB")),
    };
    let number: f64 = number.parse().map_err(|_| "not a number of bytes".to_owned())?;
    let bytes = number * (1u64 << shift) as f64;
    if bytes >= 1.0 && bytes < (1u64 << 62) as f64 { Ok(bytes as u64) } else { Err("out of range".into()) }
}

/// `25ms`, `8s`, `250us`, `0`; a bare number is milliseconds.
pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| "not a time".to_owned())?;
    let seconds = match unit.trim() {
        "us" => number / 1e6,
        "" | "ms" => number / 1e3,
        "s" => number,
        "m" | "min" => number * 60.0,
        _ => return Err(format!("unknown unit {unit:?}; use us, ms, s or min")),
    };
    if (0.0..1e6).contains(&seconds) { Ok(Duration::from_secs_f64(seconds)) } else { Err("out of range".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn sizes_and_times() {
        assert_eq!(parse_size("2GiB"), Ok(2 << 30));
        assert_eq!(parse_size("1.5k"), Ok(1536));
        assert_eq!(parse_size("4096"), Ok(4096));
        assert!(parse_size("2Q").is_err() && parse_size("").is_err() && parse_size("0").is_err());
        assert_eq!(parse_time("25ms"), Ok(Duration::from_millis(25)));
        assert_eq!(parse_time("0"), Ok(Duration::ZERO));
        assert_eq!(parse_time("2.5s"), Ok(Duration::from_millis(2500)));
        assert!(parse_time("5h").is_err() && parse_time("-1s").is_err());
    }
}
