"""A benchmark put beside the bound, and judged: from files as `vla-ros bench` writes them."""

from __future__ import annotations

import json

import pytest

from vla_ros.core.resources import config_path
from vla_ros_lab.roofline.advice import PARAMETERS, Requirements, advise, from_bench
from vla_ros_lab.roofline.bench_file import kind_of, read_bench
from vla_ros_lab.roofline.compare import compare_decodings, compare_stages, fit_shape
from vla_ros_lab.roofline.decodings import decodings
from vla_ros_lab.roofline.devices import load_devices
from vla_ros_lab.roofline.roofline import Roofline
from vla_ros_lab.roofline.shapes import load_model

DEVICES = load_devices(config_path("devices.yaml"))
ROOF = Roofline(load_model("openvla-7b"), DEVICES["h200"])


def row(median: float, **more) -> dict:
    base = {
        "median_ms": median, "p95_ms": 1.1 * median,
        "latency_ms": median, "passes_per_action": 1.0, "acceptance": None, "lossless": True,
        "actions_per_call": 1, "token_match": 1.0,
    }  # fmt: skip
    return base | more


def bench(rows: dict, **head) -> dict:
    base = {
        "command": "vla-ros bench", "checkpoint": "random:openvla-7b", "device": "cuda",
        "dtype": "bfloat16", "threads": 4, "machine": {"cpu": "x", "gpu": "NVIDIA H200"},
        "shapes": {"prompt_tokens": 281, "action_tokens": 7},
    }  # fmt: skip
    return base | head | {"decodings": rows}


def write(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def half_speed(roof: Roofline = ROOF, alpha: float = 0.5) -> dict:
    """Every decoding at half of its bound."""
    rows = {}
    for s in decodings(roof, alpha, draft=load_model("minivla")):
        ms = 2e3 * s.seconds
        rows[s.name] = row(
            ms, latency_ms=s.depth * ms, passes_per_action=s.passes, acceptance=s.alpha
        )
    return rows


def test_half_the_speed_is_half_the_efficiency(tmp_path):
    found = read_bench(write(tmp_path / "bench.json", bench(half_speed())))
    roof = ROOF.for_model(fit_shape(ROOF.model, found))
    by_decoding = {e.name: e for e in compare_decodings(roof, found, load_model("minivla"))}
    assert by_decoding.keys() == half_speed().keys()
    for e in by_decoding.values():
        assert e.efficiency == pytest.approx(0.5), e.name
    stages = {e.name: e.efficiency for e in compare_stages(roof, found)}
    assert stages.keys() == {"vision and prefill", "decode pass", "vision and packed pass"}
    assert list(stages.values()) == pytest.approx([0.5] * 3, rel=0.01)


def test_references_are_held_against_the_same_arithmetic(tmp_path):
    plain = ROOF.vision().ms + ROOF.projector().ms + ROOF.prefill().ms + 6 * ROOF.decode().ms
    rows = {"generate": row(10 * plain), "naive_pipe": row(50.0, latency_ms=350.0), "new": row(1)}
    found = read_bench(write(tmp_path / "b.json", bench(rows)))
    by_name = {e.name: e for e in compare_decodings(ROOF, found)}
    assert by_name["generate"].efficiency == pytest.approx(0.1)
    assert by_name["naive_pipe"].possible_ms < plain
    assert "new" not in by_name


def test_a_drafter_that_switched_itself_off_is_held_against_the_passes_it_took(tmp_path):
    """0.9 of the few tokens it drafted were right, but it took seven passes all the same."""
    rows = {"speculative_temporal": row(30.0, acceptance=0.9, passes_per_action=7.0)}
    found = read_bench(write(tmp_path / "b.json", bench(rows)))
    (only,) = compare_decodings(ROOF, found)
    miss = {s.name: s for s in decodings(ROOF)}["speculative_miss"]
    assert only.possible_ms == pytest.approx(miss.seconds * 1e3)
    assert only.how == "7.00 passes"


def test_stage_marks_are_used_where_there_are_some(tmp_path):
    marks = {"vision": 1.0, "prefill": 10.0, "decode": 30.0}
    rows = {"autoregressive": row(41.0, passes_per_action=7.0, stages_ms=marks)}
    found = read_bench(write(tmp_path / "b.json", bench(rows)))
    measured = {e.name: e.measured_ms for e in compare_stages(ROOF, found)}
    assert measured == {"vision": 1.0, "prefill": 10.0, "decode pass": 5.0}


def test_the_measured_shape_is_taken_over(tmp_path):
    shapes = {"prompt_tokens": 300, "action_tokens": 16}
    found = read_bench(write(tmp_path / "b.json", bench({"generate": row(1)}, shapes=shapes)))
    model = fit_shape(load_model("openvla-7b"), found)
    assert (model.prompt, model.action_tokens) == (300, 16)
    assert (found.checkpoint, found.dtype, found.threads) == ("random:openvla-7b", "bf16", 4)
    assert found.machine == "NVIDIA H200"


def test_a_saved_output_will_do(tmp_path):
    text = f"a table\nof text\n\n{json.dumps(bench({'generate': row(5)}))}\n"
    assert read_bench(write(tmp_path / "out.txt", text)).rows["generate"].median_ms == 5


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no JSON"),
        ("not json", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ({"sweep": []}, "decodings is missing"),
        (bench({}), "decodings is empty"),
        (bench({"generate": {}}), r"generate\.median_ms is missing"),
        (bench({"generate": row(0)}), r"generate\.median_ms is 0"),
        (bench({"generate": row(float("inf"))}), "not a number"),
        (bench({"generate": [1]}), "not an object"),
        (bench({"generate": row(1, stages_ms=3)}), r"stages_ms is 3, not an object"),
        (bench({"generate": row(1, latency_ms="soon")}), r"latency_ms is 'soon'"),
        (bench({"generate": row(1)}, shapes={"action_tokens": 1e400}), "action_tokens is inf"),
        (bench({"generate": row(1)}, threads=True), "threads is True"),
        ([1, 2], "no benchmark"),
    ],
)
def test_what_is_no_benchmark(tmp_path, content, message):
    with pytest.raises(ValueError, match=message) as caught:
        read_bench(write(tmp_path / "b.json", content))
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_actions_of_a_single_token_have_no_decode_pass(tmp_path):
    rows = {"autoregressive": row(9.0), "speculative_hit": row(9.0)}
    found = read_bench(write(tmp_path / "b.json", bench(rows, shapes={"action_tokens": 1})))
    roof = ROOF.for_model(fit_shape(ROOF.model, found))
    assert {e.name for e in compare_stages(roof, found)} == {"vision and prefill"}


