#!/usr/bin/env bash
# All tests: cargo test --workspace --all-features, with the real tokenizer and the fixtures where they can be had.
# A test that cannot run here prints a line `SKIP: name: what it lacks`; these lines are repeated at the end. In CI they fail the run.
source "$(dirname "$0")/env.sh"

[[ -f "$VENV/stamp" ]] || ci/setup.sh || say "no Python environment: tests that need the real tokenizer are skipped"
[[ -f "$FIXTURES/stamp" ]] || ci/fixtures.sh || say "no fixtures: tests that need them are skipped"

tokenizer="$(v41_tokenizer)"
if [[ -n "$tokenizer" ]]; then export ENGRAM_V41_TOKENIZER="$tokenizer"; fi
if [[ -f "$FIXTURES/stamp" ]]; then export ENGRAM_FIXTURES="$FIXTURES"; fi

log="$TARGET/test.log"
mkdir -p "$TARGET"
# --show-output: cargo hides what passing tests print, and with it the SKIP lines.
status=0
cargo test --workspace --all-features --locked --no-fail-fast "$@" -- --show-output 2>&1 | tee "$log" || status=$?

skips="$(grep -h '^SKIP: ' "$log" | sort -u || true)"
passed="$(awk '/^test result:/ { n += $4 } END { print n + 0 }' "$log")"
say "$passed tests passed, $(grep -c . <<<"$skips" || true) skipped"
if [[ -n "$skips" ]]; then printf '%s\n' "$skips"; fi
if ((status != 0)); then
    grep -E '^(test .* FAILED|error(\[|:).*)$' "$log" | sort -u || true
    exit "$status"
fi
if ((passed == 0)); then say "no test ran" >&2; exit 1; fi
if strict; then
    # Fixtures come from outside the repository; everything else CI can have.
    [[ -n "${ENGRAM_FIXTURES:-}" ]] || skips="$(grep -v ENGRAM_FIXTURES <<<"$skips" || true)"
    [[ ! -e "$FIXTURES/partial" ]] || skips="$(grep -v ': not among those of the repository$' <<<"$skips" || true)"
    # What a container may refuse even root.
    allowed='^SKIP: (cannot mount ramfs: |no loop device: |no ext4 on /dev/loop|no blkio throttle for the temporary folder.s device: |a_disk_that_fills_up_leaves_nothing: )'
    if grep -qE "$allowed" <<<"$skips"; then
        say "allowed, because the environment refuses it:"
        grep -E "$allowed" <<<"$skips"
        skips="$(grep -vE "$allowed" <<<"$skips" || true)"
    fi
    if [[ -n "$skips" ]]; then say "skipped in CI, where it should run" >&2; exit 1; fi
fi
