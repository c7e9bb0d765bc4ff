"""Check that the linters are pinned to the same versions in pyproject.toml and for pre-commit.

Two lists that drift apart give a commit that passes on one machine and fails on another, so
`make lint` runs this first. Exits 1 and names each tool that differs or is pinned in one file only.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("ruff", "clang-format")


def pins(path: Path) -> dict[str, set[str]]:
    """The versions of each of TOOLS that `path` pins, as {tool: {version, ...}}."""
    text = path.read_text()
    return {
        tool: set(re.findall(rf'["\']{re.escape(tool)}==([^"\']+)["\']', text)) for tool in TOOLS
    }


def main() -> int:
    """Compare both files; 0 where they agree."""
    project = pins(ROOT / "pyproject.toml")
    hooks = pins(ROOT / ".pre-commit-config.yaml")
    wrong = [tool for tool in TOOLS if len(project[tool]) != 1 or project[tool] != hooks[tool]]
    for tool in wrong:
        print(
            f"{tool}: pyproject.toml pins {sorted(project[tool]) or 'nothing'}, "
            f".pre-commit-config.yaml pins {sorted(hooks[tool]) or 'nothing'}",
            file=sys.stderr,
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
