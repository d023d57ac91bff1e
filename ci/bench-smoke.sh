#!/usr/bin/env bash
# The benchmark on a small table: it ends, verifies its bytes, and its JSON has what it promises. No figure of it counts.
source "$(dirname "$0")/env.sh"
cargo build --release --locked
dir="$TARGET/bench-smoke"
out="$TARGET/bench-smoke.json"
rm -rf "$dir"
status=0
timeout 180 "$TARGET/release/engram-sched" --quiet --json bench --dir "$dir" --bytes 256MiB --duration 2s --rounds 2 --verify >"$out" || status=$?
# 3: a cold figure without its proof, which a table this small may not give.
if [[ $status != 0 && $status != 3 ]]; then say "bench ended with $status" >&2; exit 1; fi
python3 - "$out" <<'PYTHON'
import json, sys
report = json.load(open(sys.argv[1]))
for key in ("config", "environment", "arms"):
    assert key in report, f"no {key}"
assert report["arms"], "no arm ran"
for arm in report["arms"]:
    checked, wrong = arm["verify"]["rows_checked"], arm["verify"]["mismatches"]
    assert checked > 0 and wrong == 0, f"{arm['issue']}: {wrong} of {checked} rows differ"
    print(f"-- {arm['issue']}: {checked} rows checked, 0 differ, cold {arm['validity']['cold']}, backend {arm['reads']['backend']}")
PYTHON
rm -rf "$dir"
