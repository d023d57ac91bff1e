//! `docs/CASES.md` names tests, and tests are renamed: every test that the table names must be there, and every row must say something.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A row of the table: its number and its cells behind it.
struct Row {
    number: String,
    cells: Vec<String>,
}

fn rows(text: &str) -> Vec<Row> {
    let numbered = |cell: &str| {
        let mut parts = cell.split('.');
        let (group, case) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        parts.next().is_none() && [group, case].iter().all(|p| !p.is_empty() && p.chars().all(|c| c.is_ascii_digit()))
    };
    let mut rows = Vec::new();
    for line in text.lines().filter(|line| line.starts_with('|')) {
        let mut cells = line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned());
        let number = cells.next().unwrap_or_default();
        if numbered(&number) || number == "also" {
            rows.push(Row { number, cells: cells.collect() });
        }
    }
    rows
}

/// The tests that a text names, as (file, function): what stands in backquotes and has `.rs::` in it.
fn tests(text: &str) -> Vec<(&str, &str)> {
    text.split('`')
        .skip(1)
        .step_by(2)
        .filter_map(|quoted| quoted.split_once("::").filter(|t| t.0.ends_with(".rs")))
        .collect()
}

fn what_is_wrong(root: &Path, text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut seen = BTreeMap::new();
    for row in rows(text) {
        let number = &row.number;
        if number != "also" && seen.insert(number.clone(), ()).is_some() {
            wrong.push(format!("{number} is there twice"));
        }
        let [_, _, outcome, evidence] = &row.cells[..] else {
            wrong.push(format!("{number} has {} cells behind its number, not 4", row.cells.len()));
            continue;
        };
        let named = tests(evidence);
        let reason =
            ["By construction: ", "Cannot occur: ", "PENDING: "].iter().any(|reason| evidence.contains(reason));
        if outcome.is_empty() || (named.is_empty() && !reason) {
            wrong.push(format!("{number} names neither a test nor a reason"));
        }
        for (file, function) in named {
            let source = fs::read_to_string(root.join(file)).unwrap_or_default();
            if !source.contains(&format!("fn {function}(")) && !source.contains(&format!("{function} => ")) {
                wrong.push(format!("{number} names {file}::{function}, which is not there"));
            }
        }
    }
    wrong
}

#[test]
fn every_case_has_its_test_or_its_reason() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("docs/CASES.md")).unwrap();
    let wrong = what_is_wrong(root, &text);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let rows = rows(&text);
    let pending = rows.iter().filter(|row| row.cells.iter().any(|cell| cell.contains("PENDING: "))).count();
    let named: usize = rows.iter().map(|row| row.cells.iter().map(|cell| tests(cell).len()).sum::<usize>()).sum();
    println!("{} cases, {named} tests named, {pending} cases pending", rows.len());
    assert!(rows.len() >= 45, "{} cases", rows.len());
}

#[test]
fn a_row_that_is_wrong_is_caught() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let wrong = |text: &str| what_is_wrong(root, text).len();
    let good = "| 1.01 | a#1 | fails | works | `tests/cases_table.rs::a_row_that_is_wrong_is_caught` |\n";
    assert_eq!(wrong(good), 0);
    assert_eq!(wrong(&good.repeat(2)), 1, "twice");
    assert_eq!(wrong("| 1.01 | a#1 | fails | works | `tests/cases_table.rs::no_such_test` |"), 1);
    assert_eq!(wrong("| 1.01 | a#1 | fails | works | `tests/no_such_file.rs::a` |"), 1);
    assert_eq!(wrong("| 1.01 | a#1 | fails | works | |"), 1);
    assert_eq!(wrong("| 1.01 | a#1 | fails | works | By construction: so it is |"), 0);
    assert_eq!(wrong("| 1.01 | a#1 | fails | works |"), 1);
    assert_eq!(wrong("| file | what |\n|---|---|\n| a | b |"), 0, "another table");
}
