#!/usr/bin/env bash
# Installs Debian packages without a question. The lists are refreshed only when a package is not in them.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
exec </dev/null

for package in "$@"; do
  apt-cache show "$package" >/dev/null 2>&1 || { apt-get update -qq; break; }
done
apt-get install -y -qq --no-install-recommends "$@" >/dev/null \
  || { apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@" >/dev/null; }
