#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# Prints the path of t/io_uring, built from the sources of the distribution's fio, or fails with one line that says why.
# They are fetched from the archive that apt uses, once, into the user's cache; nothing is installed.
set -eu

version=$(dpkg-query -W -f '${source:Upstream-Version}' fio 2>/dev/null) || { echo "fio is not installed" >&2; exit 1; }
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kangzao/bench/fio-$version
program=$cache/src/t/io_uring
if [ -x "$program" ]; then echo "$program"; exit 0; fi

fail() { echo "t/io_uring: $*" >&2; exit 1; }
mkdir -p "$cache/lists/partial" "$cache/archives/partial" || fail "no room in $cache"
cd "$cache"
# The archive that fio came from, as apt has it configured, asked for sources.
uri=$(apt-get indextargets --format '$(REPO_URI)|$(COMPONENT)' 'Created-By: Packages' | sed -n 's/|main$//p' | head -n 1)
[ -n "$uri" ] || fail "apt knows no archive; run apt-get update"
rm -rf parts
mkdir parts
for f in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
  grep -qsF "${uri%/}" "$f" || continue
  case "$f" in
    *.list) sed -n 's/^[[:space:]]*deb[[:space:]]/deb-src /p' "$f" | grep -F "${uri%/}" > "parts/$(basename "$f")" ;;
    *) sed 's/^Types:.*/Types: deb-src/' "$f" > "parts/$(basename "$f")" ;;
  esac
done
apt() {
  apt-get -q -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$cache/parts" \
    -o Dir::State::lists="$cache/lists" -o Dir::Cache="$cache/archives" -o APT::Sandbox::User=root \
    -o Acquire::Retries=2 "$@" > apt.log 2>&1
}
apt update || fail "the sources of $uri cannot be listed: $(tail -n 1 apt.log)"
apt source --download-only fio || fail "fio's sources cannot be fetched: $(tail -n 1 apt.log)"
rm -rf src src.new
mkdir src.new
tar -xf "$(ls fio_*.orig.tar.* | grep -v asc | head -n 1)" -C src.new --strip-components=1 || fail "the sources cannot be unpacked"
(cd src.new && ./configure > configure.log 2>&1 && make -j"$(nproc)" t/io_uring > make.log 2>&1) ||
  fail "it does not build, see $cache/src.new/make.log"
mv src.new src
rm -rf lists archives
echo "$program"
