#!/usr/bin/env bash
# helm lint over every chart, strictly; helm is the one that tests/cluster builds.
set -euo pipefail
cd "$(dirname "$0")/.."

for chart in charts/*/; do
    [ -f "$chart/Chart.yaml" ] || continue
    helm lint --strict --quiet "$chart"
done
