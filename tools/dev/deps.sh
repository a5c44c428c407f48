#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# Installs the Debian or Ubuntu packages that building and testing need. Prints what is missing before it does anything.
# usage: deps.sh [build] [test] [lab] [fuzz] [bench]      (default: build test)
# DEPS=skip: only reports what is missing.
set -eu

build="g++ cmake ninja-build pkg-config libc6-dev linux-libc-dev libpci-dev libudev-dev liburing-dev libcli11-dev
  nlohmann-json3-dev libfmt-dev libgtest-dev libgmock-dev libbenchmark-dev libkmod-dev libopenblas-dev libeigen3-dev pci.ids"
test="python3 python3-jsonschema libxml2-utils pciutils"
lab="make gcc python3 pciutils xz-utils mount util-linux perl debian-archive-keyring"
fuzz="clang lld llvm"
bench="fio make xz-utils"

[ $# -gt 0 ] || set -- build test
want=
for group in "$@"; do
  case "$group" in
    build) want="$want $build" ;;
    test) want="$want $test" ;;
    lab) want="$want $lab" ;;
    fuzz) want="$want $fuzz" ;;
    bench) want="$want $bench" ;;
    *) echo "deps: unknown group '$group' (build, test, lab, fuzz, bench)" >&2; exit 2 ;;
  esac
done

if ! command -v dpkg-query >/dev/null 2>&1; then
  echo "deps: no dpkg here; install the equivalents of:$want" >&2
  exit 0
fi
install() { # what of the packages is not there yet
  missing=
  for p in "$@"; do
    dpkg-query -W -f '${db:Status-Status}\n' "$p" 2>/dev/null | grep -qx installed || missing="$missing $p"
  done
  [ -n "$missing" ] || return 0
  echo "packages to install:$missing"
  if [ "${DEPS:-}" = skip ]; then
    echo "deps: DEPS=skip, nothing installed"
    return 0
  fi
  sudo=
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 || {
      echo "deps: not root and no sudo; run as root: apt-get install --no-install-recommends$missing" >&2
      exit 1
    }
    sudo=sudo
  fi
  $sudo apt-get update -qq
  # shellcheck disable=SC2086
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
}
# shellcheck disable=SC2086
install $want
# The runtime libraries of the sanitizers and fuzzers are a package of the compiler's own version.
case " $* " in
  *" fuzz "*) ! command -v clang >/dev/null 2>&1 || install "libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev" ;;
esac
