#!/usr/bin/env bash
# Makes .venv with a Python that is new enough; where Debian's venv module is missing and we may, brings it first.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "Corral needs Python 3.11 or newer, and '$python' is not: name another one, as in 'make PYTHON=python3.12 test'." >&2
  exit 1
fi
if [ -x .venv/bin/python ] && .venv/bin/python -m pip --version >/dev/null 2>&1; then
  exit 0
fi
if "$python" -c 'import ensurepip' 2>/dev/null; then
  :
elif [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  tools/apt.sh python3-venv
else
  echo "'$python' cannot make virtual environments: install Debian's package python3-venv." >&2
  exit 1
fi
"$python" -m venv .venv
