#!/usr/bin/env bash
# Benchmark a built wheel on this machine's GPU: python -m benchmarks, against the wheel.
#
#   scripts/gpu_bench.sh [--wheel PATH] OUTPUT_DIR [BENCHMARK_ARGS...]
#   scripts/gpu_bench.sh [--wheel PATH] --errors OUTPUT_DIR [REPORT_ARGS...]   benchmarks.error_report
#
# The wheel is the newest in dist/ unless named. Writes JSON and PNG files into OUTPUT_DIR.
# Environment: PYTHON, WHEELHOUSE (gpu_common.sh); CUTLASS_OPS_COMMIT (recorded where this folder is
# not a git checkout; end it in "-dirty" if it was).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/gpu_common.sh"

wheel=""
if [[ "${1:-}" == --wheel ]]; then
  wheel="$(realpath "${2:?--wheel needs a path}")"
  shift 2
fi
module=benchmarks
if [[ "${1:-}" == --errors ]]; then
  module=benchmarks.error_report
  shift
fi
if [[ $# -lt 1 || "$1" == -* ]]; then
  sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
mkdir -p "$1"
output="$(realpath "$1")"
shift
if [[ -z "${CUTLASS_OPS_COMMIT:-}" ]] && commit="$(git -C "$REPO" rev-parse HEAD 2>/dev/null)"; then
  [[ -z "$(git -C "$REPO" status --porcelain 2>/dev/null)" ]] || commit+="-dirty"
  export CUTLASS_OPS_COMMIT="$commit"
fi
set_up "${wheel:-$(newest_wheel)}"
"$PYTHON" -m "$module" --output "$output" "$@"
