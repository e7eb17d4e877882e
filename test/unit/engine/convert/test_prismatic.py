"""Runs of prismatic: MiniVLA's release layout, rebuilt from random weights."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from support.engine import TEXTS, engine_of, play, stream, tiny_config
from support.releases import UNEQUAL, Trap, prismatic_parts, prismatic_run, read_back, vq_vae
from vla_ros.engine import CheckpointError
from vla_ros.engine.convert import ConvertOptions, convert
from vla_ros.engine.convert.pickles import read_content
from vla_ros.engine.convert.prismatic import convert_prismatic, describe
from vla_ros.engine.families.openvla import PRESETS, expected_shapes, write_random
from vla_ros.engine.io.field_table import Fields


def converted(source: Path, target: Path, **options: object) -> Path:
    """As `vla-ros convert` does it, for a model of tiny size."""
    target.mkdir()
    given = {"tokenizer": None, "config": UNEQUAL, **options}
    convert_prismatic(source, target, **given)  # type: ignore[arg-type]
    return target


def test_towers_of_unequal_depth_keep_all_their_blocks(tmp_path: Path) -> None:
    """Each tower's own last block is unused: SigLIP's block of DINOv2's depth is not."""
    config = read_back(converted(prismatic_run(tmp_path / "run"), tmp_path / "out")).config
    assert config == UNEQUAL
    tensors = read_back(tmp_path / "out").tensors
    assert "vision_backbone.fused_featurizer.blocks.2.norm1.weight" in tensors
    assert "vision_backbone.featurizer.blocks.2.norm1.weight" not in tensors
    assert set(tensors) == set(expected_shapes(UNEQUAL))


def test_a_run_says_the_same_after_conversion(tmp_path: Path) -> None:
    write_random(tmp_path / "direct", UNEQUAL, seed=1)
    converted(prismatic_run(tmp_path / "run"), tmp_path / "out")
    events = stream(4, {0: TEXTS[0]})
    both = [play(engine_of(read_back(tmp_path / name)), events) for name in ("out", "direct")]
    assert [a.tokens for a in both[0].values()] == [a.tokens for a in both[1].values()]


def test_a_single_tower_and_an_untied_head(tmp_path: Path) -> None:
    """OpenVLA v0.1: SigLIP alone, called featurizer."""
    config = replace(tiny_config(), prompt_style="openvla-v0.1")
    run = prismatic_run(tmp_path / "run", config, "siglip-224px+7b")
    (path,) = (run / "checkpoints").glob("*.pt")
    parts = prismatic_parts(config)
    vision = {n.replace("dino_", ""): t for n, t in parts["vision_backbone"].items()}
    torch.save({"model": {**parts, "vision_backbone": vision}}, path)
    assert read_back(converted(run, tmp_path / "out", config=config)).config == config


def said(**vla: object) -> Fields:
    return Fields({"base_vlm": "prism-qwen25-extra-dinosiglip-224px+0_5b", **vla}, "vla")


def test_the_action_tokens_end_where_the_run_s_action_tokenizer_says() -> None:
    """extra: the tokenizer's length; plain: its vocab_size, without what was added to it."""
    extra = describe(said(action_tokenizer="extra_action_tokenizer"), Path("run"))
    plain = describe(said(action_tokenizer="action_tokenizer"), Path("run"))
    assert (extra.action_vocab, plain.action_vocab) == (151921, 151643)
    assert describe(said(), Path("run")).action_vocab == 151643  # prismatic's default
    assert replace(extra, text=PRESETS["minivla"].text) == PRESETS["minivla"]


def test_base_models_are_told_apart() -> None:
    openvla = describe(said(base_vlm="prism-dinosiglip-224px+7b"), Path("run"))
    text = replace(openvla.text, vocab_size=32064)
    assert replace(openvla, text=text) == PRESETS["openvla-7b"]
    v01 = describe(said(base_vlm="/runs/siglip-224px+7b"), Path("run"))
    assert (v01.prompt_style, v01.resize, len(v01.towers)) == ("openvla-v0.1", "letterbox", 1)
    wrist = describe(said(image_sequence_len=2, use_wrist_image=True), Path("run"))
    assert wrist.images == 2


