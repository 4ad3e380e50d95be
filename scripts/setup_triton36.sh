#!/usr/bin/env bash
# Makes .venv-triton36, in which the tests of the kernels compile with the oldest Triton that is supported.
set -euo pipefail
cd "$(dirname "$0")/.."

key=$({ pwd && cat requirements/triton36.txt scripts/setup_triton36.sh; } | sha256sum)
[ "$(cat .venv-triton36/made-from 2>/dev/null)" != "$key" ] || exit 0

echo '==> Making .venv-triton36' >&2
.venv/bin/uv venv --quiet --allow-existing --python .venv/bin/python .venv-triton36
VIRTUAL_ENV=$PWD/.venv-triton36 .venv/bin/uv pip install --require-hashes --requirement requirements/triton36.txt
printf '%s\n' "$key" >.venv-triton36/made-from
