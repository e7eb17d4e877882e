"""Verdicts belong to the bytes of a checkpoint; a policy may ask for one."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from support.engine import tiny_config
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.families.openvla import write_random
from vla_ros.engine.load import sha256_on_disk
from vla_ros.engine.options import HERE, EngineOptions
from vla_ros.engine.verdicts import (
    NotVerified,
    Precision,
    StoredVerdict,
    chosen_dtype,
    command,
    find,
    require,
    settled,
    store,
)
from vla_ros.policies.base import PolicyRefused, PolicySpec
from vla_ros.policies.load import load_policy

BF16 = Precision("bfloat16")
GPU = Precision("bfloat16", device="cuda")


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_random(tmp_path / "it", tiny_config(), seed=1)
    return tmp_path / "it"


def passed(checkpoint: Path) -> StoredVerdict:
    return StoredVerdict(sha256_on_disk(str(checkpoint)), BF16, True, (), {"frames": 3})


def test_what_is_stored_is_found_again(checkpoint: Path) -> None:
    verdict = passed(checkpoint)
    path = store(verdict, checkpoint)
    assert path == checkpoint / "precision" / "stored-bfloat16-cpu.json"
    assert find(verdict.checkpoint_sha256, BF16, checkpoint) == verdict
    for other in (Precision("float16"), Precision("bfloat16", "int8"),
                  Precision("bfloat16", device="cuda:0")):  # fmt: skip
        assert find(verdict.checkpoint_sha256, other, checkpoint) is None
    assert sha256_on_disk(str(checkpoint)) == verdict.checkpoint_sha256  # it is no part of it


def test_what_cannot_be_written_is_kept_in_the_cache(checkpoint: Path, tmp_path: Path) -> None:
    verdict = passed(checkpoint)
    (checkpoint / "precision").write_text("no folder")
    assert tmp_path / "cache" in store(verdict, checkpoint).parents
    assert find(verdict.checkpoint_sha256, BF16, checkpoint) == verdict
    assert tmp_path / "cache" in store(verdict, None).parents


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 0}', '{"version": 2}'])
def test_a_damaged_file_is_no_verdict(checkpoint: Path, content: str) -> None:
    verdict = passed(checkpoint)
    store(verdict, checkpoint).write_text(content)
    assert find(verdict.checkpoint_sha256, BF16, checkpoint) is None


def test_a_checkpoint_that_changed_has_no_verdict(checkpoint: Path) -> None:
    store(passed(checkpoint), checkpoint)
    require(str(checkpoint), BF16)
    config = checkpoint / "config.json"
    config.write_text(config.read_text() + "\n")
    with pytest.raises(NotVerified, match="has no precision check"):
        require(str(checkpoint), BF16)


def test_the_refusal_names_a_command_that_the_verb_takes(checkpoint: Path) -> None:
    from vla_ros.cli.main import make_parser

    precision = Precision("float16", device="cuda:1")
    with pytest.raises(NotVerified) as said:
        require(str(checkpoint), precision)
    text = str(said.value)
    assert "\n" not in text
    words = shlex.split(text.split("`")[1])
    assert words[0] == "vla-ros"
    parser, _ = make_parser("verify")
    args = parser.parse_args(words[1:])
    assert (args.checkpoint, args.dtype, args.device) == (str(checkpoint), "float16", "cuda")


def test_a_failed_check_is_none_and_says_why(checkpoint: Path) -> None:
    store(replace(passed(checkpoint), passed=False, reasons=("it is off",)), checkpoint)
    with pytest.raises(NotVerified, match=r"failed its precision check \(it is off\)"):
        require(str(checkpoint), BF16)


def test_the_reference_needs_no_check_and_random_weights_have_none(checkpoint: Path) -> None:
    require(str(checkpoint), Precision("float32"))
    with pytest.raises(NotVerified, match="random weights"):
        require("random:small", BF16)


def test_a_policy_that_requires_a_check(checkpoint: Path) -> None:
    spec = PolicySpec(
        "vla",
        engine=EngineOptions(str(checkpoint), dtype="bfloat16", num_threads=1),
        require_verified=True,
    )
    with pytest.raises(PolicyRefused, match=r"run `vla-ros verify --checkpoint"):
        load_policy(spec)
    store(passed(checkpoint), checkpoint)
    assert load_policy(spec).info.dtype == "bfloat16"
    with pytest.raises(PolicyRefused, match="no verdict is about 'zero'"):
        PolicySpec("zero", require_verified=True)


def test_a_verdict_is_about_the_formats_of_the_weights_too(checkpoint: Path) -> None:
    store(passed(checkpoint), checkpoint)
    spec = PolicySpec(
        "vla",
        engine=EngineOptions(str(checkpoint), dtype="bfloat16", weights="int8", num_threads=1),
        require_verified=True,
    )
    with pytest.raises(PolicyRefused, match="--weights decoder=int8,head=int8`"):
        load_policy(spec)
    few = Precision("bfloat16", "int8")
    assert few == Precision("bfloat16", "head=int8,decoder=int8")
    store(replace(passed(checkpoint), precision=few), checkpoint)
    assert load_policy(spec).info.dtype == "bfloat16"
    with pytest.raises(PolicyRefused, match="weights is for policy vla"):
        PolicySpec("zero", engine=EngineOptions(weights="int8"))
    with pytest.raises(ValueError, match="give bf16, int8, int4"):
        replace(spec.engine, weights="int7")


@pytest.fixture
def multiplies(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A processor with instructions for bfloat16, whatever this one has."""
    monkeypatch.setattr("vla_ros.engine.verdicts.multiplies_bfloat16", lambda device: True)
    yield


