"""Memory is counted in one place, and the count is what the engine allocates."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from vla_ros.cli.doctor import room_for
from vla_ros.core.resources import config_path
from vla_ros.engine.families.openvla import PRESETS, expected_shapes
from vla_ros.engine.io.tokens import MAX_TEXT
from vla_ros.engine.layers.pack import prefill_layout
from vla_ros.engine.load import load_engine
from vla_ros.engine.options import EngineOptions
from vla_ros_lab.roofline import roofline as stages
from vla_ros_lab.roofline.devices import load_devices
from vla_ros_lab.roofline.roofline import LONGEST_TEXT, RUNTIME, Roofline, memory_of
from vla_ros_lab.roofline.shapes import load_model, shape_of
from vla_ros_lab.roofline.work import Precision, parse_precision, precision_of_weights

DEVICES = load_devices(config_path("devices.yaml"))
OPENVLA = load_model("openvla-7b")


def test_the_weights_are_the_bytes_of_the_checkpoint():
    shapes = expected_shapes(PRESETS["openvla-7b"])
    bytes_ = 2 * sum(math.prod(shape) for shape in shapes.values())
    assert memory_of(OPENVLA, Precision()).weights == pytest.approx(bytes_, rel=0.001)
    assert bytes_ == pytest.approx(15.0e9, rel=0.01)


@pytest.mark.parametrize(
    ("checkpoint", "decoding", "frames"),
    [
        ("small", "autoregressive", 1),
        ("small", "speculative", 1),
        ("small", "actionflow", 7),
        ("small-oft", "parallel", 1),
    ],
)
def test_the_cache_is_what_the_engine_allocates(checkpoint, decoding, frames):
    engine = load_engine(EngineOptions(f"random:{checkpoint}", decoding=decoding))
    kv_cache = engine.decoder.decoding.runner.kv_cache
    allocated = sum(t.numel() * t.element_size() for t in kv_cache._storage)
    shape = shape_of(PRESETS[checkpoint], checkpoint)
    counted = memory_of(shape, parse_precision("fp32"), frames).cache
    assert counted == pytest.approx(allocated, rel=0.02)  # a stop token, and rounding to pages


def test_room_is_kept_for_the_longest_text_that_the_engine_takes():
    assert LONGEST_TEXT == MAX_TEXT


def test_a_pass_holds_no_more_than_is_counted():
    """Nothing larger than the gate and up projections of the whole prompt is ever made."""
    engine = load_engine(EngineOptions("random:small"))
    largest = 0

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            found = function(*args, **(kwargs or {}))
            if isinstance(found, torch.Tensor) and found._base is None:
                largest = max(largest, found.numel())
            return found

    model = engine.model
    rows = model.config.patches + MAX_TEXT
    runner = model.runner(1, rows + 7)
    with Watch():
        x = torch.zeros(rows, model.config.text.hidden_size)
        runner.logits(prefill_layout(rows, (rows - 1,)), x, None)
    counted = memory_of(load_model("small"), parse_precision("fp32")).activations / 4
    assert 0.3 * counted < largest < counted


def test_openvla_7b_in_words_and_figures():
    need = memory_of(OPENVLA, Precision())
    assert need.cache == pytest.approx(0.239e9, rel=0.01)  # 455 tokens at 0.52 MB
    assert need.total == pytest.approx(16.3e9, rel=0.01)
    assert need.total - RUNTIME == need.weights + need.cache + need.activations
    assert memory_of(OPENVLA, Precision(), frames=7).cache == pytest.approx(7 * need.cache)
    assert memory_of(OPENVLA, parse_precision("int4")).weights < 0.4 * need.weights


@pytest.mark.parametrize(("memory_gb", "fits"), [(16, False), (17, True), (24, True)])
def test_the_doctor_and_the_roofline_say_the_same(memory_gb, fits):
    device = replace(DEVICES["rtx-4090"], memory_gb=memory_gb)
    assert Roofline(OPENVLA, device).fits() is fits
    said = room_for(memory_gb * 1e9)
    assert ("does not fit" in said) is not fits
    assert f"{Roofline(OPENVLA, device).memory().total / 1e9:.1f} GB" in said


@pytest.mark.parametrize("model", ["openvla-7b", "pi0", "groot-n1.7"])
def test_weights_of_fewer_bits_are_read_and_held(model: str) -> None:
    """`weights` as the engine takes it: the head's go for the expert, too; sums stay in bf16."""
    shape = load_model(model)
    plain, eight, four = (
        memory_of(shape, precision_of_weights(text)).weights for text in ("bf16", "int8", "int4")
    )
    assert four < eight < plain
    assert 0.5 * plain < eight < 0.75 * plain  # but of vision
    precision = precision_of_weights("decoder=int4")
    assert (precision.decoder, precision.head, precision.expert) == ("int4w", "bf16", "bf16")
    work = stages.decode(shape) if shape.kind == "tokens" else stages.flow_prefix(shape)
    read, less = (
        sum(p.traffic(op, activations=False) for op in work)
        for p in (precision_of_weights(""), precision)
    )
    assert less < 0.5 * read
    assert {precision.compute(op) for op in work} == {"bf16"}
