//! The rules for one file each: a source in, what is wrong with it out. Every rule has a test that it catches what it is for.

use crate::lex::{Token, code_of, paths_of, production, tokens_of};

/// Lines of one source file.
const LINES_MAX: usize = 700;

/// One file of the repository.
pub(crate) struct Source {
    /// From the repository's root, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
    all: Vec<Token>,
    production: Vec<Token>,
}

/// What is wrong: line (0: the file) and a sentence.
pub(crate) type Finding = (usize, String);

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let all = if path.ends_with(".rs") { tokens_of(&code_of(text)) } else { Vec::new() };
        let production = if is_test(path) { Vec::new() } else { production(&all) };
        Self { path: path.to_owned(), text: text.to_owned(), all, production }
    }

    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    fn under(&self, prefixes: &[&str]) -> bool {
        prefixes.iter().any(|prefix| self.path.starts_with(prefix))
    }
}

/// Tests, benches and examples, whose code is held to fewer rules.
fn is_test(path: &str) -> bool {
    let mut parts = path.split('/');
    path.starts_with("loom-tests/")
        || path.ends_with("/tests.rs")
        || parts.any(|part| matches!(part, "tests" | "benches" | "examples"))
}

/// All rules for single files.
pub(crate) const RULES: &[fn(&Source) -> Vec<Finding>] = &[
    keygen_is_pure,
    store_knows_no_threads,
    concurrency_has_one_door,
    libraries_do_not_print,
    backends_know_no_requests,
    batch_touches_no_atomic,
    unsafe_stays_in_its_places,
    opens_with_its_purpose,
    is_ascii,
    is_short,
    leaves_nothing_open,
    names_no_home,
    links_lead_somewhere,
];

fn names_any(tokens: &[Token], forbidden: &[&str], why: &str) -> Vec<Finding> {
    let hit = |path: &str| {
        forbidden.iter().any(|f| path.strip_prefix(f).is_some_and(|rest| rest.is_empty() || rest.starts_with("::")))
    };
    paths_of(tokens)
        .into_iter()
        .filter(|(_, path)| hit(path) || path == "std::*")
        .map(|(line, path)| (line, format!("names `{path}`: {why}")))
        .collect()
}

/// Macros called as `name!`.
fn calls_macro(tokens: &[Token], names: &[&str], why: &str) -> Vec<Finding> {
    tokens
        .windows(2)
        .filter(|pair| pair[1].is('!') && pair[0].name().is_some_and(|name| names.contains(&name)))
        .map(|pair| (pair[0].line, format!("calls `{}!`: {why}", pair[0].name().unwrap_or_default())))
        .collect()
}

fn keygen_is_pure(source: &Source) -> Vec<Finding> {
    if !source.under(&["keygen/src/"]) {
        return Vec::new();
    }
    let forbidden =
        ["std::fs", "std::io", "std::sync", "std::thread", "std::time", "std::net", "std::process", "std::env"];
    names_any(&source.production, &forbidden, "keygen is a function of spec, history and token")
}

/// Roots and modules of concurrency primitives.
const CONCURRENCY: &[&str] = &[
    "std::sync",
    "std::thread",
    "std::cell::UnsafeCell",
    "std::cell::SyncUnsafeCell",
    "std::thread_local",
    "thread_local",
    "crossbeam",
    "crossbeam_channel",
    "crossbeam_epoch",
    "crossbeam_queue",
    "crossbeam_utils",
    "atomic_waker",
    "parking_lot",
    "concurrent_queue",
    "rayon",
    "loom::*",
    "loom::cell",
    "loom::future",
    "loom::hint",
    "loom::sync",
    "loom::thread",
];

fn store_knows_no_threads(source: &Source) -> Vec<Finding> {
    if !source.under(&["store/src/"]) {
        return Vec::new();
    }
    names_any(&source.production, CONCURRENCY, "store knows files and formats, no threads and no atomics")
}

