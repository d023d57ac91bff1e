//! Keeps the invariants about what is absent: reads every source and document of the workspace and holds it to `tidy/rules.rs`.
//!
//! The rules are those of `docs/ARCHITECTURE.md`. Each has a test of its own that it catches what it is for.

use rules::{RULES, Source};
use std::fs;
use std::path::Path;

#[path = "tidy/lex.rs"]
mod lex;
#[path = "tidy/rules.rs"]
mod rules;

/// Folders that are not ours or not text.
const SKIPPED: &[&str] = &[".git", "__pycache__", "data", "golden", "node_modules", "vectors"];
/// Suffixes of sources and documents; files without a suffix are scripts and documents too.
const TEXT: &[&str] = &["c", "h", "ini", "md", "py", "pyi", "rs", "sh", "toml", "yml"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources() -> Vec<Source> {
    let mut found = Vec::new();
    collect(root(), &mut found);
    assert!(found.len() > 20, "only {} sources found", found.len());
    found
}

fn collect(folder: &Path, found: &mut Vec<Source>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            // Build output is known by the tag that cargo puts there, whatever its name.
            if !SKIPPED.contains(&name) && !name.starts_with("target") && !path.join("CACHEDIR.TAG").exists() {
                collect(&path, found);
            }
        } else if path.extension().is_none_or(|suffix| TEXT.iter().any(|text| suffix == *text)) && path.is_file() {
            let relative = path.strip_prefix(root()).unwrap().to_str().unwrap().replace('\\', "/");
            // What is no UTF-8 is data that ended up without a suffix.
            let Ok(text) = fs::read_to_string(&path) else { continue };
            found.push(Source::new(&relative, &text));
        }
    }
}

#[test]
fn every_file_keeps_the_rules() {
    let mut findings = Vec::new();
    for source in sources() {
        for rule in RULES {
            findings.extend(rule(&source).into_iter().map(|(line, what)| format!("{}:{line}: {what}", source.path)));
        }
    }
    findings.sort();
    findings.dedup();
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
}

/// Crates of the workspace and the crates of the workspace that each may depend on.
const DEPENDENCIES: &[(&str, &[&str])] = &[
    ("keygen", &[]),
    ("store", &[]),
    ("sched", &["engram-keygen", "engram-store"]),
    (".", &["engram-keygen", "engram-store", "engram-sched-core"]),
    ("loom-tests", &["engram-sched-core"]),
];

/// Lines of a manifest's dependency tables that name a crate of the workspace other than the allowed ones.
fn foreign_dependencies(manifest: &str, allowed: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    let mut in_dependencies = false;
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            let table = line.trim_matches(['[', ']']);
            in_dependencies = table.ends_with("dependencies") && table != "workspace.dependencies";
            // [dependencies.name]
            in_dependencies |= table.contains("dependencies.") && !table.starts_with("workspace.");
        }
        let ours = |word: &&str| *word == "engram-sched" || *word == "loom-tests" || word.starts_with("engram-");
        let words = line.split(|c: char| !c.is_alphanumeric() && c != '-' && c != '_');
        let code = !line.starts_with('#');
        found.extend(
            words.filter(|_| in_dependencies && code).filter(ours).filter(|w| !allowed.contains(w)).map(str::to_owned),
        );
    }
    found
}

#[test]
fn dependencies_point_one_way() {
    for (folder, allowed) in DEPENDENCIES {
        let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
        let foreign = foreign_dependencies(&manifest, allowed);
        assert!(foreign.is_empty(), "{folder}/Cargo.toml depends on {foreign:?}; allowed: {allowed:?}");
    }
    let members = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let members = members.lines().find(|line| line.starts_with("members")).unwrap().matches('"').count() / 2;
    assert_eq!(members + 1, DEPENDENCIES.len(), "a new crate needs its line in DEPENDENCIES");
}

#[test]
fn a_dependency_upwards_is_caught() {
    let caught = |manifest: &str| foreign_dependencies(manifest, &["engram-keygen"]);
    assert_eq!(
        caught("[dependencies]\nengram-store.workspace = true\nengram-keygen.workspace = true"),
        ["engram-store"]
    );
    assert_eq!(caught("[target.'cfg(unix)'.dev-dependencies]\nx = { package = \"engram-sched\" }"), ["engram-sched"]);
    assert_eq!(caught("[dependencies.engram-sched-core]\nworkspace = true"), ["engram-sched-core"]);
    assert!(
        caught(
            "[package]\nname = \"engram-store\"\n[features]\na = [\"engram-store/a\"]\n[dependencies]\n# engram-store"
        )
        .is_empty()
    );
}

#[test]
fn documents_exist() {
    let wanted = [
        "README.md",
        "CHANGELOG.md",
        "NOTICE",
        "LICENSE-MIT",
        "LICENSE-APACHE",
        "Cargo.lock",
        "deny.toml",
        ".ci/run",
        "ci/nightly",
        "docs/ARCHITECTURE.md",
    ];
    let missing: Vec<_> =
        wanted.into_iter().filter(|file| fs::read(root().join(file)).map_or(0, |text| text.len()) < 100).collect();
    assert!(missing.is_empty(), "missing or all but empty: {missing:?}");
}

/// Whether a text that calls scripts calls `ci/{stem}.sh`, by path or as a step.
fn calls(text: &str, stem: &str) -> bool {
    text.split_whitespace().any(|word| word == stem || word.contains(&format!("ci/{stem}.sh")))
}

#[test]
fn a_script_that_nothing_calls_is_caught() {
    assert!(calls("step 5 30 fmt", "fmt") && calls("x || ci/fmt.sh", "fmt"));
    assert!(!calls("step 5 30 fmtx\nci/fmt-x.sh", "fmt") && !calls("", "fmt"));
}

/// A script that nothing calls is one that nobody runs.
#[test]
fn every_ci_script_is_called() {
    let text: String = [".ci/run", "ci/nightly", "ci/test.sh", "ci/env.sh"]
        .iter()
        .map(|file| fs::read_to_string(root().join(file)).unwrap())
        .collect();
    for entry in fs::read_dir(root().join("ci")).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap();
        if path.extension().is_some_and(|suffix| suffix == "sh") && stem != "env" {
            assert!(calls(&text, stem), "nothing calls ci/{stem}.sh");
        }
    }
}
