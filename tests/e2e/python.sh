#!/bin/sh
# Runs a Python test with the environment that tests/run.sh makes (build/venv), else with the system's Python.
# A test whose packages are missing says so and exits 77: CTest counts it as skipped.
python=${RIDGEFILL_PYTHON:-build/venv/bin/python}
[ -x "$python" ] || python=python3
exec "$python" "$@"