/// Where primitives may be named: folder, which, why. Everything else goes through `sched/src/sync/`.
const DOORS: &[(&str, &[&str], &str)] = &[
    ("sched/src/sync/", CONCURRENCY, "the door itself"),
    (
        "src/bin/engram-sched/",
        &["std::sync", "std::thread"],
        "the emulated engine and Ctrl-C are a user of the library",
    ),
];

fn concurrency_has_one_door(source: &Source) -> Vec<Finding> {
    let allowed = DOORS.iter().find(|(folder, ..)| source.path.starts_with(folder)).map_or(&[][..], |door| door.1);
    let forbidden: Vec<&str> = CONCURRENCY.iter().copied().filter(|name| !allowed.contains(name)).collect();
    names_any(&source.production, &forbidden, "concurrency primitives come from `sched/src/sync/` alone")
}

fn libraries_do_not_print(source: &Source) -> Vec<Finding> {
    if !source.under(&["keygen/src/", "store/src/", "sched/src/"]) {
        return Vec::new();
    }
    calls_macro(
        &source.production,
        &["print", "println", "eprint", "eprintln"],
        "libraries return values, the face speaks",
    )
}

fn backends_know_no_requests(source: &Source) -> Vec<Finding> {
    if !source.under(&["sched/src/io/", "sched/src/io.rs"]) {
        return Vec::new();
    }
    let cells_of_memory = ["Cell", "RefCell", "OnceCell", "LazyCell", "UnsafeCell"];
    let word = |word: &str| matches!(word.trim_end_matches('s'), "request" | "group" | "cell" | "plan" | "scheduler");
    let mut findings = Vec::new();
    for (line, path) in paths_of(&source.production) {
        let mut segments = path.split("::");
        let inside = matches!(segments.clone().next(), Some("crate" | "super"));
        let types = |name: &str| {
            name.starts_with(char::is_uppercase)
                && !cells_of_memory.contains(&name)
                && camel_words(name).iter().any(|w| word(w))
        };
        if segments.any(|segment| types(segment) || (inside && word(segment))) {
            findings.push((
                line,
                format!("names `{path}`: a backend knows files, offsets and slots, not what a read is for"),
            ));
        }
    }
    findings
}

/// `RequestId` -> `request`, `id`.
fn camel_words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for c in name.chars() {
        match words.last_mut() {
            Some(word) if !c.is_uppercase() => word.push(c),
            _ => words.push(c.to_lowercase().collect()),
        }
    }
    words
}

fn batch_touches_no_atomic(source: &Source) -> Vec<Finding> {
    if !source.under(&["sched/src/batch.rs", "sched/src/batch/"]) {
        return Vec::new();
    }
    let forbidden = ["std::sync", "crate::sync", "super::sync", "crate::protocol", "std::thread", "std::io", "std::fs"];
    let mut findings = names_any(&source.production, &forbidden, "batch is pure");
    let atomics =
        source.production.iter().filter(|t| t.name().is_some_and(|n| n.starts_with("Atomic") || n == "fence"));
    findings.extend(atomics.map(|t| (t.line, format!("names `{}`: batch is pure", t.name().unwrap_or_default()))));
    findings
}

/// Where `unsafe` may stand: the primitives, the kernel's and the memory's boundary, the protocols that hand memory over.
const UNSAFE: &[&str] = &[
    "sched/src/sync/",
    "sched/src/io/",
    "sched/src/protocol/",
    "sched/src/memory.rs",
    "sched/src/delivery.rs",
    "sched/src/engine_memory.rs",
];

fn unsafe_stays_in_its_places(source: &Source) -> Vec<Finding> {
    if source.under(UNSAFE) {
        return Vec::new();
    }
    let uses = source.production.iter().filter(|t| t.name() == Some("unsafe"));
    uses.map(|t| (t.line, format!("`unsafe` outside {}", UNSAFE.join(", ")))).collect()
}