@pytest.mark.parametrize(
    ("vla", "message"),
    [
        ({"base_vlm": "prism-clip+7b"}, "base_vlm is 'prism-clip.7b'; known are prism-dino"),
        ({"image_sequence_len": 2}, "2 images, a history of frames"),
        ({"image_sequence_len": 4, "use_wrist_image": True}, "4 images"),
        ({"action_tokenizer": "fast"}, "action_tokenizer is 'fast'"),
        ({"action_tokenizer": "libero_vq_extra_action_tokenizer"}, "give --vq"),
        ({"action_tokenizer": 3}, "action_tokenizer is 3: wanted a string"),
    ],
)
def test_what_a_run_cannot_be_converted_for_is_said(
    tmp_path: Path, vla: dict[str, object], message: str
) -> None:
    run = prismatic_run(tmp_path / "run", **vla)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=message) as error:
        convert(run, tmp_path / "out")
    assert "\n" not in str(error.value)
    assert [p.name for p in tmp_path.iterdir()] == ["run"]  # nothing half done is left


def test_a_model_of_another_size_is_refused_with_the_file(tmp_path: Path) -> None:
    run = prismatic_run(tmp_path / "run")  # tiny, and says it is MiniVLA
    with pytest.raises(CheckpointError, match=r"tensors in .*step-000001.* do not fit"):
        convert(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_newest_step_is_taken_and_another_can_be_asked_for(tmp_path: Path) -> None:
    run = prismatic_run(tmp_path / "run")
    (first,) = (run / "checkpoints").glob("*.pt")
    parts = prismatic_parts(UNEQUAL, seed=2)
    torch.save({"model": parts}, run / "checkpoints" / "step-000020-epoch-01-loss=0.0.pt")
    torch.save({"model": parts}, run / "checkpoints" / "latest-checkpoint.pt")
    newest, old = (
        read_back(converted(run, tmp_path / str(step), step=step)).tensors["projector.fc1.weight"]
        for step in (None, "1")
    )
    assert torch.equal(newest, parts["projector"]["projector.0.weight"])
    assert not torch.equal(newest, old)
    with pytest.raises(CheckpointError, match=r"no checkpoints/step-7\*.pt"):
        converted(run, tmp_path / "x", step="7")
    assert first.exists()


def test_a_pickle_with_code_is_refused_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = prismatic_run(tmp_path / "run")
    torch.save(Trap(), run / "checkpoints" / "step-000002.pt")
    with pytest.raises(CheckpointError, match=r"step-000002.pt: a pickle that asks for \S*print"):
        convert(run, tmp_path / "out")
    assert "code ran" not in "".join(capfd.readouterr())


class System:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch ran",)


class Rebuilt:
    """Through torch's own function, which is allowed."""

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return torch._utils._rebuild_tensor_v2, (System(), 0, (1,), (1,), False, {})


PICKLES = {
    "zip": lambda path: torch.save({"x": System()}, path),
    "before zip": lambda path: torch.save(
        {"x": System()}, path, _use_new_zipfile_serialization=False
    ),
    "inside a tensor": lambda path: torch.save({"x": Rebuilt()}, path),
    "plain": lambda path: path.write_bytes(pickle.dumps(System())),
    "of protocol 2": lambda path: path.write_bytes(pickle.dumps(System(), 2)),
    "TorchScript": lambda path: torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(path)),
    "a module": lambda path: torch.save(torch.nn.Linear(2, 2), path),
}


