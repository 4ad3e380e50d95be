#!/usr/bin/env bash
# Writes requirements/*.txt anew from requirements/*.in: pins with hashes, no index addresses, for every platform and
# Python >= 3.11. A pin moves only where its .in asks for it; name packages to move them: scripts/lock.sh torch numpy
set -euo pipefail
cd "$(dirname "$0")/../requirements"

options=()
for package in "$@"; do
    options+=(--upgrade-package "$package")
done

lock() {
    local name=$1
    ../.venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
        --custom-compile-command scripts/lock.sh "${options[@]}" "$name.in" --output-file "$name.txt"
    echo "requirements/$name.txt: $(grep -c '^[a-z0-9]' "$name.txt") packages"
}

lock triton36
lock peers-build
lock peers
# The environments below may be one environment: a package has the same version in each.
for name in uv engine operator kubectl dev; do
    lock "$name"
    options+=(--constraint "$name.txt")
done
