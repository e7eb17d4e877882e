"""Flow policies with weights of fewer bits: quantised when loaded and ahead of time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from vla_ros.cli.main import main
from vla_ros.engine import EngineOptions, load_engine
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.flow.families import all_presets, family_of
from vla_ros.engine.flow.family import Choice, Place
from vla_ros.engine.flow.matrices import Formatting, Made, Make, Take
from vla_ros.engine.flow.quantise import quantise_flow
from vla_ros.engine.inspection import inspect, refuse_weights
from vla_ros.engine.quantised.formats import parse_formats
from vla_ros.engine.quantised.fp8 import Fp8
from vla_ros.engine.quantised.matrices import quantise

SMALL = [name for name in all_presets() if name.endswith("-small")]
MIXED = "vision=int8,decoder=int4,head=fp8"
CPU = torch.device("cpu")


def folder(tmp_path: Path, preset: str) -> Path:
    source = tmp_path / "it"
    family_of(f"random:{preset}").write(source, preset, 1)
    return source


def chunk(source: Path, weights: str = "", kind: type[Place] = Place) -> torch.Tensor:
    place = kind(CPU, torch.bfloat16, None, parse_formats(weights))
    model = family_of(source).load(source, Choice(), place).model
    generator = torch.Generator().manual_seed(2)
    given = model.example(5, generator)
    prefix = model.prefill(model.see(given.pixels), given.ids, given.state)
    out: torch.Tensor = model.integrate(prefix, None, model.noise(generator))
    return out


@pytest.mark.parametrize("preset", SMALL)
def test_ahead_of_time_is_the_same_to_the_bit(preset: str, tmp_path: Path) -> None:
    source, target = folder(tmp_path, preset), tmp_path / "few"
    done = quantise_flow(str(source), parse_formats(MIXED), target)
    assert done.after < done.before
    now = chunk(source, MIXED)
    assert torch.equal(now, chunk(target))
    off = float((now - chunk(source)).norm() / now.norm())
    assert 0.001 < off < 0.3  # it is quantised, and still the same policy
    found = inspect(str(target))
    assert found.kind == inspect(str(source)).kind
    assert found.parameters == inspect(str(source)).parameters


class Widened(Formatting):
    """The same matrices, quantised and made floats again: plain products."""

    def made(self, name: str, part: str, like: torch.Tensor, make: Make, take: Take) -> Made:
        weight, bias = make(take)
        kind = getattr(self._formats, part)
        whole = weight if kind == "bf16" else quantise(weight, kind).whole()
        return whole.to(like), None if bias is None else bias.to(like)


class WidenedPlace(Place):
    def formatted(self, weights):  # type: ignore[no-untyped-def]
        return Widened(weights, self.formats)


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("preset", ["pi05-small", "smolvla-small", "evo1-small"])
def test_products_are_those_of_the_matrices(preset: str, kind: str, tmp_path: Path) -> None:
    """What a chunk is off by beside plain products of the same numbers is rounding to bfloat16."""
    source = folder(tmp_path, preset)
    every = f"vision={kind},decoder={kind},head={kind}"
    few, same = chunk(source, every), chunk(source, every, WidenedPlace)
    rounding = 0.04
    assert float((few - same).norm() / same.norm()) < rounding
    if kind == "int4":  # of other numbers it is further away
        assert float((few - chunk(source)).norm() / same.norm()) > 0.01


class Beside:
    """An fp8 matrix, and what it says by its definition: the floats that it stands for, in float64,
    times inputs whose rows are rounded to e4m3 as on a GPU. ``off``: how far each product was from
    that, and from the same with inputs as they came."""

    def __init__(self, matrix: Fp8, off: list[tuple[float, float]]) -> None:
        self._matrix, self._off = matrix.ready(), off
        self._floats = matrix.values.double() * matrix.scale.double()[:, None]

    def __len__(self) -> int:
        return len(self._matrix)

    def times(self, x: torch.Tensor) -> torch.Tensor:
        factor = (x.float().abs().amax(1, keepdim=True) / 448.0).clamp_min(1e-30)
        rounded = (x.float() / factor).to(torch.float8_e4m3fn).double() * factor
        out = self._matrix.times(x)
        right, other = (rows @ self._floats.T for rows in (rounded, x.double()))
        if x.any():
            far, further = (float((out - it).norm() / right.norm()) for it in (right, other))
            self._off.append((far, further))
        return out


class BesidePlace(Place):
    off: ClassVar[list[tuple[float, float]]] = []

    def formatted(self, weights):  # type: ignore[no-untyped-def]
        return BesideFormatting(weights, self.formats)


class BesideFormatting(Formatting):
    def made(self, name: str, part: str, like: torch.Tensor, make: Make, take: Take) -> Made:
        weight, bias = make(take)
        few = quantise(weight, getattr(self._formats, part))
        assert isinstance(few, Fp8)
        beside: Any = Beside(few, BesidePlace.off)
        return beside, None if bias is None else bias.to(like)


@pytest.mark.parametrize("preset", SMALL)
def test_fp8_products_are_those_of_the_floats_and_of_rounded_inputs(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every product of a chunk, each with the inputs that it gets there."""
    source = folder(tmp_path, preset)
    every = "vision=fp8,decoder=fp8,head=fp8"
    off: list[tuple[float, float]] = []
    monkeypatch.setattr(BesidePlace, "off", off)
    assert torch.equal(chunk(source, every, BesidePlace), chunk(source, every))
    assert len(off) > 50
    assert max(right for right, _ in off) < 2**-8  # a rounding to bfloat16, and the order of sums
    assert min(other for _, other in off) > 0.01  # without the inputs' rounding it is another


