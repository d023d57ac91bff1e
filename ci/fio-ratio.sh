#!/usr/bin/env bash
# Reads/s of the scheduler as a share of fio's on the same table: each round runs ours, fio, fio, ours, so that drift hits both alike.
# Usage: ci/fio-ratio.sh TABLE_DIR [BENCH_ARGUMENT...]; ROUNDS (5) and SECONDS_EACH (10) from the environment.
# Exits 3 if a cold run of ours lacks its proof: then the ratio counts for nothing.
source "$(dirname "$0")/env.sh"
if (($# == 0)); then say "usage: ci/fio-ratio.sh TABLE_DIR [BENCH_ARGUMENT...]" >&2; exit 2; fi
command -v fio >/dev/null || { say "fio is missing: apt-get install fio" >&2; exit 1; }
table="$(realpath "$1")"
shift
exec python3 - "$TARGET/release/engram-sched" "$table" "${ROUNDS:-5}" "${SECONDS_EACH:-10}" "$@" <<'PYTHON'
import json, pathlib, statistics, subprocess, sys

sched, table, rounds, seconds, *more = sys.argv[1:]
rounds, seconds, void = int(rounds), int(seconds), False
file = max((f for f in pathlib.Path(table).rglob("*") if f.is_file()), key=lambda f: f.stat().st_size)
inspected = json.loads(subprocess.run([sched, "--quiet", "--json", "inspect", table], check=True, capture_output=True).stdout)

def find(value, key):
    """The first value of a key, anywhere in the report."""
    if isinstance(value, dict):
        if key in value:
            return value[key]
        value = list(value.values())
    if isinstance(value, list):
        return next((found for found in (find(v, key) for v in value) if found is not None), None)
    return None

row_bytes = find(inspected, "row_bytes") or 160
# A row of r bytes crosses a page border, so that two pages are read, in (r - 1) of 4096 cases.
double = 3 if row_bytes <= 160 else 6 if row_bytes <= 264 else round(100 * (row_bytes - 1) / 4096)
split = f"4k/{100 - double}:8k/{double}"

def ours():
    global void
    run = subprocess.run(
        [sched, "--quiet", "--json", "bench", table, "--batch-tokens", "512", "--step-time", "0",
         "--rounds", "1", "--duration", f"{seconds}s", *more], stdout=subprocess.PIPE)
    if run.returncode not in (0, 3):
        sys.exit(f"bench ended with {run.returncode}")
    void |= run.returncode == 3
    return json.loads(run.stdout)["arms"][0]["throughput"]["reads_per_s"]

def fio():
    rates = []
    for jobs in (1, 2):
        run = subprocess.run(
            ["fio", "--name=rows", f"--filename={file}", "--readonly", "--rw=randread", f"--bssplit={split}", "--direct=1",
             "--ioengine=io_uring", "--iodepth=64", f"--numjobs={jobs}", "--group_reporting", "--time_based",
             f"--runtime={seconds}", "--output-format=json"], check=True, capture_output=True)
        rates.append(json.loads(run.stdout)["jobs"][0]["read"]["iops"])
    return max(rates)

ratios = []
print(f"-- {file}: rows of {row_bytes} B, fio --bssplit={split}, best of 1 and 2 jobs", flush=True)
for number in range(rounds):
    a, f, g, b = ours(), fio(), fio(), ours()
    ratios.append((a + b) / (f + g))
    print(f"-- round {number + 1}: ours {a:.0f} {b:.0f}, fio {f:.0f} {g:.0f} reads/s, ratio {ratios[-1]:.3f}", flush=True)
print(f"-- ratio of reads/s: median {statistics.median(ratios):.3f}, min {min(ratios):.3f}, max {max(ratios):.3f}, {rounds} rounds")
sys.exit(3 if void else 0)
PYTHON
