# Sourced by gpu_tests.sh and gpu_bench.sh: installs a wheel into a scratch folder and lays the
# files that use it beside it, so that nothing can import the source tree's cutlass_ops instead.
#
# Reads: PYTHON (default python3; must have torch and pytest), WHEELHOUSE (a folder of further
# wheels that this Python lacks, installed without their dependencies and without the network).
# Sets: REPO, SCRATCH (removed on exit), and PYTHONPATH.

PYTHON="${PYTHON:-python3}"
REPO="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
SCRATCH="$(mktemp -d)"
trap 'rm -rf "$SCRATCH"' EXIT

newest_wheel() { # prints the newest wheel in dist/, or fails saying how to make one
  local wheels=()
  mapfile -t wheels < <(ls -t "$REPO"/dist/cutlass_ops-*.whl 2>/dev/null)
  if ((${#wheels[@]} == 0)); then
    echo "no wheel in $REPO/dist; run 'make wheel' or name one with --wheel PATH" >&2
    return 1
  fi
  echo "${wheels[0]}"
}

set_up() { # set_up WHEEL: scratch/site holds the wheel, scratch/src the tree without cutlass_ops/
  local wheel="$1" name
  # --upgrade replaces files that an earlier wheel of the folder brought along.
  local pip=("$PYTHON" -m pip install --quiet --no-index --no-deps --no-compile --upgrade --target "$SCRATCH/site")
  "${pip[@]}" "$wheel"
  if [[ -n "${WHEELHOUSE:-}" ]]; then
    "${pip[@]}" "$WHEELHOUSE"/*.whl
  fi
  mkdir "$SCRATCH/src"
  for name in tests benchmarks examples docs include csrc buildtools scripts .ci .pre-commit-config.yaml \
    .clang-format pyproject.toml setup.py README.md CHANGELOG.md LICENSE Makefile; do
    if [[ -e "$REPO/$name" ]]; then cp -r "$REPO/$name" "$SCRATCH/src/"; fi
  done
  export PYTHONPATH="$SCRATCH/site${PYTHONPATH:+:$PYTHONPATH}"
  cd "$SCRATCH/src"
  "$PYTHON" - "$SCRATCH/site" <<'PY'
import sys

import cutlass_ops

if not cutlass_ops.__file__.startswith(sys.argv[1]):
    sys.exit(f"imported {cutlass_ops.__file__}, which is not the wheel under test")
print(cutlass_ops.show_config())
PY
}
