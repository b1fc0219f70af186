"""The kernels on machines without a GPU: interpreted, and compiled for GPUs that are not there.

In processes of their own: whether Triton interprets is decided as it is imported, which PyTorch does here before any
test could have a say, and other tests are to find everything as it is.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from c4rl.core import ops as kernels


def unable() -> str | None:
    """Why not, in words; None where it can be done."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    if kernels.missing() is None:
        return "they run on the GPU"
    import triton

    if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7):
        return f"found Triton {triton.__version__}, expected 3.7 or newer, whose interpreter works with NumPy 2.4"
    return None


pytestmark = pytest.mark.skipif(unable() is not None, reason=f"kernels are not tested without a GPU here: {unable()}")


def run_tests(file: str, chosen: str, **environment: str) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", chosen]
    command.append(str(Path(__file__).with_name(file)))
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("chosen", ["training", "not training"])
def test_kernels_as_triton_interprets_them(chosen: str) -> None:
    """To look closer: TRITON_INTERPRET=1 pytest tests/kernels/interpreted_kernels.py"""
    run_tests("interpreted_kernels.py", chosen, TRITON_INTERPRET="1")


@pytest.mark.parametrize("gpu", ["A100", "H100"])
def test_kernels_compile(gpu: str, tmp_path: Path) -> None:
    """To look closer: pytest tests/kernels/compiled_kernels.py"""
    run_tests("compiled_kernels.py", gpu, TRITON_CACHE_DIR=str(tmp_path))
