"""The kernels on machines without a GPU: the tests of interpreted_kernels.py, in processes where Triton interprets.

Not in this one: PyTorch imports Triton here before any test could have a say, and other tests are to find it as it is.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from c4rl import kernels

TESTS = Path(__file__).with_name("interpreted_kernels.py")


def not_interpreted() -> str | None:
    """Why not, in words; None where the kernels are interpreted."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    if kernels.missing() is None:
        return "they run on the GPU"
    import triton

    if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7):
        return f"found Triton {triton.__version__}, expected 3.7 or newer, whose interpreter works with NumPy 2.4"
    return None


@pytest.mark.skipif(not_interpreted() is not None, reason=f"kernels are not interpreted here: {not_interpreted()}")
@pytest.mark.parametrize("chosen", ["training", "not training"])
def test_kernels_as_triton_interprets_them(chosen: str) -> None:
    """To look closer: TRITON_INTERPRET=1 pytest tests/kernels/interpreted_kernels.py"""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", chosen, str(TESTS)]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