fn opens_with_its_purpose(source: &Source) -> Vec<Finding> {
    let opens = !source.is_rust() || source.text.starts_with("//! ");
    if opens { Vec::new() } else { vec![(1, "does not open with `//!`: what the file is, in a sentence".into())] }
}

fn is_ascii(source: &Source) -> Vec<Finding> {
    let lines = source.text.lines().enumerate();
    lines
        .filter_map(|(i, line)| {
            line.chars().find(|c| !c.is_ascii()).map(|c| (i + 1, format!("U+{:04X} is no plain ASCII", u32::from(c))))
        })
        .collect()
}

fn is_short(source: &Source) -> Vec<Finding> {
    let lines = source.text.lines().count();
    let counted = [".rs", ".py", ".sh"].iter().any(|suffix| source.path.ends_with(suffix));
    if counted && lines > LINES_MAX { vec![(0, format!("{lines} lines, at most {LINES_MAX}"))] } else { Vec::new() }
}

fn leaves_nothing_open(source: &Source) -> Vec<Finding> {
    let mut findings = calls_macro(&source.all, &["todo", "unimplemented", "dbg"], "unfinished");
    // In pieces, so that this file does not find itself.
    let marks = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
    for (i, line) in source.text.lines().enumerate() {
        let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
        if let Some(mark) = words.find(|word| marks.contains(word)) {
            findings.push((i + 1, format!("{mark}: finish it, or write it down as an issue")));
        }
    }
    findings
}

