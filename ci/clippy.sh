#!/usr/bin/env bash
# Lints, as errors: every target and feature, and the crates without features as they are published.
source "$(dirname "$0")/env.sh"
cargo clippy --workspace --all-targets --all-features --locked -- -D warnings
cargo clippy --workspace --no-default-features --locked -- -D warnings
