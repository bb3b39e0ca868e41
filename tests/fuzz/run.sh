#!/usr/bin/env bash
# Builds the fuzz targets and runs each from its checked-in corpus. Usage: tests/fuzz/run.sh [seconds per target = 20]
#
# RIDGEFILL_FUZZ_BUILD names another build tree than build/fuzz. Nothing is written into the source tree; on a crash the
# input is kept and its path printed.
set -euo pipefail

seconds=${1:-20}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
build=${RIDGEFILL_FUZZ_BUILD:-$root/build/fuzz}
work=$(mktemp -d "${TMPDIR:-/tmp}/ridgefill-fuzz.XXXXXX")

if ! (cd "$root" && cmake --preset fuzz -B "$build" && cmake --build "$build" --target fuzzers) >"$work/build.log" 2>&1; then
  tail -n 40 "$work/build.log"
  echo "fuzz: the build failed, see $work/build.log" >&2
  exit 1
fi

failed=0
for source in "$here"/*_fuzz.cc; do
  name=$(basename "$source" .cc)
  corpus=$work/corpus/$name
  artifacts=$work/artifacts/$name
  log=$work/$name.log
  mkdir -p "$corpus" "$artifacts"
  if [ -d "$here/corpus/$name" ]; then cp -r "$here/corpus/$name/." "$corpus"; fi
  dictionary=()
  if [ -f "$here/$name.dict" ]; then dictionary=(-dict="$here/$name.dict"); fi
  # Inputs stay small, a single one may take 10 s and 2 GB at most: a slow or greedy input is a finding too.
  if "$build/bin/$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=512 -print_final_stats=1 \
      -artifact_prefix="$artifacts/" "${dictionary[@]}" "$corpus" >"$log" 2>&1; then
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    echo "fuzz: $name ok, $runs inputs in ${seconds}s"
  else
    failed=1
    tail -n 30 "$log"
    echo "fuzz: $name FAILED, input kept in $artifacts, log in $log"
  fi
done

if [ "$failed" = 0 ]; then rm -rf "$work"; fi
exit "$failed"
