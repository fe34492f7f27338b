#!/usr/bin/env bash
# Make a virtual environment and install the locked dependencies and this tree into it.
# Usage: tools/setup.sh VENV [PYTHON]
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
wanted=${2:-}

say() { printf 'setup: %s\n' "$*" >&2; }

debian_root() { [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; }

install_packages() {
    say "installing $* with apt-get"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@" >/dev/null
}

# A shim on PATH may name a version that is not there, so each candidate must really run.
find_python() {
    local candidate
    for candidate in ${wanted:-python3 python3.13 python3.12 python3.11}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

if [[ ! -x $venv/bin/python ]] || ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
    if ! python=$(find_python); then
        if debian_root && [[ -z $wanted ]]; then
            install_packages python3 python3-venv
        fi
        if ! python=$(find_python); then
            say "needs Python 3.11 or newer${wanted:+ (\"$wanted\" is not)}: install it, or name it with PYTHON=/path/to/python3"
            exit 1
        fi
    fi
    if ! "$python" -c 'import ensurepip' 2>/dev/null; then
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        if ! debian_root; then
            say "$python cannot make virtual environments: install python$version-venv (Debian, Ubuntu) and try again"
            exit 1
        fi
        install_packages "python$version-venv"
    fi
    say "making $venv with $("$python" --version)"
    "$python" -m venv "$venv"
fi

# The demo prints a curl command to try, which minimal systems lack too.
if ! command -v curl >/dev/null; then
    if debian_root; then
        install_packages curl
    else
        say "curl is missing: the commands that the demo prints, and one test of it, need it"
    fi
fi

# llama.cpp's builds are linked against the GNU OpenMP library, which minimal systems lack.
if ! ldconfig -p 2>/dev/null | grep -q 'libgomp\.so\.1 '; then
    if debian_root; then
        install_packages libgomp1
    else
        say "libgomp.so.1 is missing (package libgomp1): the demo's engine will not run without it"
    fi
fi

# Tests run a PostgreSQL server of their own beside SQLite; the package would start one for everybody.
have_postgresql() { command -v initdb >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null; }
if ! have_postgresql; then
    if debian_root; then
        mkdir -p /etc/postgresql-common
        [[ -e /etc/postgresql-common/createcluster.conf ]] ||
            echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf
        install_packages postgresql
    else
        say "PostgreSQL's programs (initdb, postgres) are missing: tests of the store need them (package postgresql)"
    fi
fi

say "installing what requirements.lock names"
"$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
"$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
"$venv/bin/python" -m pip check >/dev/null
say "done"
