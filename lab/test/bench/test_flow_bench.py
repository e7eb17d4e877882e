"""`vla-ros bench` of action heads: rows of the same chunk, phases, the process of LeRobot."""

from __future__ import annotations

import json
import mmap
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vla_ros.cli.main import main
from vla_ros.engine.families.base import LoadOptions, Placement
from vla_ros.engine.families.lerobot import PI0, PRESETS
from vla_ros.engine.families.registry import family_of, write_folder
from vla_ros.policies.load import lerobot_python
from vla_ros_lab.bench import flow_rivals
from vla_ros_lab.bench.flow import PlainModulation
from vla_ros_lab.bench.memory import HeldBytes, forget_peak, peak_bytes, resident_bytes
from vla_ros_lab.roofline.bench_file import read_bench

LEROBOT = lerobot_python()
RUN = ["--warm-up", "1", "--timed", "2"]
Bench = Callable[..., dict[str, Any]]


@pytest.mark.parametrize("kind", ["smolvla", "pi0", "pi05"])
def test_every_row_makes_the_same_chunk(bench: Bench, kind: str) -> None:
    found = bench(f"random:{kind}-small", *RUN)
    rows = found["decodings"]
    assert list(rows) == (["flow", "naive"] + ["transformers"] * (kind == "pi0"))
    assert set(found["skipped"]) == {"flow_eager", "lerobot", "transformers"} - set(rows)
    assert rows["flow"]["difference"] < 1e-5
    if kind == "pi0":  # its times are float32, see the parity test
        assert rows["transformers"]["difference"] < 1e-3
    for name, row in rows.items():
        assert set(row["stages_ms"]) == {"vision", "prefill", "decode"}
        around = row["latency_ms"] - row["median_ms"]  # from the frame, and to units
        ours = rows["flow"]["latency_ms"] - rows["flow"]["median_ms"]
        assert around == pytest.approx(ours, abs=0.01)
        assert around > 0.1
        assert row["step_ms"] == pytest.approx(row["stages_ms"]["decode"] / 5, rel=1e-4)
        assert sum(row["stages_ms"].values()) == pytest.approx(row["median_ms"], rel=0.5)
        assert set(row["speedup"]) == set(rows) - {name}
        assert row["actions_per_call"] == 10
    faster = rows["flow"]["speedup"]["naive"]
    assert faster == pytest.approx(1 / rows["naive"]["speedup"]["flow"], rel=1e-4)
    assert found["shapes"]["views"] == 2
    assert found["load"] == pytest.approx(os.getloadavg()[0], abs=5)


def test_evo1s_context_is_made_once_and_in_the_naive_row_in_every_step(bench: Bench) -> None:
    found = bench("random:evo1-small", *RUN)
    assert list(found["decodings"]) == ["flow", "naive"]
    assert found["decodings"]["flow"]["difference"] == 0.0  # the same arithmetic, to the bit
    assert found["shapes"]["vision_tokens"] == 4  # of one view; the prompt has three places
    assert found["shapes"]["prompt_tokens"] > 2 * 4
    assert found["skipped"]["lerobot"] == "lerobot: its own evo1 is not measured here"


