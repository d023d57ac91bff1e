//! Workload traces: when requests arrive, how long they are, and which prompts begin alike.
//!
//! Two public formats. `azure` (the Azure LLM inference traces): CSV with arrival time, prompt and output tokens; nothing is said of
//! content. `mooncake`: JSON lines with the time in milliseconds, both lengths, and an id for each block of 512 prompt tokens; equal ids
//! stand for equal tokens. Traces hold no tokens: those are taken from a stream, see [`super::traffic`].

use crate::failure::Failure;
use crate::tokens;
use serde_json::Value;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

/// Tokens that one id of a `mooncake` trace stands for; also the block of a prefix cache.
pub(crate) const BLOCK_TOKENS: usize = 512;

/// Longest prompt or output that is believed.
const TOKENS_MAX: u64 = 1 << 22;

/// A format of traces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Format {
    Azure,
    Mooncake,
}

/// One request of a trace.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Line {
    /// Since the trace's first request.
    pub(crate) at: Duration,
    /// Prompt tokens, at least one.
    pub(crate) prompt: u32,
    /// Tokens generated, at least one.
    pub(crate) output: u32,
    /// Ids of the prompt's blocks, the last one maybe in part; empty if the trace says nothing of content.
    pub(crate) blocks: Vec<u64>,
}

/// The requests of a trace in order of arrival; there is at least one.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Trace {
    pub(crate) lines: Vec<Line>,
}

impl Trace {
    /// Reads the file of that format.
    pub(crate) fn read(format: &str, path: &Path) -> Result<Self, Failure> {
        let format = match format {
            "azure" => Format::Azure,
            "mooncake" => Format::Mooncake,
            _ => return Err(Failure::usage(format!("--trace {format}: the formats are azure and mooncake"))),
        };
        let failed = |what: String| Failure::failed(format!("cannot read the trace {}: {what}", path.display()));
        let bytes = tokens::read_bytes(path).map_err(|error| failed(error.to_string()))?;
        let text = String::from_utf8(bytes).map_err(|_| failed("it is not text".into()))?;
        Self::parse(format, &text).map_err(failed)
    }

    fn parse(format: Format, text: &str) -> Result<Self, String> {
        let parse = match format {
            Format::Azure => azure_line,
            Format::Mooncake => mooncake_line,
        };
        let mut lines = Vec::new();
        for (number, text) in text.lines().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
            if (format, number) == (Format::Azure, 0) && text.trim_start_matches('\u{feff}').starts_with("TIMESTAMP,") {
                continue;
            }
            lines.push(parse(text.trim()).map_err(|what| format!("line {}: {what}", number + 1))?);
        }
        lines.sort_by_key(|line: &Line| line.at);
        let first = lines.first().ok_or("it has no requests")?.at;
        for line in &mut lines {
            line.at -= first;
        }
        Ok(Self { lines })
    }

    /// Requests a second on average; `None` if all arrive at once.
    pub(crate) fn rate(&self) -> Option<f64> {
        let seconds = self.lines.last()?.at.as_secs_f64();
        (seconds > 0.0).then(|| (self.lines.len() - 1) as f64 / seconds)
    }

    /// The longest prompt.
    pub(crate) fn prompt_max(&self) -> u32 {
        self.lines.iter().map(|line| line.prompt).max().unwrap_or(1)
    }

    /// Whether prompts are made of blocks that others share.
    pub(crate) fn has_blocks(&self) -> bool {
        self.lines.iter().any(|line| !line.blocks.is_empty())
    }
}

/// A number of tokens; none at all is no request, and counts as one.
fn length(tokens: u64, what: &str) -> Result<u32, String> {
    if tokens > TOKENS_MAX {
        return Err(format!("{what} of {tokens} tokens is beyond {TOKENS_MAX}; is this the right column?"));
    }
    Ok(tokens.max(1) as u32)
}

/// `2023-11-16 18:15:46.6805900,374,44`
fn azure_line(text: &str) -> Result<Line, String> {
    let mut fields = text.split(',').map(str::trim);
    let (Some(at), Some(prompt), Some(output), None) = (fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return Err("expected TIMESTAMP,ContextTokens,GeneratedTokens".into());
    };
    let number = |text: &str, what| -> Result<u32, String> {
        length(text.parse().map_err(|_| format!("{what} {text:?} is not a number of tokens"))?, what)
    };
    Ok(Line {
        at: timestamp(at).ok_or_else(|| format!("{at:?} is not a time such as 2023-11-16 18:15:46.68"))?,
        prompt: number(prompt, "ContextTokens")?,
        output: number(output, "GeneratedTokens")?,
        blocks: Vec::new(),
    })
}