def test_no_file(tmp_path):
    with pytest.raises(ValueError, match="cannot be read"):
        read_bench(tmp_path / "none.json")


def test_advice_from_a_measurement(tmp_path):
    rows = {
        "generate": row(20.0),
        "autoregressive": row(30.0),
        "actionflow": row(10.0, latency_ms=70.0),
        "speculative_temporal": row(15.0, p95_ms=29.0, acceptance=0.4),
        "speculative_hit": row(9.0),
    }
    found = read_bench(write(tmp_path / "b.json", bench(rows)))
    verdicts = advise(from_bench(found), Requirements(30, 20, 0.2))
    judged = {v.candidate.name: v for v in verdicts}
    assert "generate" not in judged  # a reference
    assert "speculative_hit" not in judged  # a bound
    assert judged["actionflow"].candidate.depth == 7
    assert not judged["actionflow"].meets
    assert judged["speculative_temporal"].age_s == pytest.approx(0.029 + 0.05)
    assert verdicts[0].candidate.name == "speculative_temporal"


def test_a_pipeline_that_was_never_full_while_it_was_timed_is_as_deep_all_the_same(tmp_path):
    """`vla-ros bench --timed 5` cannot measure a latency of seven calls and writes null."""
    rows = {"autoregressive": row(30.0), "actionflow": row(10.0, latency_ms=None)}
    found = read_bench(write(tmp_path / "b.json", bench(rows)))
    assert found.rows["actionflow"].depth == 7
    judged = {v.candidate.name: v for v in advise(from_bench(found), Requirements(20, 20, 0.2))}
    assert judged["actionflow"].missing == ("observation up to 361 ms old",)
    assert judged["actionflow"].age_s == pytest.approx(6 * 0.05 + 0.011 + 0.05, abs=0.002)
    unknown = bench({"new": row(10.0, latency_ms=None)})
    with pytest.raises(ValueError, match=r"decodings\.new\.latency_ms .*--timed"):
        read_bench(write(tmp_path / "b.json", unknown))
    nameless = bench({"actionflow": row(10.0, latency_ms=None)}, shapes={})
    with pytest.raises(ValueError, match="latency_ms"):
        read_bench(write(tmp_path / "b.json", nameless))


def test_a_lossy_decoding_stands_below_every_lossless_one_that_will_do(tmp_path):
    rows = {
        "autoregressive": row(40.0),
        "speculative_temporal": row(30.0, acceptance=0.4),
        "speculative_relaxed": row(12.0, lossless=False, acceptance=0.9),
    }
    found = read_bench(write(tmp_path / "b.json", bench(rows)))
    names = [v.candidate.name for v in advise(from_bench(found), Requirements(20, 20, 0.2))]
    assert names == ["speculative_temporal", "autoregressive", "speculative_relaxed"]
    verdicts = advise(
        from_bench(found), Requirements(30, 30, 0.06)
    )  # only the lossy one is fast enough
    assert [(v.candidate.name, v.meets, v.candidate.lossless) for v in verdicts] == [
        ("speculative_relaxed", True, False),
        ("speculative_temporal", False, True),
        ("autoregressive", False, True),
    ]


def test_what_the_relaxed_row_was_measured_with_is_what_is_advised():
    from vla_ros_lab.bench.suite import OPTIONS

    bins = OPTIONS["speculative_relaxed"]["relaxed_distance"]
    assert f"relaxed_distance={bins}" in PARAMETERS["speculative_relaxed"]


@pytest.mark.parametrize(
    ("checkpoint", "rows", "kind"),
    [
        ("random:small", ("parallel",), "tokens"),  # by its shape: the row is the bench's own
        ("random:small-oft", ("parallel",), "parallel"),
        ("/gone/model", ("autoregressive", "parallel"), "tokens"),  # by its rows
        ("/gone/model", ("parallel",), "parallel"),
    ],
)
def test_parallel_is_offered_where_the_checkpoint_has_such_a_head(tmp_path, checkpoint, rows, kind):
    content = bench({name: row(10.0) for name in rows}, checkpoint=checkpoint)
    found = read_bench(write(tmp_path / "b.json", content))
    assert kind_of(found) == kind
    offered = [c.name for c in from_bench(found)]
    assert offered == [name for name in rows if (name == "parallel") == (kind == "parallel")]
