"""The kernels of cases.py: on a GPU, or without one as Triton interprets them and compiled for GPUs that are not there.

In processes of their own: whether Triton interprets is decided as it is imported, which PyTorch does here before any
test could have a say, and other tests are to find everything as it is. To look closer, for example:

    KERNELS_BY=interpreter TRITON_INTERPRET=1 pytest tests/kernels/cases.py -k losses
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from c4rl.core import ops

ON_GPU = ops.missing() is None
WITHOUT = [("compiler", "test"), ("interpreter", "training"), ("interpreter", "not training")]
WAYS = [("gpu", "test")] if ON_GPU else WITHOUT


def unable() -> str | None:
    """Why not, in words; None where it can be done."""
    if find_spec(ops.KERNELS) is None or find_spec("triton") is None:
        return ops.missing()
    import triton

    if not ON_GPU and tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7):
        return f"found Triton {triton.__version__}, expected 3.7 or newer, whose interpreter works with NumPy 2.4"
    return None


@pytest.mark.skipif(unable() is not None, reason=f"kernels are not tested here: {unable()}")
@pytest.mark.parametrize(("way", "chosen"), WAYS)
def test_kernels(way: str, chosen: str, tmp_path: Path) -> None:
    environment = os.environ | {"KERNELS_BY": way, "TRITON_INTERPRET": str(int(way == "interpreter"))}
    if way == "compiler":
        environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", chosen]
    command.append(str(Path(__file__).with_name("cases.py")))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
