#!/usr/bin/env bash
# Every tracked shell script passes shellcheck.
set -euo pipefail
cd "$(dirname "$0")/../.."
git ls-files -z '*.sh' .ci/run | xargs -0 shellcheck
