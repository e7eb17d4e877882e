"""Adapters, pickled weights, and what is none of the kinds; the verb."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from support.engine import tiny_config
from support.releases import Trap, adapter, oft_release, read_back
from vla_ros.cli.main import main
from vla_ros.engine import CheckpointError
from vla_ros.engine.convert import ConvertOptions, convert
from vla_ros.engine.families.openvla import write_random


@pytest.fixture
def base(tmp_path: Path) -> Path:
    write_random(tmp_path / "base", tiny_config(towers="fused"), seed=1)
    return tmp_path / "base"


def test_an_adapter_is_merged_as_peft_does(tmp_path: Path, base: Path) -> None:
    wanted = adapter(tmp_path / "lora", base)
    with pytest.raises(CheckpointError, match=r"give --base.*\(openvla/openvla-7b\)"):
        convert(tmp_path / "lora", tmp_path / "out")
    done = convert(tmp_path / "lora", tmp_path / "out", ConvertOptions(base=base))
    assert "weights of" in done.summary
    merged = read_back(tmp_path / "out").tensors
    assert max((merged[name] - tensor).abs().max().item() for name, tensor in wanted.items()) < 1e-6
    changed = [n for n, t in load_file(base / "model.safetensors").items()
               if not torch.equal(t, merged[n])]  # fmt: skip
    assert len(changed) > 20


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_dora": True}, "use_dora is True"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"modules_to_save": ["projector"]}, "modules_to_save is"),
        ({"rank_pattern": {"q_proj": 4}}, "rank_pattern is"),
        ({"r": 0}, "r is 0"),
    ],
)
def test_an_adapter_that_is_not_plain_lora_is_refused(
    tmp_path: Path, base: Path, change: dict[str, object], message: str
) -> None:
    adapter(tmp_path / "lora", base)
    path = tmp_path / "lora" / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(CheckpointError, match=f"adapter_config.json.{message}"):
        convert(tmp_path / "lora", tmp_path / "out", ConvertOptions(base=base))
    assert not (tmp_path / "out").exists()


def test_an_adapter_of_another_model_is_refused(tmp_path: Path, base: Path) -> None:
    adapter(tmp_path / "lora", base)
    path = tmp_path / "lora" / "adapter_model.safetensors"
    factors = load_file(path)
    name = next(n for n in factors if n.endswith("lora_A.weight"))
    save_file({**factors, name: torch.ones(2, 99)}, path)
    with pytest.raises(CheckpointError, match="trained on another model"):
        convert(tmp_path / "lora", tmp_path / "out", ConvertOptions(base=base))
    save_file({name: factors[name]}, path)
    with pytest.raises(CheckpointError, match="no pair of factors"):
        convert(tmp_path / "lora", tmp_path / "out", ConvertOptions(base=base))
    save_file({**factors, "base_model.model.x.modules_to_save.weight": torch.ones(1)}, path)
    with pytest.raises(CheckpointError, match=r"holds x.modules_to_save.weight of \[1\], which is"):
        convert(tmp_path / "lora", tmp_path / "out", ConvertOptions(base=base))


def pickled(directory: Path, shards: int) -> dict[str, torch.Tensor]:
    """Turn its safetensors into torch files, as transformers writes them."""
    path = directory / "model.safetensors"
    tensors = load_file(path)
    path.unlink()
    names = sorted(tensors)
    if shards == 1:
        torch.save(tensors, directory / "pytorch_model.bin")
        return tensors
    weight_map = {}
    for number in range(shards):
        file = f"pytorch_model-{number + 1:05d}-of-{shards:05d}.bin"
        torch.save({n: tensors[n] for n in names[number::shards]}, directory / file)
        weight_map |= dict.fromkeys(names[number::shards], file)
    index = directory / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    return tensors


def test_weights_that_peft_keeps_beside_its_factors_stand_for_the_base_s(
    tmp_path: Path, base: Path
) -> None:
    """With all-linear it adapts the head too, and then keeps head and embedding as they are."""
    wanted = adapter(tmp_path / "lora", base)
    path = tmp_path / "lora" / "adapter_model.safetensors"
    head, table = (f"language_model.{n}.weight" for n in ("lm_head", "model.embed_tokens"))
    kept = torch.full_like(wanted[table], 0.5)
    named = {f"base_model.model.{head}".replace(".weight", ".base_layer.weight"): wanted[head],
             f"base_model.model.{table}": kept}  # fmt: skip
    save_file({**load_file(path), **named}, path)
    convert(tmp_path / "lora", tmp_path / "out", ConvertOptions(base=base))
    merged = read_back(tmp_path / "out").tensors
    assert torch.equal(merged[head], wanted[head])
    assert torch.equal(merged[table], kept)


@pytest.mark.parametrize("shards", [1, 3])
def test_pickled_weights_become_safetensors(tmp_path: Path, base: Path, shards: int) -> None:
    tensors = pickled(base, shards)
    with pytest.raises(CheckpointError, match=r"a pickle.*run `vla-ros convert"):
        read_back(base)
    convert(base, tmp_path / "out")
    loaded = read_back(tmp_path / "out")
    assert all(torch.equal(loaded.tensors[name], tensor) for name, tensor in tensors.items())


def test_torch_s_format_before_zip_is_read_too(tmp_path: Path, base: Path) -> None:
    tensors = pickled(base, 1)
    torch.save(tensors, base / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    convert(base, tmp_path / "out")
    assert len(read_back(tmp_path / "out").tensors) == len(tensors)


def test_a_pickle_with_code_never_runs(
    tmp_path: Path, base: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pickled(base, 1)
    torch.save({"x": Trap()}, base / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model.bin: a pickle that asks for .*print"):
        convert(base, tmp_path / "out")
    assert "code ran" not in "".join(capfd.readouterr())


def test_a_pickle_is_refused_where_torch_could_run_its_code(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pickled(base, 1)
    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    with pytest.raises(CheckpointError, match="CVE-2025-32434"):
        convert(base, tmp_path / "out")


def test_the_verb_says_what_it_read_and_what_it_wrote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    oft_release(tmp_path / "oft")
    assert main(["convert", str(tmp_path / "oft"), str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "action_head--150000_checkpoint.pt" in said
    assert "unnorm_key libero_spatial_no_noops" in said
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()}
    assert len(modes) == 1  # the weights as readable as the rest


def test_a_full_disk_is_one_line_and_leaves_nothing(
    tmp_path: Path, base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here: files of at most 100 kB."""
    pickled(base, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        status = main(["convert", str(base), str(tmp_path / "out")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert status == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("vla-ros convert: ")
    assert "cannot write" in line
    assert [path.name for path in tmp_path.iterdir()] == ["base"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda d: None, "nothing to convert in"),
        (lambda d: write_random(d / "x", tiny_config(), seed=1), "nothing to convert in"),
        (lambda d: (d / "config.json").write_text('{"type": "tdmpc", "input_features": {}}'),
         "a policy of lerobot, of type 'tdmpc'"),
        *(
            (lambda d, kind=kind: (d / "config.json").write_text(json.dumps({"type": kind})),
             "is a policy that is read as it is")
            for kind in ("pi0", "act")
        ),
    ],
)  # fmt: skip
def test_the_verb_ends_with_one_line_and_status_2(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    make,
    message: str,  # type: ignore[no-untyped-def]
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    make(source)
    assert main(["convert", str(source), str(tmp_path / "out")]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("vla-ros convert: ")
    assert message in lines[0]


def test_what_needs_no_conversion_is_said(tmp_path: Path, base: Path) -> None:
    raw = json.loads((base / "config.json").read_text())
    raw["vision_backbone_id"] = "dinosiglip-vit-so-224px"
    (base / "config.json").write_text(json.dumps(raw))
    with pytest.raises(CheckpointError, match="already: use it as it is"):
        convert(base, tmp_path / "out")
    with pytest.raises(CheckpointError, match="no/such is no directory: give one"):
        convert(Path("no/such"), tmp_path / "out")
