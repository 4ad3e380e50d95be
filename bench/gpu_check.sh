#!/usr/bin/env bash
# Checks the kernels and the engine's GPU path on this machine, from the work tree, in about a minute. It needs Python >= 3.11
# with torch >= 2.11 and triton >= 3.6 and nothing else; PYTHON names the interpreter. One line of JSON a stage.
#   bench/gpu_check.sh                              on the GPU
#   TRITON_INTERPRET=1 bench/gpu_check.sh --device cpu --layers 2    without one: the same in Triton's interpreter
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD:$PWD/engine:$PWD/kernels${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python3}" -m bench.gpu_check.smoke "$@"
