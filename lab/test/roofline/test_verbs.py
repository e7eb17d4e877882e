"""`vla-ros roofline` and `vla-ros advise` from the outside."""

from __future__ import annotations

import json
import math
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from vla_ros.cli import main
from vla_ros.ros.bringup.graph_file import GraphSpec, parse_overrides

BENCH = str(Path(__file__).parents[3] / "benchmarks/cpu-bf16/bench.json")
ADVISE = ("advise", "--camera-hz", "30", "--control-hz", "20")


def run(capsys, *words) -> tuple[int, str, str]:
    try:
        status = main.main(list(words))
    except SystemExit as end:
        status = int(end.code or 0)
    out, err = capsys.readouterr()
    return status, out, err


def last(out: str) -> dict:
    return json.loads(out.strip().splitlines()[-1])


def output(capsys, *words) -> str:
    """Output of a verb that succeeds."""
    status, out, err = run(capsys, *words)
    assert status == 0, err
    return out


def test_every_device_in_one_table(capsys):
    out = output(capsys, "roofline", "--json")
    found = last(out)["devices"]
    assert len(found) == 9
    h200 = found["h200"]["decodings"]
    assert h200["autoregressive"]["rate_hz"] == pytest.approx(44, abs=1)
    assert h200["actionflow"]["clocked_latency_ms"] == pytest.approx(205, abs=1)
    assert found["orin-64"]["stages"][2]["bound"] == "compute"
    line = next(line for line in out.splitlines() if line.startswith("orin-64"))
    assert "587.8 (1.7 Hz)" in line


def test_one_device_in_full(capsys, tmp_path):
    words = ("--device", "orin-64", "--dtype", "int4", "--alpha", "0.7", "--plots", str(tmp_path))
    out = output(capsys, "roofline", *words, "--json")
    result = last(out)
    assert result["dtype"] == {
        "vision": "bf16", "decoder": "int4", "head": "int4", "expert": "int4", "kv": "bf16",
    }  # fmt: skip
    assert result["speculation"]["expected_passes_fused"] == pytest.approx(2.8)
    assert {p.name for p in tmp_path.iterdir()} == {
        "landscape.png",
        "break_even.png",
        "rate_age.png",
    }
    for word in ("share of the time", "bound by", "worst ms", "memory"):
        assert word in out


def test_formats_a_device_lacks_leave_it_out_of_the_table(capsys):
    out = output(capsys, "roofline", "--dtype", "fp8", "--json")
    assert set(last(out)["left_out"]) == {"a100", "orin-64", "orin-nano"}
    assert out.count("left out:") == 3


def test_this_machine(capsys):
    out = output(capsys, "roofline", "--model", "small", "--device", "this", "--json")
    found = last(out)["decodings"]["autoregressive"]
    assert 0 < found["rate_hz"] < math.inf  # of a machine that may do other work


def test_flow_models_have_no_drafts(capsys):
    out = output(capsys, "roofline", "--model", "pi0", "--device", "h200", "--json")
    assert list(last(out)["decodings"]) == ["flow", "naive"]
    assert "speculation" not in last(out)


@pytest.mark.parametrize("model", ["smolvla", "pi05", "random:pi0-small"])
def test_a_flow_policy_is_advised_how_much_of_a_chunk_to_execute(capsys, model):
    words = ("--camera-hz", "30", "--control-hz", "20", "--max-age-ms", "800", "--json")
    out = output(capsys, "advise", "--model", model, "--device", "orin-64", *words)
    result = last(out)
    (flow,) = result["decodings"]  # naive is no choice
    assert flow["decoding"] == "flow"
    s = flow["executed"]
    assert flow["parameters"] == f"decoding=auto replan_interval={s}"
    (pasted,) = (line for line in out.splitlines() if line.startswith("vla-ros up policy "))
    given = shlex.split(pasted)[3:]
    overrides = parse_overrides(word for word in given if word != "-p")
    values = GraphSpec.load("policy", overrides).node("policy").values()
    assert (values["decoding"], values["replan_interval"]) == ("auto", s)
    assert flow["actions_hz"] == 20
    parts = {p["executed"]: p for p in result["executed"]}
    chunk = max(parts)
    assert chunk == (10 if model.endswith("small") else 50)
    for part in parts.values():
        rate = part["executed"] * part["answers_hz"]
        assert part["actions_hz"] == pytest.approx(min(20, rate), rel=1e-4)
        assert part["meets"] is (rate >= 20 and part["oldest_observation_ms"] <= 800)
    ages = [parts[n]["oldest_observation_ms"] for n in sorted(parts)]
    assert np.diff(ages) == pytest.approx(50 * np.diff(sorted(parts)), abs=0.01)
    assert f"a chunk of {chunk} actions in {flow['ms']:.1f} ms" in out


