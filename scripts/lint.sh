#!/usr/bin/env bash
# Every check that runs no test. scripts/lint.sh runs all of them and names those that failed; scripts/lint.sh NAME... runs some.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
PATH=$PWD/.venv/bin:$PATH

step_format() { ruff format --check --quiet .; }
step_rules() { ruff check --quiet .; }
step_types() { mypy --no-error-summary engine/kvik_engine operator/kvik_operator kernels/kvik_kernels kubectl/kvik_kubectl images scripts bench tests/cluster; }
step_imports() { lint-imports --no-cache --no-logo; }
step_locks() { python scripts/check_locks.py; }
step_pages() { python scripts/architecture.py --check && python scripts/check_links.py; }
step_yaml() { git ls-files -z '*.yaml' '*.yml' ':!charts/*/templates/*' | xargs -0 -r yamllint --strict; }
step_shell() { git grep -lIzE '^#!.*\b(ba)?sh\b' | xargs -0 -r shellcheck --external-sources; }
step_charts() { scripts/lint_charts.sh; }

steps=("$@")
[ $# -gt 0 ] || steps=(format rules types imports locks pages yaml shell charts)
# Here, where its progress is seen: the first time, it builds helm.
[[ " ${steps[*]} " != *" charts "* ]] || python -m tests.cluster tools >/dev/null || exit
ok=ok fail=fail
if [ -t 1 ]; then ok=$'\033[32mok\033[0m' fail=$'\033[31mfail\033[0m'; fi
failed=()
for step in "${steps[@]}"; do
    started=$SECONDS
    if output=$("step_$step" 2>&1); then
        printf '  %s    %-8s %3d s\n' "$ok" "$step" $((SECONDS - started))
    else
        printf '  %s  %-8s %3d s\n%s\n' "$fail" "$step" $((SECONDS - started)) "$output"
        failed+=("$step")
    fi
done
[ ${#failed[@]} = 0 ] || { echo "lint failed: ${failed[*]}"; exit 1; }