fn names_no_home(source: &Source) -> Vec<Finding> {
    let homes = [concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/Us", "ers/")];
    let lines = source.text.lines().enumerate();
    lines
        .filter(|(_, line)| homes.iter().any(|home| line.contains(home)))
        .map(|(i, _)| (i + 1, "names a path of one machine".to_owned()))
        .collect()
}

fn links_lead_somewhere(source: &Source) -> Vec<Finding> {
    if !source.path.ends_with(".md") {
        return Vec::new();
    }
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = root.join(&source.path).parent().map(std::path::Path::to_path_buf).unwrap_or_default();
    let mut findings = Vec::new();
    for (i, line) in source.text.lines().enumerate() {
        for target in line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target) {
            let file = target.split('#').next().unwrap_or_default();
            if !file.is_empty() && !file.contains("://") && !folder.join(file).exists() {
                findings.push((i + 1, format!("links to `{target}`, which is not there")));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of findings of one rule.
    fn found(rule: fn(&Source) -> Vec<Finding>, path: &str, text: &str) -> usize {
        rule(&Source::new(path, text)).len()
    }

    #[test]
    fn keygen() {
        let catch = |text| found(keygen_is_pure, "keygen/src/a.rs", text);
        assert_eq!(catch("use std::{fs, fmt, io::{self, Read}};"), 3);
        assert_eq!(catch("fn f() { let t = core::time::Duration::ZERO; }"), 1);
        assert_eq!(catch("use std::*;"), 1);
        assert_eq!(catch("// std::fs\nuse std::fmt; const S: &str = \"std::io\"; use std::iota;"), 0);
        assert_eq!(catch("#[cfg(test)] mod tests { use std::fs; }"), 0);
        assert_eq!(found(keygen_is_pure, "keygen/tests/a.rs", "use std::fs;"), 0);
    }

    #[test]
    fn store() {
        let catch = |text| found(store_knows_no_threads, "store/src/a.rs", text);
        assert_eq!(catch("use std::sync::atomic::AtomicU8;"), 1);
        assert_eq!(catch("use std::{fs, thread};"), 1);
        assert_eq!(catch("use std::fs; use std::io;"), 0);
    }

    #[test]
    fn one_door() {
        let catch = |path, text| found(concurrency_has_one_door, path, text);
        for text in [
            "use std::sync::Arc;",
            "fn f() { std::thread::yield_now(); }",
            "use core::cell::UnsafeCell;",
            "use crossbeam_queue::ArrayQueue;",
            "use loom::sync::Arc;",
            "thread_local! { static A: u8 = 0; }",
        ] {
            assert_eq!(catch("sched/src/actor.rs", text), 1, "{text}");
            assert_eq!(catch("src/lib.rs", text), 1, "{text}");
            assert_eq!(catch("sched/src/sync/mod.rs", text), 0, "{text}");
            assert_eq!(catch("sched/tests/a.rs", text), 0, "{text}");
        }
        assert_eq!(
            catch("sched/src/actor.rs", "use crate::sync::{Arc, UnsafeCell, thread}; #[cfg(loom)] use a::b;"),
            0
        );
        assert_eq!(catch("src/bin/engram-sched/main.rs", "use std::thread; use crossbeam_queue::A;"), 1);
    }

    #[test]
    fn printing() {
        assert_eq!(found(libraries_do_not_print, "sched/src/a.rs", "fn f() { println!(\"x\"); eprint!(\"y\") }"), 2);
        assert_eq!(found(libraries_do_not_print, "src/a.rs", "fn f() { println!(\"x\"); }"), 0);
    }

    #[test]
    fn backends() {
        let catch = |text| found(backends_know_no_requests, "sched/src/io/pread.rs", text);
        assert_eq!(catch("use crate::{RequestId, io::File};"), 1);
        assert_eq!(catch("use crate::group::Slab; struct A { b: PlanCell, c: super::cells::X }"), 3);
        assert_eq!(
            catch("use crate::sync::UnsafeCell; /* a Request */ struct Cancelled { request: u8, cells: Cell<u8> }"),
            0
        );
        assert_eq!(found(backends_know_no_requests, "sched/src/actor.rs", "use crate::RequestId;"), 0);
    }

    #[test]
    fn batch() {
        let catch = |text| found(batch_touches_no_atomic, "sched/src/batch.rs", text);
        assert_eq!(catch("use crate::sync::Mutex;"), 1);
        assert_eq!(catch("fn f(a: &AtomicU32) { fence(x) }"), 2);
        assert_eq!(catch("use std::cmp::Ordering; // an AtomicU32\nfn f(a: Ordering) {}"), 0);
    }

    #[test]
    fn unsafety() {
        let catch = |path, text| found(unsafe_stays_in_its_places, path, text);
        assert_eq!(catch("src/lib.rs", "fn f() { unsafe { g() } }"), 1);
        assert_eq!(catch("store/src/a.rs", "unsafe impl Send for A {}"), 1);
        assert_eq!(
            catch("store/src/a.rs", "// unsafe\n#![deny(unsafe_op_in_unsafe_fn)] const S: &str = \"unsafe\";"),
            0
        );
        assert_eq!(catch("sched/src/io/arena.rs", "unsafe impl Send for A {}"), 0);
    }

    #[test]
    fn texts() {
        assert_eq!(found(opens_with_its_purpose, "a.rs", "// A file.\n//! Late."), 1);
        assert_eq!(found(opens_with_its_purpose, "a.rs", "//! A file."), 0);
        assert_eq!(found(is_ascii, "a.md", "plain\n\u{2192} not\n"), 1);
        assert_eq!(found(is_short, "a.rs", &"\n".repeat(LINES_MAX + 1)), 1);
        assert_eq!(found(is_short, "a.rs", &"\n".repeat(LINES_MAX)), 0);
        assert_eq!(
            found(leaves_nothing_open, "a.rs", "fn f() { todo!() }\n#[test] fn g() { dbg!(1); unimplemented!() }"),
            3
        );
        assert_eq!(found(leaves_nothing_open, "a.md", concat!("TO", "DO: more")), 1);
        assert_eq!(found(leaves_nothing_open, "a.rs", "// todo!() is refused\nlet todo = 1; if a != todo {}"), 0);
        assert_eq!(found(names_no_home, "a.md", concat!("see /ho", "me/me/x")), 1);
        assert_eq!(found(links_lead_somewhere, "a.md", "[a](none.md) [b](Cargo.toml) [c](https://x) [d](#here)"), 1);
    }
}
