#!/usr/bin/env bash
# Makes .venv-peers, in which make bench-peers finds llama.cpp: PyPI has its sources only, which take some 12 minutes to build on
# two cores, for this machine's processor.
set -euo pipefail
cd "$(dirname "$0")/.."

key=$({ pwd && cat requirements/peers-build.txt requirements/peers.txt scripts/setup_peers.sh; } | sha256sum)
[ "$(cat .venv-peers/made-from 2>/dev/null)" != "$key" ] || exit 0

echo '==> Making .venv-peers: building llama.cpp' >&2
.venv/bin/uv venv --quiet --allow-existing --python .venv/bin/python .venv-peers
export VIRTUAL_ENV=$PWD/.venv-peers PATH=$PWD/.venv-peers/bin:$PATH CMAKE_GENERATOR=Ninja
# Linked statically: a wheel holds no symbolic links, so shared libraries would lose their names.
CMAKE_ARGS="-DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF"
export CMAKE_ARGS="$CMAKE_ARGS -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF"
LLAMA_CPP_BUILD_JOBS=$(nproc)
export LLAMA_CPP_BUILD_JOBS
# Built with the pinned tools, which therefore come first.
.venv/bin/uv pip install --require-hashes --requirement requirements/peers-build.txt
.venv/bin/uv pip install --require-hashes --no-build-isolation --requirement requirements/peers.txt
printf '%s\n' "$key" >.venv-peers/made-from
