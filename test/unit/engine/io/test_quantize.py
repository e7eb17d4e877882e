"""Flow, then token policies with weights of fewer bits: quantized when loaded, ahead of time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from support.engine import CLOCK, observation, play, stream, tiny_config
from vla_ros.cli.main import main
from vla_ros.core.types import Timeline
from vla_ros.engine import CheckpointError, Engine, EngineOptions, load_engine
from vla_ros.engine.families.base import LoadOptions, Placement
from vla_ros.engine.families.openvla import write_random
from vla_ros.engine.families.registry import all_presets, family_of, write_folder
from vla_ros.engine.formats import parse_formats
from vla_ros.engine.io.quantize import Made, Make, QuantizingWeights, Take
from vla_ros.engine.layers.fp8 import Fp8
from vla_ros.engine.layers.linear import quantize
from vla_ros.engine.load import inspect, refuse_weights, sha256_on_disk
from vla_ros.engine.quantize import quantize_checkpoint

#: Flow policies; TurboVLA's weights are run as they are stored.
SMALL = [n for n in all_presets() if n.endswith("-small") and n[:4] not in ("bitv", "pi0_", "turb")]
MIXED = "vision=int8,decoder=int4,head=fp8"
CPU = torch.device("cpu")


def folder(tmp_path: Path, preset: str) -> Path:
    source = tmp_path / "it"
    write_folder(source, all_presets()[preset], 1)
    return source


def few(tmp_path: Path, formats: str) -> tuple[Path, Path]:
    """A folder of pi0.5, and the same in other formats."""
    source, target = folder(tmp_path, "pi05-small"), tmp_path / "few"
    quantize_checkpoint(str(source), parse_formats(formats), target)
    return source, target


def chunk(source: Path, weights: str = "", kind: type[Placement] = Placement) -> torch.Tensor:
    place = kind(CPU, torch.bfloat16, None, parse_formats(weights))
    model = family_of(source).load(source, LoadOptions(), place).model
    generator = torch.Generator().manual_seed(2)
    given = model.example(5, generator)
    prefix = model.prefill(model.image_features(given.pixels), given.ids, given.state)
    out: torch.Tensor = model.sample_actions(prefix, None, model.noise(generator))
    return out


@pytest.mark.parametrize("preset", SMALL)
def test_ahead_of_time_is_the_same_to_the_bit(preset: str, tmp_path: Path) -> None:
    source, target = folder(tmp_path, preset), tmp_path / "few"
    done = quantize_checkpoint(str(source), parse_formats(MIXED), target)
    assert done.after < done.before
    now = chunk(source, MIXED)
    assert torch.equal(now, chunk(target))
    off = float((now - chunk(source)).norm() / now.norm())
    assert 0.001 < off < 0.3  # it is quantized, and still the same policy
    found = inspect(str(target))
    assert found.kind == inspect(str(source)).kind
    assert found.parameters == inspect(str(source)).parameters


def test_pi0_fast_ahead_of_time_says_the_same(tmp_path: Path) -> None:
    source, target = folder(tmp_path, "pi0_fast-small"), tmp_path / "few"
    done = quantize_checkpoint(str(source), parse_formats("vision=int8,decoder=int4"), target)
    assert done.after < done.before
    spelled = []
    for of, weights in ((source, "vision=int8,decoder=int4"), (target, "")):
        engine = load_engine(EngineOptions(str(of), dtype="bfloat16", weights=weights))
        engine.reset("pick up the red cube")
        image = stream(1, {})[0].image
        state = np.linspace(-1, 1, engine.info.state_dim)
        frame = replace(observation(1, image), wrist_image=image, proprio=state)
        spelled.append(engine.step(frame, Timeline(CLOCK.steady_ns()), CLOCK).tokens)
    assert spelled[0] == spelled[1]
    assert len(spelled[0]) > 4


def test_turbovla_has_no_fewer_bits(tmp_path: Path) -> None:
    source = folder(tmp_path, "turbovla-small")
    with pytest.raises(CheckpointError, match="leave weights empty"):
        load_engine(EngineOptions(str(source), dtype="bfloat16", weights="int8"))


class Widened(QuantizingWeights):
    """The same matrices, quantized and made floats again: plain products."""

    def made(self, name: str, part: str, like: torch.Tensor, make: Make, take: Take) -> Made:
        rows, bias = make(take)
        weight = rows.placed(torch.empty(0))
        kind = getattr(self._formats, part)
        whole = weight if kind == "bf16" else quantize(weight, kind).whole()
        return whole.to(like), None if bias is None else bias.to(like)


class WidenedPlace(Placement):
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


class BesidePlace(Placement):
    off: ClassVar[list[tuple[float, float]]] = []

    def formatted(self, weights):  # type: ignore[no-untyped-def]
        return BesideFormatting(weights, self.formats)


class BesideFormatting(QuantizingWeights):
    def made(self, name: str, part: str, like: torch.Tensor, make: Make, take: Take) -> Made:
        rows, bias = make(take)
        few = quantize(rows.placed(torch.empty(0)), getattr(self._formats, part))
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
    assert len(off) >= (43 if preset == "act-small" else 51)  # ACT's chunk is one pass
    assert max(right for right, _ in off) < 2**-8  # a rounding to bfloat16, and the order of sums
    assert min(other for _, other in off) > 0.01  # without the inputs' rounding it is another


def test_each_part_is_its_own(tmp_path: Path) -> None:
    source = folder(tmp_path, "pi05-small")
    said = []
    for number, part in enumerate(("vision", "decoder", "head")):
        target = tmp_path / f"few{number}"
        quantize_checkpoint(str(source), parse_formats(f"{part}=int8"), target)
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
    source, target = few(tmp_path, "int8")
    for options, said in (
        ({"dtype": "float32", "weights": "int8"}, "give dtype bfloat16"),
        (
            {"dtype": "bfloat16", "weights": "int8", "rtc_mode": "guided_vjp"},
            "give rtc_mode 'guided'",
        ),
    ):
        with pytest.raises(CheckpointError, match=said):
            load_engine(EngineOptions(str(source), **options))  # type: ignore[arg-type]
    for options, said in (
        ({"dtype": "float32"}, "give dtype bfloat16"),
        ({"dtype": "bfloat16", "rtc_mode": "guided_vjp"}, "give rtc_mode 'guided'"),
        ({"dtype": "bfloat16", "weights": "int4"}, "quantized already"),
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


@pytest.mark.parametrize(("change", "said"), [(_without, "extra"), (_with_another, "missing")])
def test_a_tensor_that_is_not_listed(change, said: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    _, target = few(tmp_path, "int8")
    listed = json.loads((target / "quantised.json").read_text())
    listed["tensors"] = change(listed["tensors"])
    (target / "quantised.json").write_text(json.dumps(listed))
    with pytest.raises(CheckpointError, match=said):
        inspect(str(target))


@pytest.mark.parametrize("damage", ["shape", "value"])
def test_a_damaged_matrix_is_named(damage: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    _, target = few(tmp_path, "fp8")
    tensors = load_file(str(target / "model.safetensors"))
    name = next(n for n in tensors if n.endswith("qkv.fp8"))
    if damage == "shape":
        tensors[name] = tensors[name][:-1].clone()
    else:
        tensors[name].view(torch.uint8)[0, 0] = 0x7F  # e4m3's NaN
    save_file(tensors, str(target / "model.safetensors"))
    with pytest.raises(CheckpointError, match=f"{name} (is|holds)"):
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
    gate = ["verify", "--synthetic", "--frames", "1", "--num-threads", "1", "--json"]
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
        (["quantize", "--weights", "int5", "--checkpoint", "shipped:tabletop"],
         "give bf16, int8, int4, fp8"),
        (["quantize", "--weights", "bf16", "--checkpoint", "shipped:tabletop"],
         "quantizes nothing"),
        (["quantize", "--weights", "int8", "--checkpoint", "random:small"], "made anew"),
        (["quantize", "--weights", "int8", "--checkpoint", "nowhere"], "neither a directory"),
        (["verify", "--weights", "int8", "--dtype", "float16", "--checkpoint",
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
    assert not (tmp_path / "x").exists()


ALL = "vision=int8,decoder=int4,head=int8"
EVENTS = stream(4, {0: "pick up the red cube"})


@pytest.fixture(params=["llama_gqa", "qwen2_tied"])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    write_random(tmp_path / "it", tiny_config(request.param, "fused"), seed=1)
    return tmp_path / "it"


def loaded(checkpoint: Path, weights: str = "", **options: object) -> Engine:
    return load_engine(
        EngineOptions(str(checkpoint), dtype="bfloat16", weights=weights, **options)  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("weights", ["int8", "int4", "fp8", ALL])
def test_ahead_of_time_is_the_same_to_the_bit_of_tokens(checkpoint: Path, weights: str) -> None:
    """And decodings run: speculation over the quantized weights answers every frame."""
    target = checkpoint.with_name("few")
    done = quantize_checkpoint(str(checkpoint), parse_formats(weights), target)
    assert done.after < done.before
    now, before = play(loaded(checkpoint, weights), EVENTS), play(loaded(target), EVENTS)
    assert now.keys() == before.keys() == set(range(4))
    for stamp, inference in now.items():
        assert inference.tokens == before[stamp].tokens
        np.testing.assert_array_equal(inference.actions, before[stamp].actions)
    assert sha256_on_disk(str(target)) != sha256_on_disk(str(checkpoint))
    assert inspect(str(target)).parameters > 0


def test_maps_of_few_bits_keep_their_biases(checkpoint: Path) -> None:
    """A tower in int8 says what the same tower says in bfloat16, but for the rounding."""
    image = EVENTS[0].image
    found = []
    for weights in ("", "vision=int8"):
        model = loaded(checkpoint, weights).model
        tower = next(m for n, m in model.vision.named_modules() if n.endswith("blocks.0.mlp.fc1"))
        assert tower.bias is not None
        engine = loaded(checkpoint, weights)
        engine.reset("pick up the red cube")
        request = engine.encode(observation(1, image), Timeline(0), CLOCK)
        found.append(request.features.float())
    assert 0 < float((found[0] - found[1]).norm() / found[0].norm()) < 0.05


def test_what_it_was_made_of_is_written_down(checkpoint: Path) -> None:
    target = checkpoint.with_name("few")
    quantize_checkpoint(str(checkpoint), parse_formats("int8"), target)
    said = json.loads((target / "quantised.json").read_text())
    assert said["weights"] == "decoder=int8,head=int8"
    assert said["source"] == str(checkpoint)
    assert said["source_sha256"] == sha256_on_disk(str(checkpoint))


def test_what_cannot_be_is_one_line_of_tokens(checkpoint: Path) -> None:
    for options, said in (
        ({"dtype": "float32"}, "give dtype bfloat16"),
        ({"decoding": "generate"}, "no quantized weights"),
        ({"decoding": "speculative", "acceptance": "sampling", "weights": "int4"}, "head=int8"),
    ):
        asked = {"dtype": "bfloat16", "weights": "int8", **options}
        with pytest.raises(ValueError, match=said):
            load_engine(EngineOptions(str(checkpoint), **asked))  # type: ignore[arg-type]
    target = checkpoint.with_name("few")
    quantize_checkpoint(str(checkpoint), parse_formats("int8"), target)
    with pytest.raises(CheckpointError, match="give dtype bfloat16"):
        load_engine(EngineOptions(str(target)))
    with pytest.raises(ValueError, match="quantized already"):
        loaded(target, "int4")
    with pytest.raises(CheckpointError, match="exists"):
        quantize_checkpoint(str(checkpoint), parse_formats("int8"), target)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"weights": "int8", "group": 64}, "groups of 64"),
        ({"weights": "int9", "group": 32}, "give bf16, int8, int4, fp8"),
        ({"weights": "int4", "group": 32}, "do not fit"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, content: dict[str, object], said: str) -> None:
    write_random(tmp_path / "it", tiny_config(), seed=1)
    quantize_checkpoint(str(tmp_path / "it"), parse_formats("int8"), tmp_path / "few")
    (tmp_path / "few" / "quantised.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=said):
        loaded(tmp_path / "few")


@pytest.mark.parametrize("kind", ["int8", "int4", "fp8"])
def test_sizes_that_no_kernel_takes(tmp_path: Path, kind: str) -> None:
    """They are padded, when they are multiplied and not on the disk."""
    config = tiny_config()
    config = replace(config, text=replace(config.text, intermediate_size=100))
    write_random(tmp_path / "it", config, seed=1)
    quantize_checkpoint(str(tmp_path / "it"), parse_formats(kind), tmp_path / "few")
    now, before = (
        play(loaded(*which), EVENTS) for which in ((tmp_path / "it", kind), (tmp_path / "few",))
    )
    assert [i.tokens for i in now.values()] == [i.tokens for i in before.values()]


def test_the_head_of_oft(tmp_path: Path) -> None:
    """Its wide maps have fewer bits, its last one stays; read back, it says the same."""
    config = replace(tiny_config("llama_gqa"), parallel=True, chunk=4)
    write_random(tmp_path / "it", config, seed=1)
    quantize_checkpoint(str(tmp_path / "it"), parse_formats("head=int8"), tmp_path / "few")
    engine, other = loaded(tmp_path / "it", "head=int8"), loaded(tmp_path / "few")
    assert len(engine.model.quantized_head) == 3
    now, before = play(engine, EVENTS), play(other, EVENTS)
    for stamp, inference in now.items():
        np.testing.assert_array_equal(inference.actions, before[stamp].actions)
    plain = play(loaded(tmp_path / "it"), EVENTS)
    apart = np.abs(plain[0].actions - now[0].actions).max()
    assert 0 < apart < 0.05


def test_the_verbs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Quantize, then a gate against what it was made of; the verdict belongs to the new files."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_random(tmp_path / "it", tiny_config(), seed=1)
    source, target = str(tmp_path / "it"), str(tmp_path / "few")
    words = ["quantize", "--checkpoint", source, "--weights", ALL, "--out", target, "--json"]
    assert main(words) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["bytes"] < said["bytes_before"]
    gate = ["verify", "--synthetic", "--frames", "2", "--json"]
    gate += ["--max-margin", "1", "--max-error", "0.5"]  # random weights
    assert main([*gate, "--checkpoint", target]) == 0
    made = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert made["reference"] == source
    assert main([*gate, "--checkpoint", source, "--weights", ALL]) == 0
    loaded_so = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert loaded_so["stages"] == made["stages"]
    assert loaded_so["weights"] == ALL
    assert {s["name"]: s["worst"] > 0.02 for s in made["stages"]}["layer 0"]  # int4 is seen
    assert (tmp_path / "few" / "precision").is_dir()
