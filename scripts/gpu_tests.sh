#!/usr/bin/env bash
# Certify a built wheel on this machine's GPU. Each step takes under 8 minutes on an H200.
#
#   scripts/gpu_tests.sh [--wheel PATH] suite [PYTEST_ARGS...]       the whole suite
#   scripts/gpu_tests.sh [--wheel PATH] deep [PYTEST_ARGS...]        the properties, 1000 examples each
#   scripts/gpu_tests.sh [--wheel PATH] sanitize [memcheck|racecheck|initcheck] [PYTEST_ARGS...]
#   scripts/gpu_tests.sh [--wheel PATH] all     everything, one after the other: suite, deep, sanitize,
#                                               then suite and deep again with --precision=fp16x3
#
# The wheel is the newest in dist/ unless named. Environment: PYTHON, WHEELHOUSE (gpu_common.sh);
# WORKERS (test processes that share the GPU, default 4); SANITIZER_KERNELS (a substring of the
# mangled names of the kernels that memcheck and racecheck look at, default cutlass_ops, empty: all).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/gpu_common.sh"

usage() {
  sed -n '2,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
}

run_pytest() { # in the scratch tree, which has no cutlass_ops/ to stand in front of the wheel
  "$PYTHON" -m pytest tests -p no:cacheprovider --color=no "$@"
}

# Several processes with as many threads as there are cores each would mostly wait for one another.
workers="${WORKERS:-4}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((($(nproc) + workers - 1) / workers))}"

suite() { run_pytest -n "$workers" "$@"; }

deep() { run_pytest -n "$workers" -m deep --hypothesis-profile=deep "$@"; }

sanitizer() { # sanitizer TOOL [PYTEST_ARGS...]
  local tool="$1" filter=() kernels="${SANITIZER_KERNELS-cutlass_ops}"
  shift
  # initcheck must see every kernel: it reports a read of what a kernel outside the filter wrote.
  if [[ "$tool" != initcheck && -n "$kernels" ]]; then
    filter=(--kernel-regex "kns=$kernels")
  fi
  echo "== compute-sanitizer $tool"
  # Without the caching allocator each tensor is an allocation of its own, so that a read one past
  # its end is an error and not a read of the neighbour.
  PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool "$tool" --error-exitcode 1 \
    "${filter[@]}" "$PYTHON" -m pytest tests -p no:cacheprovider -p no:xdist --color=no \
    -m sanitizer "$@"
}

sanitize() {
  command -v compute-sanitizer >/dev/null || {
    echo "compute-sanitizer is not on PATH; it comes with the CUDA toolkit" >&2
    exit 1
  }
  local tool failed=0
  case "${1:-}" in
    memcheck | racecheck | initcheck) sanitizer "$@" ;;
    *)
      for tool in memcheck racecheck initcheck; do sanitizer "$tool" "$@" || failed=1; done
      return "$failed"
      ;;
  esac
}

wheel=""
if [[ "${1:-}" == --wheel ]]; then
  [[ -f "${2:-}" ]] || usage
  wheel="$(realpath "$2")"
  shift 2
fi
command="${1:-}"
case "$command" in
  suite | deep | sanitize | all) shift ;;
  *) usage ;;
esac
set_up "${wheel:-$(newest_wheel)}"
case "$command" in
  all)
    in_the_mode=--precision=fp16x3
    suite && deep && sanitize && suite "$in_the_mode" && deep "$in_the_mode"
    ;;
  *) "$command" "$@" ;;
esac
