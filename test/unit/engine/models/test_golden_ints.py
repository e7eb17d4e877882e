"""Discrete choices are computed as the reference does and compared as integers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from support.flow import inputs_of, model_of, noise_of, tiny_flow
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.families.lerobot import PRESETS
from vla_ros.engine.io.fields import SMOLVLM2_500M
from vla_ros.engine.models.golden_ints import (
    FILE,
    STATE_BINS,
    STATE_PROBES,
    Discrete,
    check_discrete,
    discrete_json,
    patch_positions,
    position_ids,
    read_discrete,
)
from vla_ros.engine.models.preparation import state_bins
from vla_ros.engine.models.vlm_with_expert import time_table

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "flow"


@pytest.mark.parametrize(("version", "table"), [("5.5.4", "exact"), ("4.57.6", "transformers-4")])
def test_both_position_tables_of_smolvlm(version: str, table: str) -> None:
    """As integers, for whole tables and for smaller images."""
    stored = np.load(GOLDEN / f"positions_{version}.npz")
    assert len(stored.files) == 7
    for name in stored.files:
        patches, side = map(int, name.split("_of_"))
        assert patch_positions(patches, side, table).tolist() == stored[name].tolist()


def test_the_two_tables_are_two_policies() -> None:
    """At SmolVLA's size the old table has 1 of 1024 patches in its own row."""
    old, new = (patch_positions(32, 32, t) for t in ("transformers-4", "exact"))
    assert int((old == new).sum()) == 1
    config = tiny_flow("smolvla")
    pixels, ids, state = inputs_of(config, 2, 5)
    chunks = []
    for table in ("exact", "transformers-4"):
        model = model_of(config, table=table)
        prefix = model.prefill(model.image_features(pixels), ids, state)
        chunks.append(model.sample_actions(prefix, None, noise_of(config)))
    assert (chunks[0] - chunks[1]).abs().max() > 0.01


def test_bins_are_those_of_float32_states_and_float64_edges() -> None:
    assert state_bins(np.asarray(STATE_PROBES, np.float32)).tolist() == list(STATE_BINS)
    edges = np.linspace(-1, 1, 257)
    for dtype in (np.float32, np.float64):  # an edge belongs to the bin above it
        assert state_bins(edges[:-1].astype(dtype)).tolist() == list(range(256))
    below = np.nextafter(edges[1:-1].astype(np.float32), np.float32(-2))
    assert state_bins(below).tolist() == list(range(255))


def test_the_time_table_in_the_precision_of_its_reference() -> None:
    times = tuple(1 - k / 10 for k in range(10))
    exact, coarse = (time_table(times, 1024, 4e-3, 4.0, p) for p in (torch.float64, torch.float32))
    assert 1e-5 < float((exact - coarse).abs().max()) < 1e-3  # LeRobot's and transformers'
    angle = 2 * np.pi * np.float64(np.float32(0.9)) / 4e-3
    assert float(exact[1, 0]) == pytest.approx(np.sin(angle), abs=1e-9)
    assert float(exact[1, 512]) == pytest.approx(np.cos(angle), abs=1e-9)


def test_the_published_smolvla_is_gated_without_a_file(tmp_path: Path) -> None:
    config = PRESETS["smolvla"]
    assert config.vlm == SMOLVLM2_500M
    stored = read_discrete(tmp_path, config)
    assert stored.position_ids == tuple(range(1024))
    assert check_discrete(config, stored, "here").tolist() == list(range(1024))
    with pytest.raises(
        CheckpointError,
        match=r"here: 1023 of 1024 position ids are not .*\(\[1\] 1 is 0, \[2\] 2 is 1, ",
    ):
        check_discrete(config, replace(stored, table="transformers-4"), "here")


def test_a_file_in_the_folder_decides(tmp_path: Path) -> None:
    config = PRESETS["smolvla-small"]
    for table in ("exact", "transformers-4"):
        (tmp_path / FILE).write_text(json.dumps(discrete_json(config, table)))
        stored = read_discrete(tmp_path, config)
        assert stored.table == table
        ids = check_discrete(config, stored, "here")
        assert torch.equal(ids, position_ids(config, table))
    content = discrete_json(config)
    content["position_ids"][7] = 8  # type: ignore[index]
    (tmp_path / FILE).write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"1 of 36 position ids .*\[7\] 8 is 7"):
        check_discrete(config, read_discrete(tmp_path, config), "here")
    (tmp_path / FILE).write_text('{"position_table": "other"}')
    with pytest.raises(CheckpointError, match="position_table is 'other'"):
        read_discrete(tmp_path, config)
    (tmp_path / FILE).write_text('{"position_ids": [0, 1.5]}')
    with pytest.raises(CheckpointError, match="wanted whole numbers"):
        read_discrete(tmp_path, config)


def test_bins_and_times_of_another_making_are_refused() -> None:
    config = PRESETS["pi05-small"]
    with pytest.raises(CheckpointError, match=r"1 of 2 state bins .*\[1\] 129 is 128"):
        check_discrete(config, Discrete(state_values=(0.25, 0.0), state_bins=(160, 129)), "here")
    with pytest.raises(CheckpointError, match="1 state bins are stored, 2 computed"):
        check_discrete(config, Discrete(state_values=(0.25, 0.0), state_bins=(160,)), "here")
    times = list(discrete_json(config)["time_table"])  # type: ignore[call-overload]
    check_discrete(config, Discrete(time_table=tuple(times)), "here")
    times[3] += 1
    with pytest.raises(CheckpointError, match=r"1 of 280 values of the time table .*\[3\]"):
        check_discrete(config, Discrete(time_table=tuple(times)), "here")
