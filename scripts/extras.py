"""Print what the named extras of the installed cutlass_ops require, one requirement a line.

`pip install .[test]` would build the package again; this lets the Makefile install the test tools
without that.
"""

import re
import sys
from importlib.metadata import requires


def requirements(extras: set[str]) -> list[str]:
    """The requirements of `extras`, without their markers."""
    found = []
    for line in requires("cutlass_ops") or []:
        requirement, _, marker = line.partition(";")
        match = re.search(r"""extra\s*==\s*["']([^"']+)["']""", marker)
        if match and match[1] in extras:
            found.append(requirement.strip())
    return sorted(set(found))


if __name__ == "__main__":
    print("\n".join(requirements(set(sys.argv[1:]))))
