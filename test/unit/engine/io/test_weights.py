"""What a loaded policy holds: every weight once, in memory of its own, and little else."""

from __future__ import annotations

import gc
import json
import math
import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType

import pytest
import torch
from safetensors.torch import save_file

from support.flow import inputs_of, load_folder, noise_of
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.families.base import Placement
from vla_ros.engine.families.lerobot import (
    PI0,
    PRESETS,
    WEIGHTS,
    build_model,
    expected_tensors,
)
from vla_ros.engine.families.registry import write_folder
from vla_ros.engine.io import weights as weights_of_files
from vla_ros.engine.io.files import header
from vla_ros.engine.io.flow_config import FlowConfig
from vla_ros.engine.io.streamed import Kept
from vla_ros.engine.io.weights import Expected, FileWeights, Shape, Weights
from vla_ros.engine.models.golden_ints import position_ids

CPU = torch.device("cpu")
KINDS = ("pi0-small", "pi05-small", "smolvla-small")
OUTER = ("state_proj", "action_", "time_mlp_")  # kept in float32 whatever the others are


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("flow") / request.param
    write_folder(path, PRESETS[request.param], seed=1)
    return path


def held(*roots: object) -> int:
    """Bytes of all tensors that can be reached from the roots, each storage once."""
    found: dict[int, int] = {}
    seen: set[int] = set()
    stack = list(roots)
    while stack:
        it = stack.pop()
        if id(it) in seen or isinstance(it, (type, ModuleType, FunctionType)):
            continue
        seen.add(id(it))
        if isinstance(it, torch.Tensor):
            storage = it.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        stack.extend(gc.get_referents(it))
    return sum(found.values())


def test_what_a_network_has_not_taken_yet_is_among_its_tensors() -> None:
    """By each way in which a mapping is asked: a bias that is not found is one that is left out."""
    source = {name: torch.full((2, 2), float(i)) for i, name in enumerate("abcd")}
    kept = Kept(source)
    found = kept.get("a")
    assert found is not None
    assert torch.equal(found, source["a"])
    assert "b" in kept
    assert set(kept) == set(kept.keys()) == {n for n, _ in kept.items()} == set("abcd")
    assert len(kept) == 4
    whole, rows = kept.taken(["b", "c"])
    assert torch.equal(whole, torch.cat((source["b"], source["c"])))
    assert rows == [2, 2]
    assert "b" not in kept
    assert kept.get("c") is None
    assert set(kept) == {"a", "d"}
    kept.finish()
    source.clear()
    assert sorted(kept) == ["a", "d"]


class Noted(Weights):
    """Keeps in mind what was asked for."""

    def __init__(self, config: FlowConfig) -> None:
        self._within = PI0.drawn(config, 0, CPU)
        self.shapes = self._within.shapes
        self.taken: list[str] = []

    def take(self, name: str) -> torch.Tensor:
        self.taken.append(name)
        return self._within.take(name)

    def shape(self, name: str) -> Shape:
        return self.shapes[name]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_no_weight_is_held_twice(kind: str, dtype: torch.dtype) -> None:
    config = PRESETS[kind]
    drawn = Noted(config)
    like = torch.empty(0, dtype=dtype)
    model = build_model(config, drawn, position_ids(config, "exact"), like)
    assert len(set(drawn.taken)) == len(drawn.taken)
    last = f"layers.{config.shapes.text.layers - 1}.mlp"
    assert not [n for n in drawn.taken if "text_model" in n and last in n]  # no output needs it
    sizes = {n: math.prod(drawn.shapes[n]) for n in drawn.taken}
    most = sum(s * (4 if n.startswith(OUTER) else dtype.itemsize) for n, s in sizes.items())
    buffers = [model.key_cache, model.value_cache, model.state, model._x, model.cos, model.sin]
    buffers += [model._prefix_mask, model._suffix_mask, *getattr(model, "_cross_kv", ())]
    apart = held(buffers, model.sample, model.rotary, model._pixels, model.solver)
    kept = held(model) - apart
    assert 0.8 * most < kept <= most  # of pi0.5's adaptive norms there are tables, not weights