def test_the_report_again(capsys):
    out = output(capsys, "roofline", "--reproduce", "--json")
    figures = last(out)["table_5"] + last(out)["table_6"]
    assert all(f["within_10_percent"] for f in figures)
    assert "415.7 Hz" in out
    assert "not what a roofline gives" in out


def test_the_list_gives_sources(capsys):
    out = output(capsys, "roofline", "--list")
    assert "data sheet" in out
    assert "assumed" in out
    assert "smolvla" in out


def test_compare_reads_what_bench_writes(capsys, tmp_path):
    row = {"median_ms": 45.0, "latency_ms": 45.0, "passes_per_action": 7.0}
    content = {
        "checkpoint": "random:openvla-7b", "device": "cuda", "dtype": "bfloat16",
        "machine": {"gpu": "NVIDIA H200"}, "decodings": {"autoregressive": row},
    }  # fmt: skip
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(content))
    out = output(capsys, "roofline", "--compare", str(path), "--json")
    assert last(out)["device"] == "h200"
    reached = last(out)["compare"]["decodings"]["autoregressive"]["efficiency"]
    assert reached == pytest.approx(0.5, abs=0.01)
    assert "50 %" in out
    for gpu, device in (
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("Orin", "orin-64"),
    ):
        path.write_text(json.dumps(content | {"machine": {"gpu": gpu}}))
        assert (
            last(run(capsys, "roofline", "--compare", str(path), "--json")[1])["device"] == device
        )
    path.write_text(json.dumps(content | {"machine": {"gpu": "Radeon"}}))
    status, _, err = run(capsys, "roofline", "--compare", str(path))
    assert status == 2
    assert "--device" in err


def test_a_decoding_whose_caches_have_no_room_is_left_out(capsys, tmp_path):
    (tmp_path / "devices.yaml").write_text(
        "sources: {s: x}\n"
        "devices: {box: {title: A box, memory_gb: 17, gb_s: [3000, s, 2700, s],\n"
        "  tflops: {bf16: [500, s, 400, s]}}}\n"
    )
    words = ("--device", "box", "--devices", str(tmp_path / "devices.yaml"), "--json")
    out = output(capsys, "roofline", *words)
    assert last(out)["fits"] is True
    assert last(out)["memory_gb"]["total"] == pytest.approx(16.3, abs=0.1)
    out = output(capsys, *ADVISE, "--max-age-ms", "500", *words)
    assert "no room for the caches of actionflow" in out
    assert "actionflow" not in [row["decoding"] for row in last(out)["decodings"]]


@pytest.mark.long
def test_compare_knows_the_names_that_bench_writes(capsys, tmp_path):
    """What `vla-ros bench --output` writes of this very checkpoint, not a file made up here."""
    rows = ("--rows", "autoregressive,speculative_hit", "--timed", "2", "--warm-up", "1")
    words = ("--checkpoint", "shipped:tabletop", "--dtype", "float32", *rows)
    status, _, err = run(capsys, "bench", *words, "--output", str(tmp_path / "bench"))
    assert status == 0, err
    file = str(tmp_path / "bench" / "bench.json")
    out = output(capsys, "roofline", "--compare", file, "--json")
    assert last(out)["model"] == "shipped:tabletop"
    assert set(last(out)["compare"]["decodings"]) == {"autoregressive", "speculative_hit"}
    elsewhere = measured(tmp_path / "e.json", {"autoregressive": (9.0, {})}, "/gone/model")
    status, out, err = run(capsys, "roofline", "--compare", elsewhere)
    assert (status, out) == (2, "")
    assert "give --model" in err
    out = output(capsys, "roofline", "--compare", elsewhere, "--model", "small")