/// Time since the year 0 of `2023-11-16 18:15:46.6805900`, with or without the zone of UTC behind it.
fn timestamp(text: &str) -> Option<Duration> {
    fn fields<T: FromStr, const N: usize>(text: &str, separator: char) -> Option<[T; N]> {
        let parsed: Option<Vec<T>> = text.split(separator).map(|field| field.parse().ok()).collect();
        parsed?.try_into().ok()
    }
    let text = text.trim_end_matches('Z').trim_end_matches("+00:00");
    let (date, time) = text.split_once([' ', 'T'])?;
    let [year, month, day] = fields::<u64, 3>(date, '-')?;
    let [hour, minute, second] = fields::<f64, 3>(time, ':')?;
    let legal = (1..=12).contains(&month) && (1..=31).contains(&day) && year < 10_000;
    let limits = [(hour, 24.0), (minute, 60.0), (second, 61.0)];
    if !legal || !limits.iter().all(|(field, end)| (0.0..*end).contains(field)) {
        return None;
    }
    // Months are counted from March, so that the leap day is the last of its year.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    Some(Duration::from_secs(days * 86_400) + Duration::from_secs_f64(hour * 3600.0 + minute * 60.0 + second))
}

/// `{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}`
fn mooncake_line(text: &str) -> Result<Line, String> {
    let json: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let number = |key: &str| json[key].as_u64().ok_or_else(|| format!("{key} is missing or not a whole number"));
    let blocks: Option<Vec<u64>> = json["hash_ids"].as_array().and_then(|ids| ids.iter().map(Value::as_u64).collect());
    let line = Line {
        at: Duration::from_millis(number("timestamp")?),
        prompt: length(number("input_length")?, "input_length")?,
        output: length(number("output_length")?, "output_length")?,
        blocks: blocks.ok_or("hash_ids is missing or not a list of whole numbers")?,
    };
    let need = (line.prompt as usize).div_ceil(BLOCK_TOKENS);
    if line.blocks.len() < need {
        return Err(format!("input_length {} needs {need} hash_ids, there are {}", line.prompt, line.blocks.len()));
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn azure_times_count_from_the_first_request() {
        let text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-02-28 23:59:59.7500000,374,44\n\
                    2024-03-01 00:00:00.2500000+00:00,10,0\n2024-02-29T00:00:00Z,7,1\n";
        let trace = Trace::parse(Format::Azure, text).unwrap();
        let shown: Vec<_> = trace.lines.iter().map(|line| (line.at.as_millis(), line.prompt, line.output)).collect();
        assert_eq!(shown, [(0, 374, 44), (250, 7, 1), (86_400_500, 10, 1)]);
        assert!((trace.rate().unwrap() - 2.0 / 86_400.5).abs() < 1e-9);
        assert_eq!((trace.prompt_max(), trace.has_blocks()), (374, false));
    }

    #[test]
    fn mooncake_blocks_cover_their_prompt() {
        let line = r#"{"timestamp": 30, "input_length": 513, "output_length": 5, "hash_ids": [0, 7]}"#;
        let trace = Trace::parse(Format::Mooncake, line).unwrap();
        assert_eq!(trace.lines[0].blocks, [0, 7]);
        assert_eq!((trace.lines[0].at, trace.rate(), trace.has_blocks()), (Duration::ZERO, None, true));
    }

    #[test]
    fn bad_lines_are_named() {
        let refused = |format, text: &str| Trace::parse(format, text).unwrap_err();
        let header = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
        assert!(refused(Format::Azure, header).contains("no requests"));
        for (line, why) in [
            ("2023-11-16 18:15:46,1", "expected TIMESTAMP"),
            ("2023-11-16 18:15:46,1,2,3", "expected TIMESTAMP"),
            ("yesterday,1,2", "not a time"),
            ("2023-13-16 18:15:46,1,2", "not a time"),
            ("2023-11-16 18:15:46,-1,2", "not a number"),
            ("2023-11-16 18:15:46,1,99999999", "beyond"),
        ] {
            let what = refused(Format::Azure, &format!("{header}{line}"));
            assert!(what.starts_with("line 2: ") && what.contains(why), "{what}");
        }
        for (line, why) in [
            ("{", "EOF"),
            (r#"{"timestamp": 0, "output_length": 1, "hash_ids": []}"#, "input_length is missing"),
            (r#"{"timestamp": 0, "input_length": 1, "output_length": 1}"#, "hash_ids is missing"),
            (r#"{"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [1]}"#, "needs 2 hash_ids"),
        ] {
            assert!(refused(Format::Mooncake, line).contains(why), "{line}");
        }
    }
}
