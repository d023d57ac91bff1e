//! As much of Rust's syntax as the rules need: what is code, which names it uses, what is a test.

/// A name, `::`, or any other character of the code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Name(String),
    PathSeparator,
    Other(char),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Token {
    pub(crate) line: usize,
    pub(crate) kind: Kind,
}

impl Token {
    pub(crate) fn name(&self) -> Option<&str> {
        if let Kind::Name(name) = &self.kind { Some(name) } else { None }
    }

    pub(crate) fn is(&self, c: char) -> bool {
        self.kind == Kind::Other(c)
    }
}

/// The text with comments, strings and characters replaced by blanks; line numbers stay.
pub(crate) fn code_of(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut i = 0;
    while i < chars.len() {
        let end = skipped_until(&chars, i);
        if end > i {
            code.extend(chars[i..end].iter().map(|&c| if c == '\n' { c } else { ' ' }));
            i = end;
        } else {
            code.push(chars[i]);
            i += 1;
        }
    }
    code
}

/// End of the comment or literal that begins at `i`; `i` if none does.
fn skipped_until(chars: &[char], i: usize) -> usize {
    let at = |k: usize| chars.get(k).copied().unwrap_or('\0');
    let after_name = i > 0 && (chars[i - 1].is_alphanumeric() || chars[i - 1] == '_');
    match at(i) {
        '/' if at(i + 1) == '/' => (i..chars.len()).find(|&k| chars[k] == '\n').unwrap_or(chars.len()),
        '/' if at(i + 1) == '*' => {
            let (mut depth, mut k) = (0usize, i);
            while k < chars.len() {
                match (at(k), at(k + 1)) {
                    ('/', '*') => (depth, k) = (depth + 1, k + 2),
                    ('*', '/') => (depth, k) = (depth - 1, k + 2),
                    _ => k += 1,
                }
                if depth == 0 {
                    break;
                }
            }
            k.min(chars.len())
        }
        '"' => quoted_until(chars, i, '"'),
        // A character, not a lifetime: 'x' or '\...'.
        '\'' if at(i + 1) == '\\' || (at(i + 2) == '\'' && at(i + 1) != '\'') => quoted_until(chars, i, '\''),
        'r' | 'b' | 'c' if !after_name => {
            let mut k = i + 1 + usize::from(at(i) != 'r' && at(i + 1) == 'r');
            let raw = at(k - 1) == 'r';
            let hashes = (k..).take_while(|&h| raw && at(h) == '#').count();
            k += hashes;
            match at(k) {
                '"' if raw => {
                    let close = |e: usize| at(e) == '"' && (1..=hashes).all(|h| at(e + h) == '#');
                    (k + 1..chars.len()).find(|&e| close(e)).map_or(chars.len(), |e| e + 1 + hashes)
                }
                '"' => quoted_until(chars, k, '"'),
                '\'' if at(i) == 'b' => quoted_until(chars, k, '\''),
                _ => i,
            }
        }
        _ => i,
    }
}

fn quoted_until(chars: &[char], open: usize, quote: char) -> usize {
    let mut k = open + 1;
    while k < chars.len() && chars[k] != quote {
        k += 1 + usize::from(chars[k] == '\\');
    }
    (k + 1).min(chars.len())
}

/// Names, `::` and punctuation of code that [`code_of`] has cleaned.
pub(crate) fn tokens_of(code: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    for (index, text) in code.lines().enumerate() {
        let (line, mut rest) = (index + 1, text.trim_start());
        while let Some(first) = rest.chars().next() {
            let (kind, len) = if first.is_alphanumeric() || first == '_' {
                let len = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                (Kind::Name(rest[..len].to_owned()), len)
            } else if rest.starts_with("::") {
                (Kind::PathSeparator, 2)
            } else {
                (Kind::Other(first), first.len_utf8())
            };
            tokens.push(Token { line, kind });
            rest = rest[len..].trim_start();
        }
    }
    tokens
}

/// Without the items under `#[cfg(test)]`.
pub(crate) fn production(tokens: &[Token]) -> Vec<Token> {
    let mut kept = Vec::with_capacity(tokens.len());
    let mut i = 0;
    while i < tokens.len() {
        let attribute = attribute_end(tokens, i);
        if let Some(end) = attribute
            && is_cfg_test(&tokens[i..end])
        {
            i = item_end(tokens, end);
        } else {
            let end = attribute.unwrap_or(i + 1);
            kept.extend_from_slice(&tokens[i..end]);
            i = end;
        }
    }
    kept
}

/// End of the outer attribute `#[...]` that begins at `i`.
fn attribute_end(tokens: &[Token], i: usize) -> Option<usize> {
    (tokens[i].is('#') && tokens.get(i + 1)?.is('[')).then(|| closing(tokens, i + 1) + 1)
}

fn is_cfg_test(attribute: &[Token]) -> bool {
    let names: Vec<_> = attribute.iter().filter_map(Token::name).collect();
    names.first() == Some(&"cfg") && names.contains(&"test") && !names.contains(&"not") && !names.contains(&"any")
}