def test_a_folder_and_files_that_others_read(
    bench: Bench, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_folder(tmp_path / "it", PRESETS["smolvla-small"], seed=3)
    out = tmp_path / "out"
    words = ("--rows", "flow,naive", "--output", str(out))
    found = bench(str(tmp_path / "it"), *RUN, *words)
    assert json.loads((out / "bench.json").read_text()) == found
    text = (out / "bench.txt").read_text()
    assert "2 views, 21 prefix tokens, 5 steps, 10 actions; 1 + 2 chunks" in text
    assert "memory: weights 4 MB" in text
    bench = read_bench(out / "bench.json")
    assert bench.rows["flow"].chunk == 10
    assert main(["roofline", "--compare", str(out / "bench.json"), "--device", "h200"]) == 0
    assert "its stage mark" in capsys.readouterr().out
    limits = ["--camera-hz", "20", "--control-hz", "20", "--max-age-ms", "2000"]
    assert main(["advise", "--bench", str(out / "bench.json"), *limits]) == 0
    advice = capsys.readouterr().out
    assert "best: decoding=auto replan_interval=" in advice
    assert "naive" not in advice  # a reference is no choice


def test_what_a_plain_program_makes_of_the_time_is_what_the_engine_keeps() -> None:
    """So the naive row of pi0.5 does the work that it stands for."""
    policy = family_of("random:pi05-small").load(
        "random:pi05-small", LoadOptions(), Placement(torch.device("cpu"), torch.float32)
    )
    drawn = PI0.drawn(policy.config, 0, torch.device("cpu"))
    plain = PlainModulation(policy.config, drawn, torch.empty(0))
    model: Any = policy.model
    for step, time in enumerate(model.solver.times):
        *layers, last = plain(time)
        kept = [*model._ada_rms.layers[step].flatten(0, 1), model._ada_rms.final[step]]
        for made, table in zip([*layers, last], kept, strict=True):
            scale, shift, gate = made.chunk(3)
            assert torch.allclose(torch.stack((1 + scale, shift, gate)), table, atol=1e-5)


def test_memory_is_judged_where_it_says_something() -> None:
    assert HeldBytes(int(1e6), int(9e6), int(9e6)).good is None
    assert HeldBytes(int(1e9), int(2e9), int(1.19e9)).good
    much = HeldBytes(int(1e9), int(1.3e9), int(1.21e9))
    assert not much.good
    assert "grown by 1210 MB (+21 %, NOT within 20 %), libraries" in str(much)
    assert "while loading by 1300 MB at the most" in str(much)


def test_the_peak_is_that_of_what_was_done_since_it_was_forgotten() -> None:
    size = 100 << 20

    def use() -> None:
        """Memory that goes back to the system at once, whatever ran before in this process."""
        with mmap.mmap(-1, size) as block:
            for start in range(0, size, 1 << 12):
                block[start] = 1

    use()
    forget_peak("cpu")
    before = resident_bytes("cpu")
    assert peak_bytes("cpu") - before < size // 10
    use()
    assert size // 2 < peak_bytes("cpu") - before < 2 * size
    assert resident_bytes("cpu") - before < size // 2


def test_a_reference_in_another_interpreter_answers_line_by_line(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The protocol, with a program that computes nothing in LeRobot's place."""
    program = tmp_path / "program.py"
    program.write_text(
        "import json, sys, numpy\n"
        "asked = json.loads(sys.stdin.readline())\n"
        "noise = numpy.load(asked['inputs'])['noise']\n"
        "assert asked['config']['type'] == 'smolvla' and asked['weights'].endswith('safetensors')\n"
        "print(json.dumps({'version': '9'}), flush=True)\n"
        "for _ in sys.stdin:\n"
        "    spent = {'vision': 1.0, 'prefill': 2.0, 'decode': 3.0}\n"
        "    answer = {'cpu': spent, 'wall': spent, 'chunk': noise.tolist()}\n"
        "    print(json.dumps(answer), flush=True)\n"
    )
    monkeypatch.setattr(flow_rivals, "PROGRAM", program)
    found = bench("random:smolvla-small", *RUN, "--lerobot-python", sys.executable)
    row = found["decodings"]["lerobot"]
    assert row["stages_ms"] == {"vision": 1000, "prefill": 2000, "decode": 3000}
    assert row["step_ms"] == 600
    assert found["versions"] == {"lerobot": "9"}
    assert found["decodings"]["flow"]["speedup"]["lerobot"] > 1


@pytest.mark.slow
@pytest.mark.skipif(not LEROBOT.is_file(), reason=f"LeRobot is not set up: no {LEROBOT}")
@pytest.mark.parametrize("kind", ["smolvla", "pi0", "pi05"])
def test_lerobot_itself(bench: Bench, kind: str) -> None:
    found = bench(f"random:{kind}-small", *RUN, "--lerobot-python", str(LEROBOT))
    assert found["decodings"]["lerobot"]["difference"] < 1e-4


def test_on_a_gpu_memory_is_what_is_held_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """While weights are loaded more is taken than stays: what stays is not the peak, and a graph's
    pool, of which no tensor is alive, is part of it."""
    reserved = {"now": 300, "most": 300, "cached": 0}

    def take(count: int) -> None:
        reserved["now"] += count
        reserved["most"] = max(reserved["most"], reserved["now"])

    def give_back() -> None:
        reserved["now"] -= reserved["cached"]
        reserved["cached"] = 0

    fakes = {
        "memory_reserved": lambda device: reserved["now"],
        "max_memory_reserved": lambda device: reserved["most"],
        "reset_peak_memory_stats": lambda device: reserved.update(most=reserved["now"]),
        "empty_cache": give_back,
        "synchronize": lambda device=None: None,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    reserved["most"] = 9000  # of another row, before
    forget_peak("cuda:0")
    before = resident_bytes("cuda:0")
    take(1000)
    reserved["cached"] = 600  # float32 temporaries that torch keeps
    assert peak_bytes("cuda:0") - before == 1000
    take(50)  # a graph's pool
    assert resident_bytes("cuda:0") - before == 450


def test_pi0_fast_is_measured_by_passes_of_a_chunk(bench: Bench) -> None:
    found = bench("random:pi0_fast-small", *RUN)
    rows = found["decodings"]
    assert list(rows) == ["autoregressive", "generate", "speculative", "speculative_full",
                          "temporal_tree", "temporal_tree_full", "head", "head_full"]  # fmt: skip
    assert all(row["same"] == row["chunks"] == 2 for row in rows.values())
    assert rows["autoregressive"]["passes"] == rows["autoregressive"]["tokens"] == 60
    assert rows["autoregressive"]["drafted"] == 0 < rows["speculative_full"]["drafted"]
    assert rows["temporal_tree_full"]["drafted"] > 0
    assert rows["head_full"]["drafted"] > 20, "of random weights, where the checkpoint has none"
    assert rows["generate"]["passes"] == rows["generate"]["tokens"]


def test_bitvla_beside_its_weights_as_floats(bench: Bench, tmp_path: Path) -> None:
    found = bench("random:bitvla-small", *RUN, "--output", str(tmp_path))
    rows = found["decodings"]
    assert list(rows) == ["parallel", "naive"]
    # one rounding of an input to int8 may go the other way: 1/127 of the largest
    assert 0 < rows["parallel"]["difference"] < 0.2
    for row in rows.values():
        assert set(row["stages_ms"]) == {"vision", "prefill", "decode"}
        assert sum(row["stages_ms"].values()) == pytest.approx(row["median_ms"], rel=0.5)
        assert row["passes_per_action"] == 1.0
    shapes = found["shapes"]
    assert (shapes["views"], shapes["action_tokens"], shapes["steps"]) == (2, 8, 0)
    # bytes: 4 of a float of heads and projectors, a quarter of a weight of the others
    assert found["memory"]["weights"] < shapes["parameters"]
    assert "2 views, 244 prefix tokens, a single pass" in (tmp_path / "bench.txt").read_text()


def test_a_policy_of_floats_has_nothing_beside_it(bench: Bench) -> None:
    found = bench("random:small-oft", *RUN)
    assert list(found["decodings"]) == ["parallel"]
    assert found["skipped"] == {"naive": "naive: these weights are floats as they are"}
