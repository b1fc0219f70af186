"""What `c4rl bench speed` counts, shows and writes."""

import json
from pathlib import Path

import pytest

from c4rl.core.errors import InputError
from c4rl.results.speed import SpeedOptions, measure_speeds

INSTANT = {"seconds": 0.01, "device": "cpu"}


def test_each_measurement_is_a_row_on_the_screen_and_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "speed.json"
    small = {"rows": 300, "hidden_layers": 2, "hidden_width": 16}
    options = {"algorithms": ("bc", "td3_bc"), "plugins": ("none", "c4-proxy"), "runs": (1, 2)} | small | INSTANT
    assert measure_speeds(SpeedOptions(**options, json=file)) == 0
    found = json.loads(file.read_text())
    assert found["shape"] == {"observation_dim": 17, "action_dim": 6} | small
    keys = [(r["algorithm"], r["plugins"], r["runs"]) for r in found["results"]]
    assert keys == [("bc", "none", 1), ("bc", "none", 2)] + [
        ("td3_bc", plugin, runs) for plugin in ("none", "c4-proxy") for runs in (1, 2)
    ]
    for result in found["results"]:
        assert result["run_updates_per_second"] == pytest.approx(result["runs"] * result["updates_per_second"])
        assert len(result["repeats"]) == 3 and sorted(result["repeats"])[1] == result["run_updates_per_second"]
        assert (result["clustering_share"] > 0) == (result["plugins"] == "c4-proxy")
    title, heading, *lines = capsys.readouterr().out.splitlines()
    assert "300 rows" in title and heading.split() == [
        "algorithm", "plug-ins", "runs", "updates/s", "run-updates/s", "spread", "refresh",
    ]  # fmt: skip
    assert [tuple(line.split()[:3]) for line in lines] == [(a, p, str(n)) for a, p, n in keys]
    assert len({len(line) for line in (heading, *lines)}) == 1, "columns do not line up"


def test_a_file_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "speed.json"
    file.write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        SpeedOptions(json=file)
    assert file.read_text() == "mine"


def test_what_is_measured_is_kept_when_the_next_measurement_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from c4rl.results import speed as bench

    measure_one = bench._measure_one

    def dying(config, *rest):
        if len(config.seeds) == 2:
            raise KeyboardInterrupt
        return measure_one(config, *rest)

    monkeypatch.setattr(bench, "_measure_one", dying)
    file = tmp_path / "speed.json"
    with pytest.raises(KeyboardInterrupt):
        measure_speeds(SpeedOptions(algorithms=("bc",), runs=(1, 2), rows=300, json=file, **INSTANT))
    assert [r["runs"] for r in json.loads(file.read_text())["results"]] == [1]
