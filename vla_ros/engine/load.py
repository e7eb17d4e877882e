"""Loading an engine by a checkpoint's name; and inspecting a checkpoint in the memory of one
tensor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from vla_ros.core.names import nearest
from vla_ros.engine.engine import Engine
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.families.base import LoadedPolicy, LoadOptions, Placement
from vla_ros.engine.families.random import PREFIX
from vla_ros.engine.families.registry import all_presets, config_of, family_of, source_of
from vla_ros.engine.formats import parse_formats
from vla_ros.engine.io.files import memory_returned
from vla_ros.engine.io.hub import resolve
from vla_ros.engine.io.quantize import DECODER, HEAD, VISION
from vla_ros.engine.layers.flow_matching import RtcMode
from vla_ros.engine.layers.graphs import Capture, CudaCapture
from vla_ros.engine.layers.prepacked import can_prepack, has_wide_products
from vla_ros.engine.layers.tuner import choose_tuner
from vla_ros.engine.memory import refuse_unless_fits
from vla_ros.engine.models.corrector import CorrectorConfig, find_corrector
from vla_ros.engine.models.robot_side import check_layout
from vla_ros.engine.models.vlm_with_expert import VLMWithExpert
from vla_ros.engine.options import AUTO, FLOW, TOKENS, EngineOptions
from vla_ros.engine.verdicts import settled


def load_engine(options: EngineOptions, packed: frozenset[str] | None = None) -> Engine:
    """Load a checkpoint and make its engine ready; ``packed``: parts of a flow policy to give a CPU
    in its own order, None: by :func:`packed_parts`.

    Raises CheckpointError when the checkpoint does not fit, with a list of what is there, or the
    memory that is free.
    """
    if not options.checkpoint:
        raise ValueError("checkpoint is empty: give a directory, a hub id or random:small")
    if options.num_threads:
        torch.set_num_threads(options.num_threads)
    options, _ = settled(options)
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda, but torch finds no GPU here")
    source = source_of(options.checkpoint)
    family, rtc = family_of(source), options.rtc_mode
    if formats := parse_formats(options.weights):
        family.refuse_formats(source, Placement(device, dtype, formats=formats), rtc)
    options.check_family(family.group)
    choice = LoadOptions.of(options)
    if family.group != TOKENS:  # whose statistics say what an action is
        check_layout(config_of(source, choice), options)  # before any weight is read
    tuned = options if family.group == FLOW else replace(options, gemm="torch")
    place = replace(placement(tuned, packed), options=options)
    family.refuse_formats(source, place, rtc)
    refuse_unless_fits(options)
    with memory_returned():
        policy = family.load(source, choice, place, options.seed)
        corrector, wanted = None, corrector_for(policy)
        if isinstance(source, Path) and wanted is not None:
            corrector = find_corrector(source, wanted, policy.model.device)
        return Engine(policy, options, corrector=corrector)


def placement(options: EngineOptions, packed: frozenset[str] | None = None) -> Placement:
    """Where a flow policy's network is to live, and its kernels, by the options; ``packed`` as of
    :func:`load_engine`. ValueError: formats that there are not."""
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    formats = parse_formats(options.weights)
    capture: Capture | None = None
    if device.type == "cuda" and options.cuda_graphs:
        capture = CudaCapture(device)
    if capture is not None and options.gemm == AUTO:
        tuner = choose_tuner(device, dtype)
        if tuner is not None:
            capture, parts = tuner.while_capturing(capture), tuned_parts(options)
            return Placement(device, dtype, capture, formats, packed=parts, tuner=tuner)
    if packed is None:
        packed = packed_parts(device, dtype, options)
    return Placement(device, dtype, capture, formats, packed=packed)


def corrector_for(policy: LoadedPolicy) -> CorrectorConfig | None:
    """The shape of a policy's corrector; None: of this family, or of actions that are relative to
    the state of their observation, there are none."""
    config = policy.config
    if not isinstance(policy.model, VLMWithExpert) or policy.processors.relative:
        return None
    hidden = config.shapes.text.hidden_size
    return CorrectorConfig(hidden, config.state_dim, config.action_dim, config.horizon)


def packed_parts(
    device: torch.device, dtype: torch.dtype, options: EngineOptions
) -> frozenset[str]:
    """Parts of a flow policy whose matrices a CPU is given in its own order: not what a gradient
    goes through, and only where it was measured to be faster.

    A rule and no timing, so that every start on a machine gives the same bits. Products with the
    rows of a chunk are faster on every CPU that was tried (AVX2, float32: 1.05 to 1.5 times); those
    with the many rows of images and prompts are not: see :func:`has_wide_products`.
    """
    if not can_prepack(device, dtype):
        return frozenset()
    parts = {HEAD}
    if has_wide_products(device, dtype):
        parts |= {VISION, DECODER}
    return frozenset(parts - {HEAD} if options.rtc_mode == RtcMode.GUIDED_VJP else parts)


def tuned_parts(options: EngineOptions) -> frozenset[str]:
    """Parts of a flow policy whose products are timed on a GPU: not what a gradient goes
    through."""
    return frozenset({DECODER} if options.rtc_mode == RtcMode.GUIDED_VJP else {DECODER, HEAD})


@dataclass(frozen=True, slots=True)
class Inspection:
    """A checkpoint that was found good. ``kind`` is "tokens" or the type of a flow policy;
    ``statistics`` the data sets whose actions it may give, none where it was trained on one
    alone."""

    directory: Path
    kind: str
    parameters: int
    statistics: tuple[str, ...]


def inspect(name: str, tokenizer: str = "") -> Inspection:
    """Inspection of a checkpoint, which finds all that loading would find wrong: every tensor
    there, of its shape, finite.

    ``tokenizer``: the folder of the option of that name. CheckpointError in one line.
    """
    directory = resolve(name)
    family = family_of(directory)
    choices = family.choices(directory, LoadOptions(tokenizer=tokenizer or None))
    for choice in choices[1:]:  # which one it will be is chosen later
        family.check(directory, choice)
    config, parameters = family.inspect(directory, choices[0])
    return Inspection(directory, config.kind, parameters, tuple(family.data_sets(directory)))


def refuse_weights(name: str, weights: str, device: str, dtype: str, rtc: str = "") -> None:
    """CheckpointError, or ValueError, in one line where a checkpoint's weights cannot be in these
    formats (:mod:`vla_ros.engine.formats`) there; reads no weights."""
    if not (formats := parse_formats(weights)):
        return
    options, _ = settled(EngineOptions(name, device=device, dtype=dtype, weights=weights))
    source, place = source_of(name), torch.device(options.device)
    wanted = Placement(place, getattr(torch, options.dtype), formats=formats)
    family_of(source).refuse_formats(source, wanted, rtc)


def inspect_random(name: str) -> tuple[str, int]:
    """Kind and number of parameters of ``random:<preset>``. Nothing is made.

    CheckpointError in one line, with the presets that there are.
    """
    if name.removeprefix(PREFIX) not in (presets := all_presets()):
        known = f"; there are {PREFIX}{f', {PREFIX}'.join(sorted(presets))}"
        near = nearest(name.removeprefix(PREFIX), presets, known)
        raise CheckpointError(f"{name!r} is unknown{near}")
    family, config = family_of(name), config_of(name)
    return config.kind, family.parameters(config)


def sha256_on_disk(name: str) -> str:
    """The ``checkpoint_sha256`` of an engine of ``name``, without loading it."""
    directory = resolve(name)
    return family_of(directory).sha256(directory)
