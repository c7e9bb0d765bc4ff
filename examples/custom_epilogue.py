"""A custom epilogue from outside the package: logsumexp(clamp(linear(x), low, high)) over each row.

Run it: `python examples/custom_epilogue.py`. It compiles `custom_epilogue.cu` with nvcc, which adds
its kernels to the library when loaded, and adds a row to the table of epilogues; from then on
`torch.ops.cutlass_ops.linear_epilogue` runs it fused, through every mainloop. Without nvcc or
without a GPU the row's plain-PyTorch reference runs.
"""

import ctypes
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import cutlass_ops
from cutlass_ops import _library
from cutlass_ops.epilogues import EPILOGUES, Epilogue

ROOT = Path(__file__).resolve().parent.parent
NAME = "clamp_logsumexp"
LOW, HIGH = -0.5, 1.0

EPILOGUES[NAME] = Epilogue(
    NAME,
    parameters=("low", "high"),
    columns=None,  # one number for each row
    reference=lambda z, params: z.clamp(params[0], params[1]).logsumexp(-1),
)


def build(folder: Path) -> Path | None:
    """Compile the epilogue into a shared library in `folder`; None, with the reason printed, where
    that is not possible."""
    if not _library.loaded():
        print(f"The reference runs: {_library.load_error()}.")
        return None
    sys.path.insert(0, str(ROOT))
    from buildtools import toolchain

    nvcc = toolchain.find_nvcc()
    if nvcc is None:
        print("The reference runs: no nvcc.")
        return None
    if torch.cuda.is_available():
        architecture = "sm_{}{}".format(*torch.cuda.get_device_capability())
    else:
        architecture = "sm_80"
    library = folder / f"{NAME}.so"
    package = Path(cutlass_ops.__file__).parent
    print(f"Compiling for {architecture}, a minute or so ...")
    subprocess.run(
        [
            *(nvcc, "-std=c++17", "-O3", "-DNDEBUG", "--expt-relaxed-constexpr"),
            *(f"-arch={architecture}", "-shared", "-Xcompiler=-fPIC", "-cudart=static"),
            *(f"-I{ROOT / 'include'}", f"-I{ROOT / 'csrc'}"),
            *("-isystem", str(toolchain.cutlass_include()[0])),
            *("-o", library, ROOT / "examples" / "custom_epilogue.cu"),
            *package.glob("*.so"),  # whose registry it adds itself to
        ],
        check=True,
    )
    return library


def main() -> None:
    """Build it where possible, run it, and compare with float64."""
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        if library is not None:
            ctypes.CDLL(str(library))

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    m, n, k = 257, 1000, 512
    x, bias = torch.rand(m, k, device=device), torch.randn(n, device=device)
    weight = torch.randn(n, k, device=device) / k**0.5
    if library is not None:
        plan = torch.ops.cutlass_ops._plan(NAME, [LOW, HIGH], m, n, k, [132, 90])
        print(f"On an H200: {torch.ops.cutlass_ops._describe_plan(plan)}")

    result = torch.ops.cutlass_ops.linear_epilogue(x, weight, bias, NAME, [LOW, HIGH])
    z = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
    exact = z.clamp(LOW, HIGH).logsumexp(-1)
    error = float((result.double() - exact).norm() / exact.norm())
    print(f"logsumexp(clamp(linear(x))) on {device}: relative error {error:.1e} against float64")
    if not error < 1e-6:
        raise SystemExit("that is more than fp32 rounding explains")


if __name__ == "__main__":
    main()