/// End of the item that begins at `i`, further attributes included.
fn item_end(tokens: &[Token], mut i: usize) -> usize {
    while i < tokens.len()
        && let Some(end) = attribute_end(tokens, i)
    {
        i = end;
    }
    let is_use = tokens.get(i..i + 2).is_some_and(|two| two.iter().any(|t| t.name() == Some("use")));
    while i < tokens.len() {
        match tokens[i].kind {
            Kind::Other(';') => return i + 1,
            Kind::Other('{') if !is_use => return closing(tokens, i) + 1,
            Kind::Other('(' | '[' | '{') => i = closing(tokens, i) + 1,
            _ => i += 1,
        }
    }
    i
}

/// Index of the bracket that closes the one at `open`.
fn closing(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0usize;
    for (k, token) in tokens.iter().enumerate().skip(open) {
        match token.kind {
            Kind::Other('(' | '[' | '{') => depth += 1,
            Kind::Other(')' | ']' | '}') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return k;
        }
    }
    tokens.len() - 1
}

/// Every path that the code names, `use` groups written out; `core` and `alloc` count as `std`. One name alone is a path too.
pub(crate) fn paths_of(tokens: &[Token]) -> Vec<(usize, String)> {
    let mut paths = Vec::new();
    let mut i = 0;
    while i < tokens.len() {
        i = if tokens[i].name().is_some() { path(tokens, i, "", &mut paths) } else { i + 1 };
    }
    paths
}

fn path(tokens: &[Token], mut i: usize, prefix: &str, paths: &mut Vec<(usize, String)>) -> usize {
    let mut path_so_far = prefix.to_owned();
    let line = tokens[i].line;
    loop {
        match (tokens[i].name(), path_so_far.is_empty()) {
            (Some("core" | "alloc"), true) => path_so_far.push_str("std"),
            (Some(name), true) => path_so_far.push_str(name),
            (Some(name), false) => path_so_far = format!("{path_so_far}::{name}"),
            (None, _) => unreachable!("called at a name"),
        }
        i += 1;
        if tokens.get(i).map(|t| &t.kind) != Some(&Kind::PathSeparator) {
            break;
        }
        match tokens.get(i + 1) {
            Some(next) if next.name().is_some() => i += 1,
            Some(next) if next.is('*') => {
                path_so_far.push_str("::*");
                i += 2;
                break;
            }
            Some(next) if next.is('{') => {
                let end = closing(tokens, i + 1);
                let mut k = i + 2;
                while k < end {
                    k = match &tokens[k].kind {
                        Kind::Name(_) => path_in_group(tokens, k, &path_so_far, paths),
                        Kind::Other('*') => {
                            paths.push((tokens[k].line, format!("{path_so_far}::*")));
                            k + 1
                        }
                        _ => k + 1,
                    };
                }
                return end + 1;
            }
            _ => break,
        }
    }
    paths.push((line, path_so_far));
    i
}

/// A name of a group, its new name (`as x`) passed over.
fn path_in_group(tokens: &[Token], k: usize, prefix: &str, paths: &mut Vec<(usize, String)>) -> usize {
    let end = path(tokens, k, prefix, paths);
    if tokens.get(end).and_then(Token::name) == Some("as") { end + 2 } else { end }
}

#[test]
fn comments_and_literals_are_no_code() {
    let text = "a /* b /* c */ d */ e // f\n\"g \\\" h\" i r#\"j \" k\"# l b\"m\" n 'o' p '\\'' q 'r: &'s u rb v br\"w\" c\"x\" y";
    let tokens = tokens_of(&code_of(text));
    let names: Vec<_> = tokens.iter().filter_map(Token::name).collect();
    assert_eq!(names, ["a", "e", "i", "l", "n", "p", "q", "r", "s", "u", "rb", "v", "y"]);
    assert_eq!(tokens.iter().find(|t| t.name() == Some("i")).unwrap().line, 2);
}

#[test]
fn test_items_are_no_production() {
    let text = "a; #[cfg(test)] mod t { b } c; #[cfg(test)] #[x] use d::{e}; #[cfg(not(test))] fn f() {} #[cfg(test)] mod g; h \
                #[cfg(all(test, unix))] fn i(j: [u8; 3]) -> k { l } m #[cfg(any(test, n))] o";
    let tokens = production(&tokens_of(&code_of(text)));
    let names: Vec<_> = tokens.iter().filter_map(Token::name).collect();
    assert_eq!(names, ["a", "c", "cfg", "not", "test", "fn", "f", "h", "m", "cfg", "any", "test", "n", "o"]);
}

#[test]
fn paths_are_written_out() {
    let text = "use std::{fs, io::{self, Read}, sync::*, time as t}; let x = ::core::hint::f(a::<u8>::b);";
    let paths: Vec<_> = paths_of(&tokens_of(text)).into_iter().map(|(_, path)| path).collect();
    assert_eq!(
        paths,
        [
            "use",
            "std::fs",
            "std::io::self",
            "std::io::Read",
            "std::sync::*",
            "std::time",
            "let",
            "x",
            "std::hint::f",
            "a",
            "u8",
            "b"
        ]
    );
}
