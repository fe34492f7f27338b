#!/usr/bin/env bash
# Style, types, import rules and shell scripts. Runs every check, then fails if one failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
bin=.venv/bin
failed=()

check() {
    local name=$1
    shift
    printf '== %s\n' "$name"
    "$@" || failed+=("$name")
}

mapfile -t scripts < <(find . \( -name '.venv*' -o -name .git -o -name .cache -o -name build \) -prune -o -type f \( -name '*.sh' -o -path ./.ci/run \) -print)

check 'ruff check' $bin/ruff check .
check 'ruff format' $bin/ruff format --check .
check 'mypy' $bin/mypy
check 'import-linter' $bin/lint-imports --no-cache
check 'import rules' $bin/python -m pytest -q tests/unit/project/test_import_rules.py
check 'shellcheck' $bin/shellcheck "${scripts[@]}"

if ((${#failed[@]})); then
    printf '\nfailed: %s\n' "${failed[*]}" >&2
    exit 1
fi
