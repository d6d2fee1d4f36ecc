#!/usr/bin/env bash
# Brings the real services that the tests use, where apt can. What cannot be had is said loudly here, its tests are
# skipped with a count, and with CI=true they fail.
set -euo pipefail
cd "$(dirname "$0")/.."

postgresql() {
  command -v pg_ctl >/dev/null || ls /usr/lib/postgresql/*/bin/pg_ctl >/dev/null 2>&1
}

bring() {
  local present=$1 package=$2
  if "$present"; then return; fi
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "MISSING: $package (only root can install it here, with apt). Its tests will be skipped." >&2
    return
  fi
  echo "Installing $package"
  if ! tools/apt.sh "$package" || ! "$present"; then
    echo "MISSING: $package (apt could not bring it). Its tests will be skipped." >&2
  fi
}

bring postgresql postgresql
