"""What a build is made with and for: nvcc, CUTLASS, architectures, and what the environment says
about them."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import cutlass_include, load_toolchain, nvcc, run_python

OURS, TORCHS = "CUTLASS_OPS_CUDA_ARCHS", "TORCH_CUDA_ARCH_LIST"
toolchain = load_toolchain()


def names(monkeypatch: pytest.MonkeyPatch, **environment: str) -> list[str]:
    for variable in (OURS, TORCHS):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    return [architecture.name for architecture in toolchain.architectures()]


@pytest.mark.parametrize("variable", [OURS, TORCHS])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("80", ["80"]),
        ("8.0", ["80"]),
        ("sm_80", ["80"]),
        ("80;90a", ["80", "90a"]),
        ("8.0 8.6,9.0a+PTX", ["80", "86", "90a+PTX"]),
        ("80+ptx; 10.0f, 120", ["80+PTX", "100f", "120"]),
        (" 9.0A ", ["90a"]),
    ],
)
def test_ways_to_write_them(
    variable: str, text: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert names(monkeypatch, **{variable: text}) == expected


def test_ours_comes_first_and_the_default_last(monkeypatch: pytest.MonkeyPatch) -> None:
    assert names(monkeypatch, **{OURS: "86", TORCHS: "9.0"}) == ["86"]
    default = toolchain.DEFAULT_ARCHITECTURES.split(";")
    assert names(monkeypatch) == names(monkeypatch, **{OURS: "", TORCHS: ""}) == default


def test_torchs_list_may_name_what_is_too_old(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """CUDA containers set it to all that their torch runs on, and building there failed."""
    assert names(monkeypatch, **{TORCHS: "5.2 6.0 7.5 8.0 9.0+PTX"}) == ["80", "90+PTX"]
    assert "5.2, 6.0, 7.5" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variable", "text", "named"),
    [
        (OURS, "75;80", "75"),  # asked of us by name
        (TORCHS, "7.0 7.5", "7.0"),  # nothing would be left
    ],
)
def test_too_old(variable: str, text: str, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match=f"'{named}'.*8.0 or newer"):
        names(monkeypatch, **{variable: text})


@pytest.mark.parametrize("variable", [OURS, TORCHS])
@pytest.mark.parametrize("text", ["hopper", "8", "9.0b", "compute_80", "8.0+"])
def test_what_is_no_architecture(variable: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="cannot read the architecture"):
        names(monkeypatch, **{variable: text})


def test_compiler_flags() -> None:
    """PTX goes along where asked for, and every 8.x is compiled from compute_80."""
    flags = toolchain.Architecture("86", ptx=False).gencode()
    assert flags == ["-gencode", "arch=compute_80,code=sm_86"]
    flags = toolchain.Architecture("90a", ptx=True).gencode()
    assert flags[1::2] == ["arch=compute_90a,code=sm_90a", "arch=compute_90a,code=compute_90a"]


PATHS = ("CUDA_HOME", "CUDA_PATH", "CUTLASS_DIR", "CUTLASS_PATH")


@pytest.fixture
def no_paths(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for variable in (*PATHS, "CUTLASS_OPS_SKIP_CUDA"):
        monkeypatch.delenv(variable, raising=False)
    return monkeypatch


def a_file(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize("variable", PATHS)
def test_a_path_that_leads_nowhere_is_an_error(
    variable: str, no_paths: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another toolkit, other headers or a build without kernels in its place would go unnoticed."""
    no_paths.setenv(variable, str(tmp_path))
    find = toolchain.find_nvcc if "CUDA" in variable else toolchain.cutlass_include
    with pytest.raises(RuntimeError, match=rf"^{variable} is {tmp_path}, which holds no"):
        find()


def test_a_path_that_is_given_is_taken(no_paths: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nvcc = a_file(tmp_path / "bin" / "nvcc")
    version = "#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 9\n#define CUTLASS_PATCH 1\n"
    a_file(tmp_path / "include" / "cutlass" / "version.h", version)
    for cuda, cutlass in (("CUDA_PATH", "CUTLASS_PATH"), ("CUDA_HOME", "CUTLASS_DIR")):
        no_paths.setenv(cuda, str(tmp_path))
        no_paths.setenv(cutlass, str(tmp_path))
        assert toolchain.find_nvcc() == nvcc
        assert toolchain.cutlass_include() == (tmp_path / "include", "4.9.1")
        # CUDA_HOME and CUTLASS_DIR, which come next, stand before these two.
        no_paths.setenv(cuda, "/nonexistent")
        no_paths.setenv(cutlass, "/nonexistent")


def test_the_build_stops_where_cuda_home_leads_nowhere(no_paths: pytest.MonkeyPatch) -> None:
    pytest.importorskip("setuptools")
    no_paths.setenv("CUDA_HOME", "/nonexistent")
    done = run_python("setup.py", "--name")
    assert done.returncode != 0
    assert "CUDA_HOME is /nonexistent" in done.stderr
    no_paths.setenv("CUTLASS_OPS_SKIP_CUDA", "1")
    done = run_python("setup.py", "--name")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("ci", ["true", "false", ""])
def test_warnings_are_errors_in_continuous_integration_alone(
    ci: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A newer compiler has new warnings, and they are shown, not a failed install."""
    pytest.importorskip("setuptools")
    nvcc(), cutlass_include()  # or a skip
    monkeypatch.setenv("CI", ci)
    build = f"['csrc/fold_rows.cu'], Path({str(tmp_path)!r}), Path('_C.so')"
    script = "from pathlib import Path; from buildtools.ninja_build import _ninja_file"
    done = run_python("-c", f"{script}; print(_ninja_file({build}))")
    assert done.returncode == 0, done.stderr
    assert "-Wall,-Wextra" in done.stdout
    assert done.stdout.count("-Werror") == (2 if ci == "true" else 0)


def test_two_builds_in_one_folder_take_turns(tmp_path: Path) -> None:
    """Together they left objects without a list of the headers that they were made of. A compiler
    that outlives the process which started it counts."""
    pytest.importorskip("setuptools")
    program = f"""
import fcntl
import subprocess
from pathlib import Path

from buildtools.ninja_build import alone_in

folder = Path({str(tmp_path)!r})


def ask():
    try:
        fcntl.flock((folder / "lock").open("w"), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "waits"
    return "goes on"


with alone_in(folder) as lock:
    compiler = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(lock,))
    print(ask())
print(ask())
compiler.communicate()
print(ask())
"""
    done = run_python("-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["waits", "waits", "goes on"]
