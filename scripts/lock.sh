#!/usr/bin/env bash
# Writes requirements/*.txt anew from requirements/*.in: pins with hashes, no index addresses, for every platform and
# Python >= 3.11. A pin moves only where its .in asks for it; name packages to move them: scripts/lock.sh torch numpy
set -euo pipefail
cd "$(dirname "$0")/../requirements"

upgrade=()
for package in "$@"; do
    upgrade+=(--upgrade-package "$package")
done

constraints=()
for name in uv engine operator dev; do
    ../.venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
        --custom-compile-command scripts/lock.sh "${constraints[@]}" "${upgrade[@]}" "$name.in" --output-file "$name.txt"
    constraints+=(--constraint "$name.txt")
    echo "requirements/$name.txt: $(grep -c '^[a-z0-9]' "$name.txt") packages"
done
