#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# Runs every fuzzer for SECONDS, two at a time, from its corpus. usage: run.sh BIN_DIR SECONDS
# New inputs stay in BIN_DIR/corpus-NAME; what crashed is printed and kept there. Exit 1 when anything was found.
set -eu
bin=$1
seconds=$2
here=$(cd "$(dirname "$0")" && pwd)
failed=0
found=0
running=
finish() { # pid name
  if wait "$1"; then
    echo "fuzz $2: clean, $(sed -n 's/^stat::number_of_executed_units: //p' "$bin/$2.log") inputs in $seconds s"
  else
    echo "fuzz $2: FINDING, see $bin/$2.log"
    failed=$((failed + 1))
  fi
}
for f in "$bin"/fuzz-*; do
  case "$f" in *.log) continue ;; esac
  [ -x "$f" ] || continue
  name=$(basename "$f")
  mkdir -p "$bin/corpus-$name"
  found=$((found + 1))
  # A regression that fails must fail at once, before any new input.
  "$f" -runs=0 "$here/corpus/$name" >"$bin/$name.log" 2>&1 || { echo "fuzz $name: corpus fails, see $bin/$name.log"; failed=$((failed + 1)); continue; }
  "$f" -max_total_time="$seconds" -timeout=60 -rss_limit_mb=4096 -print_final_stats=1 -artifact_prefix="$bin/$name-" \
    "$bin/corpus-$name" "$here/corpus/$name" >"$bin/$name.log" 2>&1 &
  running="$running $!:$name"
  set -- $running
  if [ $# -ge 2 ]; then
    finish "${1%%:*}" "${1#*:}"
    shift
    running="$*"
  fi
done
for r in $running; do finish "${r%%:*}" "${r#*:}"; done
[ "$found" -gt 0 ] || { echo "fuzz: no fuzzer in $bin"; exit 2; }
echo "fuzz: $((found - failed)) passed, $failed failed"
[ "$failed" -eq 0 ]
