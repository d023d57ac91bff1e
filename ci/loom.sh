#!/usr/bin/env bash
# The concurrency protocols, every interleaving up to a bound of preemptions (default 2; ci/nightly takes 3).
source "$(dirname "$0")/env.sh"
export LOOM_MAX_PREEMPTIONS="${LOOM_MAX_PREEMPTIONS:-2}"
say "at most $LOOM_MAX_PREEMPTIONS preemptions"
log="$TARGET/loom.log"
mkdir -p "$TARGET"
RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="$TARGET/loom" cargo test --release --locked -p loom-tests 2>&1 | tee "$log"
if ! grep -qE '^test .* ok$' "$log"; then say "no model ran" >&2; exit 1; fi
