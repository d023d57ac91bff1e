#!/usr/bin/env bash
# Every crate that would be published builds from its package alone.
source "$(dirname "$0")/env.sh"
cargo package --workspace --exclude loom-tests --locked "$@"
