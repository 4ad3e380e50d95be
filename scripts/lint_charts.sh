#!/usr/bin/env bash
# helm lint over every chart, strictly, and the API's two copies; helm is the one that tests/cluster builds.
set -euo pipefail
cd "$(dirname "$0")/.."

cmp crds/inferencepools.kvik.dev.yaml charts/kvik-crds/templates/inferencepools.kvik.dev.yaml
eval "$(.venv/bin/python -m tests.cluster tools)"
for chart in charts/*/; do
    "$HELM" lint --strict --quiet "$chart"
done