def test_advice(capsys):
    out = output(capsys, *ADVISE, "--max-age-ms", "150", "--device", "h200", "--json")
    assert last(out)["best"] == "speculative_tree"
    assert "max_age_s:=0.15" in out
    status, out, _ = run(capsys, *ADVISE, "--max-age-ms", "150", "--device", "orin-64", "--json")
    assert status == 1
    assert last(out)["best"] is None
    assert "none meets the limits" in out


CHUNKED = ("--model", "openvla-7b", "--chunk", "8", "--device", "h200", "--head")


def test_a_chunk_policy_and_its_recursive_head(capsys):
    out = output(capsys, "roofline", *CHUNKED, "--json")
    result = last(out)
    found, head = result["decodings"], result["draft_head"]
    assert found["autoregressive"]["passes"] == 56
    assert "actionflow" not in found
    assert "left out: actionflow decodes a token a frame" in out
    assert set(result["decodings_left_out"]) == {"actionflow", "naive_pipe"}
    assert head["coverage_assumed"] is True
    assert f"assumed: coverage {head['coverage']:.2f}" in out
    assert head["level"]["bytes"] == pytest.approx(51e6, rel=0.01)
    assert result["chunk"]["speculative_head"]["executed"] == 4
    out = output(capsys, "roofline", *CHUNKED, "--coverage", "0.9", "--json")
    sure = last(out)
    assert "assumed: coverage" not in out
    assert sure["decodings"]["speculative_head"]["coverage"] == 0.9
    assert sure["decodings"]["speculative_head"]["passes"] < found["speculative_head"]["passes"]
    out = output(capsys, "roofline", *CHUNKED, "--executed", "8", "--json")
    assert last(out)["chunk"]["autoregressive"]["actions_hz"] == pytest.approx(
        2 * result["chunk"]["autoregressive"]["actions_hz"], rel=1e-4
    )
    out = output(capsys, "roofline", *CHUNKED[:4], "--head")
    assert out.count("left out") == 2
    assert "assumed: the head's coverage is 0." in out


def test_a_checkpoint_that_says_chunks(capsys):
    words = ("--model", "shipped:tabletop-chunk", "--device", "orin-64", "--head", "--json")
    out = output(capsys, "roofline", *words)
    assert last(out)["decodings"]["autoregressive"]["passes"] == 56
    assert last(out)["decodings"]["speculative_head"]["chunk"] == 8


def test_a_chunk_policy_is_not_advised_a_pipeline(capsys):
    words = (*ADVISE, "--max-age-ms", "300", *CHUNKED, "--json")
    out = output(capsys, *words)
    result = last(out)
    assert result["best"] == "speculative_head"
    assert "actionflow" not in [row["decoding"] for row in result["decodings"]]
    assert "left out: actionflow" in out
    assert "the head's alternatives hold the right token 81% of times" in out
    assert "drafter=head" in result["decodings"][0]["parameters"]
    found = {row["decoding"]: row for row in result["decodings"]}
    assert found["autoregressive"]["executed"] == 4  # 6.1 answers a second for 20 commands
    assert found["autoregressive"]["meets"] is False  # 198 + 200 ms
    _, out, _ = run(capsys, *words, "--executed", "6")  # none meets the limits
    assert {row["executed"] for row in last(out)["decodings"]} == {6}


def measured(path, rows, checkpoint="random:small"):
    """A file as `vla-ros bench --output` writes it, of rows {name: (median, more)}."""
    common = {"passes_per_action": 1.0, "lossless": True, "actions_per_call": 1}
    decodings = {
        name: {**common, "median_ms": ms, "p95_ms": ms, "latency_ms": ms, **more}
        for name, (ms, more) in rows.items()
    }
    shapes = {"prompt_tokens": 89, "action_tokens": 7}
    head = {"checkpoint": checkpoint, "device": "cpu", "dtype": "float32", "shapes": shapes}
    path.write_text(json.dumps({**head, "decodings": decodings}))
    return str(path)