def mapped(path: Path) -> int:
    """Bytes of a file that are resident in this process through mappings."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    heads = [i for i, line in enumerate(lines) if line.endswith(str(path))]
    after = ("\n".join(lines[i : i + 8]) for i in heads)
    return sum(int(re.findall(r"Rss: +(\d+) kB", text)[0]) * 1024 for text in after)


def write_over(path: Path) -> Iterator[None]:
    """Zeros in the very same file, as ``cp`` leaves them."""
    kept = path.read_bytes()
    with path.open("r+b") as stream:
        stream.seek(len(kept) // 10)
        stream.write(bytes(len(kept) - len(kept) // 10))
    yield
    with path.open("r+b") as stream:
        stream.write(kept)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_loaded_policy_needs_its_file_no_more(folder: Path, dtype: torch.dtype) -> None:
    """A mapped weight would change with the file, and every page read would stay resident."""
    policy = load_folder(folder, Placement(CPU, dtype))
    model, config = policy.model, policy.config
    assert str(folder / WEIGHTS) not in Path("/proc/self/maps").read_text()
    pixels, ids, state = inputs_of(config, 2, 5)

    def chunk() -> torch.Tensor:
        prefix = model.prefill(model.image_features(pixels), ids, state)
        return model.sample_actions(prefix, None, noise_of(config))

    want = chunk()
    for _ in write_over(folder / WEIGHTS):
        assert torch.equal(chunk(), want)


def test_while_it_is_read_little_of_the_file_is_resident(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, path = 1 << 20, tmp_path / WEIGHTS
    expected = Expected({f"tensor{number}": (size // 4,) for number in range(40)})
    save_file({n: torch.ones(s) for n, s in expected.must.items()}, path)
    monkeypatch.setattr(weights_of_files, "WINDOW", 4 * size)
    weights = FileWeights(path, expected)
    most = 0
    for name in expected.must:
        weights.take(name)
        most = max(most, mapped(path))
    assert 0 < most < 12 * size  # a kernel that reads ahead maps pages beside those asked for


def test_a_file_that_changes_while_it_is_read_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_of_files, "WINDOW", 0)
    path = tmp_path / WEIGHTS
    path.write_bytes((folder / WEIGHTS).read_bytes())
    expected = expected_tensors(PRESETS[folder.name])
    weights = FileWeights(path, expected)
    first, second = list(expected.must)[:2]
    weights.take(first)
    os.utime(path, ns=(1, 1))
    with pytest.raises(CheckpointError, match="changed while it was read: load it again"):
        weights.take(second)


@pytest.mark.slow
@pytest.mark.timeout(900)  # of gigabytes; on a busy machine more than any other test's limit
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_at_the_published_size_a_fifth_is_enough(dtype: str) -> None:
    words = ["--checkpoint", "random:smolvla", "--dtype", dtype, "--rows", "flow"]
    code = "import sys; from vla_ros.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "bench", *words, "--timed", "1", "--warm-up", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    memory = json.loads(done.stdout.splitlines()[-1])["memory"]
    assert memory["within_20_percent"], memory
    assert memory["loading"] < 1.2 * memory["weights"], memory


@pytest.mark.parametrize(
    "part",
    ["3", "null", "[1]", "{}", '{"data_offsets": 4}', '{"data_offsets": [0]}',
     '{"data_offsets": [0, "4"]}', '{"data_offsets": [4, 0]}', '{"data_offsets": [-4, 4]}',
     '{"data_offsets": [0, true]}', "[" * 100],
)  # fmt: skip
def test_a_header_that_is_none_is_one_line(tmp_path: Path, part: str) -> None:
    text = f'{{"a": {part}}}'.encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
    with pytest.raises(CheckpointError, match=r"model.safetensors is no whole safetensors file"):
        header(path)


def test_a_header_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 200 << 20))
    os.truncate(path, 300 << 30)
    with pytest.raises(CheckpointError, match=r"a header of 209,715,200 bytes, and at most"):
        header(path)
