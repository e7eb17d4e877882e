"""Damaged and foreign directories: one line each, with the file, what is wrong, what to do."""

from __future__ import annotations

import shutil
import socket
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from support.engine import CLOCK, observation, tiny_config
from support.hostile import SPECIAL
from support.strange import CASES, NORM, WEIGHTS
from vla_ros.core.errors import UserError
from vla_ros.core.types import Timeline
from vla_ros.engine import CheckpointError, EngineOptions, InvalidAction, load_engine
from vla_ros.engine.families.openvla import write_random
from vla_ros.engine.families.registry import family_of
from vla_ros.engine.io import weights
from vla_ros.engine.io.files import BESIDE
from vla_ros.engine.load import inspect

COMMIT = "0123456789" * 4


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("good") / "it"
    write_random(path, tiny_config(towers="fused"), seed=1)
    return path


@pytest.fixture
def make(good: Path, tmp_path: Path) -> Callable[[str], Path]:
    """The directory of a case."""

    def made(case: str) -> Path:
        directory = tmp_path / "it"
        shutil.copytree(good, directory)
        CASES[case][0](directory)
        return directory

    return made


def test_there_are_at_least_forty() -> None:
    assert len(CASES) >= 40


@pytest.mark.parametrize("case", CASES)
def test_one_line_says_what_is_wrong_when_it_is_loaded_and_when_it_is_looked_at(
    case: str, make: Callable[[str], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    """The engine, and what doctor asks, which never holds more than one tensor."""
    directory = make(case)
    for attempt in (
        lambda: load_engine(EngineOptions(checkpoint=str(directory))).reset("pick up the cube"),
        lambda: inspect(str(directory)),
    ):
        with pytest.raises(CheckpointError, match=CASES[case][1]) as error:
            attempt()
        said = str(error.value)
        assert "\n" not in said
        assert str(directory) in said
        assert len(said) < 1000
    assert "code ran" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("kind", SPECIAL)
def test_whatever_file_is_special_it_is_refused_or_not_read(
    kind: str, good: Path, tmp_path: Path
) -> None:
    """By the engine, by what doctor asks, and by the hash that a recording keeps."""
    names = sorted({path.name for path in good.iterdir()} | set(BESIDE))
    told = 0
    for name in names:
        directory = tmp_path / name / "it"
        shutil.copytree(good, directory)
        (directory / name).unlink(missing_ok=True)
        SPECIAL[kind](directory / name)
        for attempt in (
            lambda at: load_engine(EngineOptions(checkpoint=at)).reset("pick up the cube"),
            inspect,
            lambda at: family_of(Path(at)).sha256(Path(at)),
        ):
            try:
                attempt(str(directory))
            except UserError as error:
                assert "\n" not in str(error) and name in str(error)
                told += 1
    assert told >= 6


def test_a_good_one_is_looked_at_without_a_word(good: Path) -> None:
    found = inspect(str(good))
    assert found.statistics == ("random",)
    assert found.parameters > 100_000


def test_looking_holds_one_tensor_at_a_time(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0

    def finite(tensor: torch.Tensor) -> bool:
        nonlocal most
        most = max(most, sum(ref() is not None for ref in alive))
        alive.append(weakref.ref(tensor))
        return True

    monkeypatch.setattr(weights, "all_finite", finite)
    inspect(str(good))
    assert len(alive) > 50
    assert most <= 2


@pytest.mark.parametrize("case", ["NaN", "infinity"])
def test_a_draft_is_looked_at_as_well(case: str, make: Callable[[str], Path], good: Path) -> None:
    options = EngineOptions(
        checkpoint=str(good), decoding="speculative", drafter="model",
        draft_checkpoint=str(make(case)),
    )  # fmt: skip
    with pytest.raises(CheckpointError, match=r"projector.fc1.weight holds NaN"):
        load_engine(options)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("action_head--150000_checkpoint.pt", "somebody/model is an OpenVLA-OFT release"),
        ("checkpoints/step-122500.pt", "somebody/model is a training run of prismatic"),
    ],
)
def test_files_on_the_hub_are_judged_before_they_are_downloaded(
    monkeypatch: pytest.MonkeyPatch, file: str, message: str
) -> None:
    """An OFT release's heads are no safetensors: without them it would act as plain OpenVLA."""
    import huggingface_hub
    from huggingface_hub import constants

    hub = socket.create_server(("127.0.0.1", 0))  # its address takes connections
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{hub.getsockname()[1]}")
    names = ["config.json", WEIGHTS, file]
    monkeypatch.setattr(
        huggingface_hub.HfApi, "list_repo_files", lambda self, name, revision: names
    )
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda *a, **k: pytest.fail("took it")
    )
    with hub, pytest.raises(CheckpointError, match=message):
        load_engine(EngineOptions(checkpoint=f"somebody/model@{COMMIT}"))


def test_without_a_network_a_download_of_before_is_read(
    monkeypatch: pytest.MonkeyPatch, good: Path, make: Callable[[str], Path]
) -> None:
    """And looked at as any directory is: somebody else may have put an OFT release there."""
    import huggingface_hub

    def unreachable(self: object, name: str, revision: str) -> list[str]:
        raise OSError("no route to host")

    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", unreachable)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: str(good))
    assert load_engine(EngineOptions(checkpoint=f"somebody/model@{COMMIT}")).info.max_tokens == 7
    oft = str(make("OpenVLA-OFT"))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: oft)
    with pytest.raises(CheckpointError, match="is an OpenVLA-OFT release"):
        load_engine(EngineOptions(checkpoint=f"somebody/oft@{COMMIT}"))


def test_generate_blames_the_logits_and_not_token_0(good: Path) -> None:
    """transformers' generate takes token 0 where every logit is NaN."""
    engine = load_engine(EngineOptions(checkpoint=str(good), decoding="generate"))
    with torch.inference_mode():
        engine.model.tensors[NORM].fill_(float("nan"))
    engine.reset("pick up the cube")
    with pytest.raises(InvalidAction, match="a logit is not finite"):
        engine.step(observation(1, np.zeros((32, 32, 3), np.uint8)), Timeline(0), CLOCK)
