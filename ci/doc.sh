#!/usr/bin/env bash
# Documentation without a broken link.
source "$(dirname "$0")/env.sh"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --all-features --no-deps --locked
