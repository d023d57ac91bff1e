#!/usr/bin/env bash
# Every example, to its end; each within two minutes.
source "$(dirname "$0")/env.sh"
shopt -s nullglob
examples=(examples/*.rs)
if ((${#examples[@]})); then cargo build --release --examples --locked; fi
for example in "${examples[@]}"; do
    name="$(basename "$example" .rs)"
    say "example $name"
    timeout 120 "$TARGET/release/examples/$name"
done
say "${#examples[@]} examples ran"