def test_advice_from_a_benchmark_names_the_lossless_and_marks_the_lossy(capsys, tmp_path):
    rows = {
        "autoregressive": (35.0, {}),
        "actionflow": (16.0, {"latency_ms": None}),
        "speculative_relaxed": (12.0, {"lossless": False}),
        "parallel": (9.0, {"actions_per_call": 8}),
    }
    file = measured(tmp_path / "bench.json", rows)
    words = (*ADVISE, "--bench", file, "--json", "--max-age-ms")
    out = output(capsys, *words, "130")
    assert (last(out)["best"], last(out)["best_is_lossless"]) == ("autoregressive", True)
    assert [row["decoding"] for row in last(out)["decodings"]] == [
        "autoregressive", "speculative_relaxed", "actionflow",
    ]  # fmt: skip
    assert "LOSSY" not in out
    assert "observation up to 266 ms old" in out  # actionflow: seven calls deep, whatever null says
    assert "parallel" not in out
    out = output(capsys, *words, "70")
    assert (last(out)["best"], last(out)["best_is_lossless"]) == ("speculative_relaxed", False)
    assert "LOSSY" in out


@pytest.mark.parametrize(
    ("words", "needle"),
    [
        (("roofline", "--device", "nope"), "h100-nvl"),
        (("roofline", "--model", "nope"), "openvla-7b"),
        (("roofline", "--dtype", "fp7"), "fp8"),
        (("roofline", "--device", "a100", "--dtype", "fp8"), "no rate for fp8"),
        (("roofline", "--alpha", "2"), "probability"),
        (("roofline", "--gamma", "0"), "at least 1"),
        (("roofline", "--images", "0"), "at least 1"),
        (("roofline", "--prompt-tokens", "3"), "256"),
        (("roofline", "--draft", "pi0"), "cannot draft"),
        (("roofline", "--camera-hz", "0"), "above 0"),
        (("roofline", "--chunk", "0"), "at least 1"),
        (("roofline", "--model", "openvla-oft", "--chunk", "4"), "at once"),
        (("roofline", "--coverage", "0.7"), "--head"),
        (("roofline", "--head", "--chunk", "8", "--coverage", "1.5"), "probability"),
        (("roofline", "--chunk", "8", "--executed", "9"), "8 action"),
        (("roofline", "--model", "small-chunk", "--draft", "small"), "cannot draft"),
        (("roofline", "--plots", "x"), "one --device"),
        (("roofline", "--compare", "/nowhere"), "cannot be read"),
        (("roofline", "--devices", "/nowhere"), "cannot be read"),
        (("advise", "--camera-hz", "30"), "--control-hz"),
        ((*ADVISE, "--max-age-ms", "-1", "--device", "h200"), "above 0"),
        ((*ADVISE, "--max-age-ms", "9", "--bench", "/nowhere"), "cannot be read"),
        ((*ADVISE, "--max-age-ms", "9", "--bench", BENCH, "--dtype", "int8"), "leave out --dtype"),
        ((*ADVISE, "--max-age-ms", "9", "--bench", BENCH, "--chunk", "8"), "leave out --chunk"),
        ((*ADVISE, "--max-age-ms", "9", "--device", "rtx-4090", "--dtype", "fp32"), "does not fit"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(capsys, words, needle):
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "")
    assert needle in err
    assert len(err.strip().splitlines()) == 1


def test_a_roofline_needs_neither_ros_nor_matplotlib():
    code = (
        "import sys\n"
        "for name in ('matplotlib', 'transformers', 'rclpy'): sys.modules[name] = None\n"
        "from vla_ros.cli.main import main\n"
        "sys.exit(main(['roofline', '--device', 'h200', '--json']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert last(done.stdout)["model"] == "openvla-7b"
