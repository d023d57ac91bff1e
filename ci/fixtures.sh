#!/usr/bin/env bash
# Tiny checkpoints with expected rows, written by independent reference scripts into target/fixtures; ci/test.sh uses them.
source "$(dirname "$0")/env.sh"

if [[ ! -f "$REF/gen_fixture.py" ]]; then
    # The Qwen ones are in the repository; the one of V4.1 is 2.5 MB of noise, which is too much for it.
    stamp="$(sha256sum <tests/fixtures/qwen.tar.gz)"
    if [[ "$(cat "$FIXTURES/stamp" 2>/dev/null)" != "$stamp" ]]; then
        rm -rf "$FIXTURES"
        mkdir -p "$FIXTURES"
        tar -xzf tests/fixtures/qwen.tar.gz -C "$FIXTURES"
        : >"$FIXTURES/partial"
        printf '%s' "$stamp" >"$FIXTURES/stamp"
    fi
    say "no reference scripts in $REF (ENGRAM_REF_DIR names another folder): fixtures of Qwen alone, from tests/fixtures"
    exit 0
fi
[[ -f "$VENV/stamp" ]] || ci/setup.sh
stamp="$(cat "$REF"/*.py | sha256sum)"
if [[ "$(cat "$FIXTURES/stamp" 2>/dev/null)" == "$stamp" ]]; then
    say "fixtures are up to date"
    exit 0
fi
rm -rf "$FIXTURES"
mkdir -p "$FIXTURES"
export PYTHONDONTWRITEBYTECODE=1
for kind in qwen-fp8 qwen-bf16; do
    "$VENV/bin/python" "$REF/gen_fixture.py" "$kind" "$FIXTURES/$kind"
done
"$VENV/bin/python" "$REF/gen_fixture_v41.py" v41-split "$FIXTURES/v41-split"
printf '%s' "$stamp" >"$FIXTURES/stamp"
say "fixtures: $(du -sh "$FIXTURES" | cut -f1) in $FIXTURES"
