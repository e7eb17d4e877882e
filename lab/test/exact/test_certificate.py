"""A certificate: what it says of a sound engine, that a planted fault is found, that it repeats."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.engine import tiny_config
from vla_ros.cli.main import main
from vla_ros.engine.decoding import speculative
from vla_ros.engine.families.openvla import write_random
from vla_ros.engine.layers.flow_matching import Euler
from vla_ros.engine.layers.pack import chain
from vla_ros.engine.models import base, openvla
from vla_ros_lab.exact.certificate import (
    FLOAT32,
    TRANSFORMERS,
    WAYS,
    compare,
    limit_of,
    page,
    signed,
)
from vla_ros_lab.exact.plain import ReferenceAnswer

EXACT = ["verify", "--exact", "--dtype", "float32", "--synthetic", "--frames", "2", "--json"]
Certified = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    write_random(tmp_path / "it", tiny_config("llama_gqa"), seed=1)
    return str(tmp_path / "it")


@pytest.fixture
def certified(capsys: pytest.CaptureFixture[str]) -> Certified:
    """A certificate of a checkpoint: exit status and content."""

    def run(checkpoint: str, *words: str) -> tuple[int, dict[str, Any]]:
        status = main([*EXACT, "--checkpoint", checkpoint, *words])
        return status, json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


def test_every_way_is_exact_and_the_certificate_repeats(
    checkpoint: str, certified: Certified, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draft = tmp_path / "draft"
    write_random(draft, tiny_config("qwen2_tied"), seed=2)
    words = ["--draft-checkpoint", str(draft), "--output", str(tmp_path / "out")]
    status, found = certified(checkpoint, *words)
    assert status == 0
    assert found["passed"]
    verdicts = {way["name"]: way["verdict"] for way in found["ways"]}
    assert set(verdicts.values()) == {"exact"}
    assert set(WAYS) - set(verdicts) == {"heterospec", "heterospec over the head"}  # no calibration
    assert all(way["tokens"] == 14 for way in found["ways"])
    assert found["guaranteed"].startswith("14 of 14 tokens")
    file = tmp_path / "out" / "certificate.json"
    assert json.loads(file.read_text()) == found
    assert (tmp_path / "out" / "certificate.md").read_text() == page(found)
    assert main(["verify", "--recheck", str(file)]) == 0
    assert "repeated, to the bit" in capsys.readouterr().out


def test_it_is_repeated_with_the_threads_that_made_it(
    certified: Certified, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another number adds up in another order: a chunk then had other bits on another machine."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert certified("random:smolvla-small", "--output", str(tmp_path))[0] == 0
        torch.set_num_threads(2)
        assert main(["verify", "--recheck", str(tmp_path / "certificate.json")]) == 0
        assert torch.get_num_threads() == 1
        assert "repeated, to the bit" in capsys.readouterr().out
    finally:
        torch.set_num_threads(before)


def test_a_wrong_position_of_drafts_is_found_where_it_is(
    checkpoint: str, certified: Certified, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Drafts one place too far: every way that verifies chains of them says so, no other does."""
    assert certified(checkpoint, "--output", str(tmp_path))[0] == 0
    monkeypatch.setattr(speculative, "chain", lambda slot, first, n: chain(slot, first + 1, n))
    status, found = certified(checkpoint)
    assert status == 1
    assert not found["passed"]
    wrong = {way["name"]: way for way in found["ways"] if way["verdict"] == "different"}
    assert "speculative, a draft always" in wrong
    assert {"autoregressive", "actionflow"}.isdisjoint(wrong)
    first = wrong["speculative, a draft always"]["first"]
    assert first["token"] > 0  # the first token is no draft's
    assert first["gap"] > 1e-3
    assert first["said"] != first["reference"]
    assert main(["verify", "--recheck", str(tmp_path / "certificate.json")]) == 1
    out = capsys.readouterr().out
    assert "speculative, a draft always: exact then, different now" in out
    assert "NOT repeated" in out


def test_a_wrong_guidance_is_found(certified: Certified, monkeypatch: pytest.MonkeyPatch) -> None:
    status, found = certified("random:smolvla-small")
    assert status == 0
    ways = {way["name"]: way for way in found["ways"]}
    alone = ["a chunk by itself", "rtc guided", "rtc guided_vjp"]
    assert list(ways) == [*alone, *(f"{name}, beside 3 other robots" for name in alone)]
    for name, way in ways.items():  # what is pulled back through the network makes last bits large
        assert way["apart"] < (way["limit"] if "vjp" in name else FLOAT32)
        assert way["limit"] < 0.02  # 0.013 where a CPU has AVX2 alone
    # they did continue a chunk
    assert len({ways[name]["answers_sha256"] for name in alone}) == 3
    monkeypatch.setattr(Euler, "ahead", lambda self, x, v, step: x + self.times[step] * v)
    status, found = certified("random:smolvla-small")
    assert status == 1
    assert [way["verdict"] == "different" for way in found["ways"]] == [False, True, True] * 2


