"""A million rows load quickly and without copies that double the memory."""

import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

ROWS = 1_000_000
# memory: the peak of this process alone; time: of its processor, so that others on the machine do not count
MEASURE = """
import resource, sys, time
from pathlib import Path
from c4rl.data import load_dataset

def peak():
    status = Path("/proc/self/status")
    if status.exists():  # Linux: `resource` would begin with the peak of the process that started this one
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

before, start = peak(), time.process_time()
data = load_dataset(sys.argv[1])
print(len(data), peak() - before, time.process_time() - start)
"""


@pytest.mark.parametrize(("stored_successors", "compression"), [(True, None), (False, None), (False, "gzip")])
def test_a_million_rows_load_in_little_memory(tmp_path: Path, stored_successors: bool, compression: str | None) -> None:
    pytest.importorskip("resource", reason="peak memory is measured with the Unix module 'resource'")
    rng = np.random.default_rng(0)
    observations = rng.standard_normal((ROWS + 1, 11), dtype=np.float32)
    steps = np.arange(1, ROWS + 1)
    fields = {
        "observations": observations[:-1],
        "actions": rng.random((ROWS, 3), dtype=np.float32),
        "rewards": rng.random(ROWS, dtype=np.float32),
        "terminals": steps % 1700 == 0,
        "timeouts": steps % 1000 == 0,
    }
    fields["timeouts"] &= ~fields["terminals"]
    if stored_successors:
        fields["next_observations"] = observations[1:]
    path = tmp_path / "hopper.hdf5"
    with h5py.File(path, "w") as file:
        for name, values in fields.items():
            file.create_dataset(name, data=values, compression=compression, compression_opts=1 if compression else None)
    run = subprocess.run([sys.executable, "-c", MEASURE, path], capture_output=True, text=True, check=True)
    count, growth, seconds = run.stdout.split()
    left_out = 0 if stored_successors else int(fields["timeouts"].sum() + (not fields["timeouts"][-1]))
    assert int(count) == ROWS - left_out
    arrays = sum(values.nbytes for values in fields.values()) + (0 if stored_successors else observations.nbytes)
    assert int(growth) < 1.7 * arrays, f"{int(growth) / arrays:.2f} times the data"
    assert float(seconds) < 5
