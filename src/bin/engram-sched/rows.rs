//! `rows`: the row ids of tokens.
//!
//! Every id is checked before the first line is printed: a bad token never leaves half a result behind.

use crate::args::RowsArgs;
use crate::failure::Failure;
use crate::output::{Output, written};
use crate::{interrupt, selection, tokens};
use engram_sched::{History, Keygen, Token};
use std::fmt::Write as _;
use std::io::Write as _;

pub(crate) fn run(args: &RowsArgs, out: &Output) -> Result<(), Failure> {
    let keygen = selection::keygen(&args.model, args.token_map.as_deref(), out)?;
    let history = checked(&keygen, &args.history, "--history")?;
    let tokens = match &args.tokens {
        None => checked(&keygen, &args.token, "token")?,
        Some(path) => {
            let tokens = tokens::read(path)?;
            if let Some(at) = tokens.iter().position(|&token| keygen.check(token).is_err()) {
                return Err(Failure::failed(format!(
                    "{}: token {at} is {}, outside the vocabulary: legal ids are 0 to {}; is this the model's tokenizer?",
                    tokens::shown(path),
                    tokens[at],
                    keygen.vocab() - 1
                )));
            }
            tokens
        }
    };
    let mut past = History::new(&keygen, 0);
    if !history.is_empty() {
        past.seed(&keygen, &history, None, history.len() as u64)?;
    }
    let mut stdout = std::io::BufWriter::new(std::io::stdout().lock());
    let mut rows = vec![0; keygen.columns()];
    let mut line = String::new();
    for (pos, token) in tokens.into_iter().enumerate() {
        interrupt::check()?;
        let window = keygen.push(&mut past, token, true);
        line.clear();
        let dead = if window.dead() { r#","dead":true"# } else { "" };
        // Writing to a string cannot fail.
        let _ = write!(line, r#"{{"pos":{pos},"token":{token}{dead},"layers":["#);
        for table in 0..keygen.tables() {
            keygen.token_rows(table, &window, &mut rows);
            let comma = if table > 0 { "," } else { "" };
            let _ = write!(line, r#"{comma}{{"layer":{},"rows":["#, keygen.layer(table));
            for (column, row) in rows.iter().enumerate() {
                let comma = if column > 0 { "," } else { "" };
                let _ = write!(line, "{comma}{row}");
            }
            line.push_str("]}");
        }
        line.push_str("]}\n");
        written(stdout.write_all(line.as_bytes()))?;
    }
    written(stdout.flush())
}

/// Ids of the command line, all within the vocabulary.
fn checked(keygen: &Keygen, ids: &[i64], what: &str) -> Result<Vec<Token>, Failure> {
    ids.iter()
        .map(|&id| match Token::try_from(id) {
            Ok(token) if keygen.check(token).is_ok() => Ok(token),
            _ => Err(Failure::usage(format!(
                "{what} {id} is outside the vocabulary: legal ids are 0 to {}",
                keygen.vocab() - 1
            ))),
        })
        .collect()
}