def test_each_part_is_its_own(tmp_path: Path) -> None:
    source = folder(tmp_path, "pi05-small")
    said = []
    for number, part in enumerate(("vision", "decoder", "head")):
        target = tmp_path / f"few{number}"
        quantise_flow(str(source), parse_formats(f"{part}=int8"), target)
        names = json.loads((target / "quantised.json").read_text())["tensors"]
        said.append({name for name in names if name.endswith(".int8")})
    vision, decoder, head = said
    assert all("vision_tower" in name or "projector" in name for name in vision)
    assert all("language_model" in name for name in decoder)
    assert all("gemma_expert" in name for name in head)
    assert len(vision) == 3 * 4 + 1
    assert len(decoder) == 2 * 4 + 1  # of the last layer K and V
    assert len(head) == 3 * 4


def test_what_cannot_be_is_one_line(tmp_path: Path) -> None:
    source, target = folder(tmp_path, "pi05-small"), tmp_path / "few"
    quantise_flow(str(source), parse_formats("int8"), target)
    for options, said in (
        ({"dtype": "float32", "weights": "int8"}, "give dtype bfloat16"),
        ({"dtype": "bfloat16", "weights": "int8", "rtc": "true"}, "give rtc 'identity'"),
    ):
        with pytest.raises(CheckpointError, match=said):
            load_engine(EngineOptions(str(source), **options))  # type: ignore[arg-type]
    for options, said in (
        ({"dtype": "float32"}, "give dtype bfloat16"),
        ({"dtype": "bfloat16", "rtc": "true"}, "give rtc 'identity'"),
        ({"dtype": "bfloat16", "weights": "int4"}, "quantised already"),
    ):
        with pytest.raises(CheckpointError, match=said):
            load_engine(EngineOptions(str(target), **options))  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="two bits as they are"):
        refuse_weights("random:bitvla-small", "int8", "cpu", "bfloat16")
    with pytest.raises(CheckpointError, match="not on mps"):
        refuse_weights(str(source), "int8", "mps", "bfloat16")


def _without(names: list[str]) -> list[str]:
    return names[1:]


def _with_another(names: list[str]) -> list[str]:
    return [*names, "another.int8"]


@pytest.mark.parametrize(("change", "said"), [(_without, "unused"), (_with_another, "missing")])
def test_a_tensor_that_is_not_listed(change, said: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    source, target = folder(tmp_path, "pi05-small"), tmp_path / "few"
    quantise_flow(str(source), parse_formats("int8"), target)
    listed = json.loads((target / "quantised.json").read_text())
    listed["tensors"] = change(listed["tensors"])
    (target / "quantised.json").write_text(json.dumps(listed))
    with pytest.raises(CheckpointError, match=said):
        inspect(str(target))


@pytest.mark.parametrize("damage", ["shape", "value"])
def test_a_damaged_matrix_is_named(damage: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    source, target = folder(tmp_path, "pi05-small"), tmp_path / "few"
    quantise_flow(str(source), parse_formats("fp8"), target)
    tensors = load_file(str(target / "model.safetensors"))
    name = next(n for n in tensors if n.endswith("qkv.fp8"))
    if damage == "shape":
        tensors[name] = tensors[name][:-1].clone()
    else:
        tensors[name].view(torch.uint8)[0, 0] = 0x7F  # e4m3's NaN
    save_file(tensors, str(target / "model.safetensors"))
    with pytest.raises(CheckpointError, match=f"{name} (is|has)"):
        chunk(target)


@pytest.mark.parametrize("weights", ["int8", "int4", "fp8"])
def test_the_gate_judges_it(
    weights: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source, target = folder(tmp_path, "pi05-small"), str(tmp_path / "few")
    gate = ["gate", "--synthetic", "--frames", "1", "--threads", "1", "--json"]
    gate += ["--max-error", "0.5"]  # random weights
    assert main([*gate, "--checkpoint", str(source), "--weights", weights]) == 0
    now = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert now["weights"] == f"decoder={weights},head={weights}"
    worst = max(stage["worst"] for stage in now["stages"])
    assert worst > 0.002
    words = ["quantize", "--checkpoint", str(source), "--weights", weights, "--out", target]
    assert main(words) == 0
    capsys.readouterr()
    assert main([*gate, "--checkpoint", target]) == 0
    made = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert made["reference"] == str(source)
    assert max(stage["worst"] for stage in made["stages"]) == worst


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["quantize", "--weights", "int8", "--checkpoint", "random:pi05-small"], "made anew"),
        (["quantize", "--weights", "head=int9", "--checkpoint", "shipped:tabletop-flow"], "fp8"),
        (["gate", "--weights", "int8", "--dtype", "float16", "--checkpoint",
          "shipped:tabletop-flow"], "give dtype bfloat16"),
        (["eval", "--no-ros", "--weights", "int8", "--checkpoint", "shipped:tabletop-flow"],
         "give dtype bfloat16"),
        (["bench", "--weights", "int8", "--dtype", "float32", "--checkpoint",
          "random:pi05-small"], "give dtype bfloat16"),
    ],
)  # fmt: skip
def test_wrong_usage(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if words[0] == "quantize":
        words = [*words, "--out", str(tmp_path / "x")]
    assert main(words) == 2
    assert said in capsys.readouterr().err.splitlines()[-1]
