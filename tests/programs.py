"""Programs of the repository, run as a person runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import cutlass_ops

ROOT = Path(__file__).resolve().parent.parent


UNDER_TEST = Path(cutlass_ops.__file__).parent.parent


def run_python(
    *arguments: str, cwd: Path = ROOT, package_root: Path = UNDER_TEST
) -> subprocess.CompletedProcess[str]:
    """`python ARGUMENTS` in the repository, with the package under test first on the path.

    With -c and -m the working directory comes before that: another package needs another `cwd`.
    """
    paths = [str(package_root), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