def test_last_bits_that_a_pull_through_the_network_makes_large_are_no_difference(
    certified: Certified,
) -> None:
    """With these five frames it was called different, 4 times beyond the limit of other chunks."""
    status, found = certified("random:smolvla-small", "--frames", "5")
    ways = {way["name"]: way for way in found["ways"]}
    assert status == 0
    assert ways["rtc guided"]["limit"] == FLOAT32
    assert ways["rtc guided_vjp"]["apart"] < ways["rtc guided_vjp"]["limit"] < 0.02


@pytest.mark.parametrize(
    ("policy", "piece"), [("", openvla.ImageEncoding), ("random:smolvla-small", base.FlowPiece)]
)
def test_a_robot_that_gets_anothers_part_of_a_shared_pass_is_found(
    policy: str, piece: Any, checkpoint: str, certified: Certified,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """What a pass of several robots gave is handed out in another order: who is alone is right."""
    given = piece.together
    monkeypatch.setattr(piece, "together", lambda self, others: given(self, others)[::-1])
    status, found = certified(policy or checkpoint)
    assert status == 1
    wrong = {way["name"] for way in found["ways"] if way["verdict"] == "different"}
    assert wrong == {way["name"] for way in found["ways"] if "beside" in way["name"]}
    assert len(wrong) == 3


@pytest.mark.parametrize(
    ("checkpoint", "why"),
    [
        ("random:small-oft", ""),
        ("random:bitvla-small", "transformers' layers have no quantized weights here"),
        ("random:pi0_fast-small", "transformers' Llama and Qwen2 are of OpenVLA and its kin alone"),
    ],
)
def test_other_families(checkpoint: str, why: str, certified: Certified) -> None:
    """Of which transformers has no layers, those are left out, and why is said."""
    status, found = certified(checkpoint)
    assert (status, found["passed"]) == (0, True)
    assert found["ways"]
    assert found["left_out"].get(TRANSFORMERS, "") == why
    assert any(TRANSFORMERS in way["name"] for way in found["ways"]) == (not why)


def test_a_changed_file_is_no_certificate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "certificate.json"
    content = signed({"kind": "vla_ros certificate 1", "passed": False})
    file.write_text(json.dumps({**content, "passed": True}))
    assert main(["verify", "--recheck", str(file)]) == 2
    assert "was changed after it was signed" in capsys.readouterr().err
    file.write_text("{}")
    assert main(["verify", "--recheck", str(file)]) == 2
    assert "is no certificate" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--weights", "int8"], ["--html", "x.html"]])
def test_what_is_not_of_it(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*EXACT, *words]) == 2
    assert "leave out" in capsys.readouterr().err


def answer(tokens: tuple[int, ...] = (), value: float = 1.0, **more: Any) -> ReferenceAnswer:
    return ReferenceAnswer(tokens, np.full((1, 2), value), **more)


def test_a_tie_is_what_the_reference_does_not_tell_apart() -> None:
    logits = torch.tensor([[0.0, 5.0, 4.9], [9.0, 1.0, 0.0]])
    right = answer((1, 0), logits=logits)
    close = compare("close", [answer((2, 0), 7.0)], [right], noise=0.06, limit=1.0)
    assert (close.verdict, close.different, close.ties) == ("ties", 1, 1)
    assert close.first is not None
    assert close.first["gap"] == pytest.approx(0.1)
    assert compare("far", [answer((2, 0))], [right], noise=0.04, limit=1.0).verdict == "different"
    short = compare("short", [answer((1,))], [right], noise=9.0, limit=1.0)
    assert (short.verdict, short.ties) == ("different", 0)  # an answer that ends early is no tie
    # the same tokens are the same action, to the bit
    assert compare("unit", [answer((1, 0), 1.1)], [right], 0.0, 1.0).verdict == "different"


@pytest.mark.parametrize(
    ("value", "verdict"), [(1.0, "exact"), (1.05, "within rounding"), (1.2, "different"),
                           (float("nan"), "different")]
)  # fmt: skip
def test_a_chunk_is_held_to_its_limit(value: float, verdict: str) -> None:
    assert compare("it", [answer(value=value)], [answer()], 0.0, limit=0.1).verdict == verdict


def test_the_limit_is_twice_what_rounding_does() -> None:
    low = [answer(value=1.1)]
    assert limit_of([answer()], None) == FLOAT32
    assert limit_of(low, [answer()]) == pytest.approx(0.2)
    again = replace(answer(), again=np.full((1, 2), 1.3))
    assert limit_of([again], None) == pytest.approx(0.6)