def test_auto_is_bfloat16_where_it_passed_its_check(checkpoint: Path, multiplies: None) -> None:
    chosen = partial(chosen_dtype, str(checkpoint), "", "cpu")
    dtype, why = chosen()
    assert dtype == "float32"
    assert why == f"bfloat16 has no precision check: `{command(str(checkpoint), BF16)}`"
    store(replace(passed(checkpoint), passed=False), checkpoint)
    assert chosen()[1].startswith("bfloat16 did not pass its precision check: `vla-ros verify")
    store(passed(checkpoint), checkpoint)
    assert chosen() == ("bfloat16", "it passed its precision check")
    assert chosen_dtype("random:small", "", "cpu")[0] == "float32"
    with pytest.raises(CheckpointError):
        chosen_dtype(str(checkpoint / "none"), "", "cpu")


def test_auto_is_float32_on_a_processor_without_bfloat16(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(passed(checkpoint), checkpoint)
    monkeypatch.setattr("vla_ros.engine.verdicts.multiplies_bfloat16", lambda device: False)
    dtype, why = chosen_dtype(str(checkpoint), "", "cpu")
    assert (dtype, why) == ("float32", "this processor has no instructions for bfloat16")


def test_the_shipped_policy_has_its_check_with_it(checkpoint: Path, multiplies: None) -> None:
    require("shipped:tabletop", BF16)  # and nothing in the cache
    assert chosen_dtype("shipped:tabletop", "", "cpu")[0] == "bfloat16"
    engine = EngineOptions("shipped:tabletop", dtype="auto")
    policy = load_policy(PolicySpec("vla", engine))
    assert policy.info.dtype == "bfloat16"
    assert policy.info.conventions.endswith(
        "; dtype auto is bfloat16: it passed its precision check"
    )


def test_a_check_is_of_one_dtype() -> None:
    with pytest.raises(ValueError, match="dtype auto: a check is of one of float32, bfloat16"):
        Precision("auto")


def test_what_is_left_open_is_settled_once(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU bfloat16, which was not checked, and is not taken where it did not pass."""
    left = EngineOptions(str(checkpoint), **HERE)  # type: ignore[arg-type]
    here, lines = settled(left)
    assert (here.device, here.dtype) == ("cpu", "float32")
    assert lines == ("device auto is cpu: torch sees no GPU",)
    monkeypatch.setattr("vla_ros.engine.verdicts.device_of", lambda name: ("cuda:0", "an L4"))
    there, lines = settled(left)
    assert (there.device, there.dtype) == ("cuda:0", "bfloat16")
    assert lines[0] == "device auto is cuda:0: an L4"
    assert lines[1].startswith("dtype is bfloat16, a GPU's default; bfloat16 is not checked: `vla-")
    assert settled(replace(left, dtype="float32"))[0].dtype == "float32"
    store(replace(passed(checkpoint), precision=GPU, passed=False), checkpoint)
    assert settled(left)[0].dtype == "float32"
    store(replace(passed(checkpoint), precision=GPU), checkpoint)
    assert settled(left)[1] == ("device auto is cuda:0: an L4",)
