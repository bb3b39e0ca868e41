#!/usr/bin/env bash
# Builds the project and runs its tests: the one command to know before a change is sent.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'END'
Usage: tests/run.sh [PRESET] [CTEST ARGUMENT...]

Installs what is missing, builds PRESET under build/PRESET and runs its tests; ends with CTest's summary.

  dev       optimised, with assertions and warnings as errors; also the lint checks (default)
  release   what users run
  asan      AddressSanitizer and UndefinedBehaviorSanitizer
  tsan      ThreadSanitizer, over the tests with the label `threaded`

Examples
  tests/run.sh                     everything
  tests/run.sh dev -LE tidy        without the lint checks
  tests/run.sh asan -R cache       tests under ASan whose name has `cache`
  tests/run.sh dev -N              build everything, list the tests, run none

The first run fetches a 94 MB model (deploy/fetch_model.sh) and makes a Python environment (tests/requirements.txt);
both are kept under ~/.cache/ridgefill. Fuzzing has its own script: tests/fuzz/run.sh.
END
}

# The Python environment of the tests, kept outside the clone and named after what is in it; build/venv leads to it.
python_environment() {
  local cache=${XDG_CACHE_HOME:-$HOME/.cache}/ridgefill venv
  venv=$cache/venv-$(sha256sum tests/requirements.txt | cut -c1-12)
  mkdir -p "$cache" build
  (
    flock 9
    [ -e "$venv/.complete" ] && exit
    python3 -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet --retries 2 --timeout 30 --requirement tests/requirements.txt </dev/null ||
      { echo "tests/run.sh: pip could not install tests/requirements.txt. Is PyPI reachable?" >&2; exit 1; }
    touch "$venv/.complete"
  ) 9>"$cache/venv.lock"
  ln -sfn "$venv" build/venv
}

preset=dev
case ${1-} in
  -h | --help) usage; exit ;;
  dev | release | asan | tsan) preset=$1; shift ;;
  -* | '') ;;
  *) usage >&2; echo "tests/run.sh: unknown preset '$1'" >&2; exit 2 ;;
esac

target=all selection=()
if [ "$preset" = tsan ]; then target=threaded_tests selection=(-L threaded); fi
jobs=$(nproc)
export CCACHE_MAXSIZE=${CCACHE_MAXSIZE:-10G}

deploy/install_deps.sh --test
python_environment
deploy/fetch_model.sh >/dev/null
cmake --preset "$preset"
cmake --build --preset "$preset" --target $target --parallel "$jobs"
ctest --preset "$preset" --parallel "$jobs" --no-tests=error "${selection[@]}" "$@"