@pytest.mark.parametrize("kind", PICKLES)
@pytest.mark.filterwarnings("ignore")
def test_whatever_pickle_it_is_the_reason_is_that_it_runs_code(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    PICKLES[kind](tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match=r"x.pt: .*run code; it is not read. Ask .*") as error:
        read_content(tmp_path / "x.pt")
    assert "\n" not in str(error.value) and not (tmp_path / "ran").exists()


def test_an_archive_that_unpacks_to_gigabytes_is_refused(tmp_path: Path) -> None:
    """torch unpacks what is compressed in it at once, whatever its size."""
    torch.save({"x": torch.zeros(20_000_000)}, tmp_path / "good.pt")
    assert read_content(tmp_path / "good.pt")["x"].shape == (20_000_000,)
    with (
        zipfile.ZipFile(tmp_path / "good.pt") as good,
        zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as bomb,
    ):
        for name in good.namelist():
            bomb.writestr(name, good.read(name))
    with pytest.raises(CheckpointError, match=r"bomb.pt: \S+ in it is compressed, as torch.save"):
        read_content(tmp_path / "bomb.pt")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04 cut", "no whole file of torch.save"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a git-lfs pointer"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    run = prismatic_run(tmp_path / "run")
    (run / "checkpoints" / "step-000002.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match=f"step-000002.pt.*{message}"):
        convert(run, tmp_path / "out")


def test_a_list_holds_no_tensors_with_names(tmp_path: Path) -> None:
    run = prismatic_run(tmp_path / "run")
    torch.save([1, 2], run / "checkpoints" / "step-000002.pt")
    with pytest.raises(CheckpointError, match="holds a list without tensors"):
        convert(run, tmp_path / "out")


def test_a_run_that_lacks_a_part_or_holds_more_is_refused(tmp_path: Path) -> None:
    run = prismatic_run(tmp_path / "run")
    parts = prismatic_parts(UNEQUAL)
    del parts["projector"]
    torch.save({"model": parts}, run / "checkpoints" / "step-000002.pt")
    with pytest.raises(CheckpointError, match="lacks projector: it is no whole VLA"):
        convert(run, tmp_path / "out")
    parts = prismatic_parts(UNEQUAL)
    parts["vision_backbone"]["clip.x"] = torch.ones(1)
    torch.save({"model": parts}, run / "checkpoints" / "step-000003.pt")
    with pytest.raises(CheckpointError, match=r"unknown tensor model/vision_backbone/clip.x"):
        convert(run, tmp_path / "out")


def test_without_a_tokenizer_the_one_to_give_is_named(tmp_path: Path) -> None:
    run = prismatic_run(tmp_path / "run")
    (run / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"give --tokenizer.*Qwen/Qwen2.5-0.5B"):
        convert(run, tmp_path / "out")
    with pytest.raises(CheckpointError, match="no tokenizer at /no/such"):
        convert(run, tmp_path / "out", ConvertOptions(tokenizer=Path("/no/such")))


def test_codes_of_a_vq_vae_are_decoded_as_the_original_does(tmp_path: Path) -> None:
    """Sum of one code a group, three layers, the first action of the horizon."""
    run = prismatic_run(tmp_path / "run", action_tokenizer="libero_vq_extra_action_tokenizer")
    vq = vq_vae(tmp_path / "vq")
    engine = engine_of(read_back(converted(run, tmp_path / "out", vq=vq)))
    actions = engine.model.actions
    assert (actions.bins, actions.vocab) == (256, UNEQUAL.action_vocab)
    codes = [3, 0, 255, 7, 7, 1, 30]
    found = actions.decode([UNEQUAL.action_vocab - 1 - code for code in codes])
    parts = torch.load(vq / "checkpoints" / "model.pt", weights_only=True)
    books = [parts["vq_embedding"][f"layers.{i}._codebook.embed"][0] for i in range(7)]
    x = torch.stack([book[code] for book, code in zip(books, codes, strict=True)]).sum(0)
    for name in ("encoder.0", "encoder.2"):
        weight, bias = (parts["decoder"][f"{name}.{kind}"] for kind in ("weight", "bias"))
        x = torch.relu(weight @ x + bias)
    x = parts["decoder"]["fc.weight"] @ x + parts["decoder"]["fc.bias"]
    np.testing.assert_allclose(found, x[:7].numpy(), atol=1e-6)
    (answer,) = play(engine, stream(1, {0: TEXTS[0]})).values()
    assert answer.actions.shape == (1, 7)
    with pytest.raises(ValueError, match="codes of a VQ-VAE"):
        engine_of(
            read_back(tmp_path / "out"),
            "speculative",
            acceptance="relaxed",
            relaxed_distance=2,
        )
    assert play(engine_of(read_back(tmp_path / "out"), "speculative"), stream(1, {0: TEXTS[0]}))


def test_a_directory_that_is_no_vq_vae_is_refused(tmp_path: Path) -> None:
    run = prismatic_run(tmp_path / "run", action_tokenizer="libero_vq_extra_action_tokenizer")
    vq = vq_vae(tmp_path / "vq")
    torch.save({"encoder": {"x": torch.ones(1)}}, vq / "checkpoints" / "model.pt")
    with pytest.raises(CheckpointError, match=r"model.pt lacks decoder/\S+.*no VQ-VAE of MiniVLA"):
        converted(run, tmp_path / "out", vq=vq)
    raw = json.loads((vq / "config.json").read_text())
    (vq / "config.json").write_text(json.dumps({**raw, "vqvae_groups": 4}))
    with pytest.raises(CheckpointError, match="vqvae_groups is 4: wanted 7"):
        converted(run, tmp_path / "y", vq=vq)


def test_a_target_that_exists_is_left_alone(tmp_path: Path) -> None:
    run = prismatic_run(tmp_path / "run")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(CheckpointError, match="out exists: remove it"):
        convert(run, tmp_path / "out")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["mine"]
