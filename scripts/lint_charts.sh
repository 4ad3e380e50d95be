#!/usr/bin/env bash
# helm lint over every chart, strictly; helm is the one that tests/cluster builds.
set -euo pipefail
cd "$(dirname "$0")/.."

eval "$(.venv/bin/python -m tests.cluster tools)"
for chart in charts/*/; do
    "$HELM" lint --strict --quiet "$chart"
done
