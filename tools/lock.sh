#!/usr/bin/env bash
# Resolve pyproject.toml into requirements.lock: every extra, hashes, markers for every supported Python.
# Usage: tools/lock.sh VENV [--upgrade | --upgrade-package NAME]
# Versions already locked are kept unless an upgrade is asked for.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
shift
"$venv/bin/uv" pip compile pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes \
    --no-emit-index-url --no-emit-find-links --no-header --quiet -o requirements.lock "$@"
if grep -nE '^--|://|^-e |@ ' requirements.lock; then
    echo "lock: requirements.lock names an index or a path (above): it must hold names, versions and hashes only" >&2
    exit 1
fi
echo "lock: $(grep -c '==' requirements.lock) packages"
