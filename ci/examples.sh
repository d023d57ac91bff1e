#!/usr/bin/env bash
# Every example, to its end; each within two minutes.
source "$(dirname "$0")/env.sh"
shopt -s nullglob
examples=(examples/*.rs)
if ((${#examples[@]} == 0)); then say "no examples" >&2; exit 1; fi
cargo build --release --examples --locked
for example in "${examples[@]}"; do
    name="$(basename "$example" .rs)"
    say "example $name"
    timeout 120 "$TARGET/release/examples/$name"
done
say "${#examples[@]} examples ran"
