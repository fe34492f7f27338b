#!/usr/bin/env bash
# Run groups of tests (directories of tests/) in the order given, then print the time of each.
# Usage: [ARGS=...] tools/test.sh GROUP...
# A group that is missing or collects no test fails. All groups run even if one fails.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

declare -a lines=()
worst=0
begin=$SECONDS
for group in "$@"; do
    start=$SECONDS
    # Two processes, where the tests time no processes that they start. What ARGS says comes later and wins:
    # `-n 0` for one, as a debugger needs.
    workers=()
    case $group in
        unit | sim) workers=(-n 2 --dist worksteal) ;;
    esac
    # shellcheck disable=SC2086  # ARGS holds several arguments on purpose
    .venv/bin/python -m pytest "${workers[@]}" "tests/$group" ${ARGS:-}
    status=$?
    word=passed
    if [[ $status == 5 ]]; then
        word="FAILED (no test was collected)"
    elif [[ $status != 0 ]]; then
        word="FAILED (status $status)"
    fi
    [[ $status == 0 ]] || worst=1
    lines+=("$(printf '%-8s %5d s  %s' "$group" $((SECONDS - start)) "$word")")
done
printf '\ngroup      time\n'
printf '%s\n' "${lines[@]}"
printf '%-8s %5d s\n' total $((SECONDS - begin))
exit "$worst"
