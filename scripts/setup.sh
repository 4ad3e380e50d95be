#!/usr/bin/env bash
# Makes .venv: uv, the locked packages of requirements/dev.txt, and the four packages of this repository, editable;
# and builds the kernels for CPUs beside their sources.
# While the files it was made from are unchanged it only looks, in a moment, whether those kernels are built.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { if [ -t 2 ]; then printf '\033[1m==> %s\033[0m\n' "$*" >&2; else echo "==> $*" >&2; fi; }

# Returns at once where they are built. Tried each time: a compiler may have come since.
build_cpu_kernels() {
    .venv/bin/python -m kvik_kernels.cpu.build ||
        say "Going on without the CPU kernels: the engine leaves their work to torch, their tests fail"
}

inputs=(requirements/uv.txt requirements/dev.txt {engine,operator,kernels,kubectl}/pyproject.toml scripts/setup.sh
    kernels/kvik_kernels/cpu/{*.h,*.cpp,build.py,library.py})
key=$({ pwd && cat "${inputs[@]}"; } | sha256sum)
if [ -x .venv/bin/uv ] && [ "$(cat .venv/made-from 2>/dev/null)" = "$key" ]; then
    build_cpu_kernels
    exit 0
fi

# A Python of 3.11 or later that can make environments (Debian packs ensurepip apart).
find_python() {
    local candidate
    for candidate in python3.11 python3.12 python3.13 python3; do
        if "$candidate" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

if [ ! -x .venv/bin/python ]; then
    if ! python=$(find_python); then
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            say "Installing python3-venv"
            apt-get update -qq
            DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv >/dev/null
        fi
        python=$(find_python) || {
            echo "Kvik needs Python >= 3.11 with venv: on Debian or Ubuntu, run as root: apt-get install python3-venv" >&2
            exit 1
        }
    fi
    say "Making .venv with $python"
    "$python" -m venv .venv
fi

if ! .venv/bin/uv --version >/dev/null 2>&1; then
    say "Installing uv"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements/uv.txt
fi

say "Installing the locked packages (about 6 GB the first time)"
export VIRTUAL_ENV=$PWD/.venv
.venv/bin/uv pip install --require-hashes --requirement requirements/dev.txt
.venv/bin/uv pip install --quiet --no-deps --no-build-isolation --editable kernels --editable engine --editable operator --editable kubectl

if [ "$(uname -m)" = x86_64 ]; then
    if ! command -v g++ >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "Installing g++"
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends g++ >/dev/null; } || true
    fi
    say "Building the CPU kernels"
    build_cpu_kernels
fi
printf '%s\n' "$key" >.venv/made-from
say "Ready: .venv"
