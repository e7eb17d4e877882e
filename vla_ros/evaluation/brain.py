"""From a setup and a variant to what acts: the policy's spec and the limits it is held to.

The values are those that the policy node gets as parameters in the graph.
"""

from __future__ import annotations

from vla_ros.control.timeline import Chunking, Execution
from vla_ros.core import PolicyInfo
from vla_ros.evaluation.plan import age_limit_s
from vla_ros.evaluation.records import Setup, Variant
from vla_ros.policies.base import PolicySpec
from vla_ros.policies.conventions import UNGATED
from vla_ros.safety import Limits
from vla_ros.sim.env import EnvSpec

DRAFTING = ("speculative", "heterospec", "vanilla_speculative")
WARM_UP = 5  # the node's warmup_count


def policy_spec(setup: Setup, variant: Variant) -> PolicySpec:
    """Which policy to load. Raises PolicyRefused with the reason."""
    return PolicySpec(
        name=setup.policy,
        checkpoint=setup.checkpoint,
        schedule=variant.schedule or "auto",
        schedule_options=schedule_options(variant)
        | ({"embodiment": setup.embodiment} if setup.embodiment else {}),
        device=setup.device,
        dtype=setup.dtype,
        weights=setup.weights,
        unnorm_key=setup.unnorm_key,
        seed=setup.seed,
        num_threads=setup.threads,
        warmup_count=WARM_UP,
        warmup_size=(setup.image_size, setup.image_size),
        delay_frames=variant.delay_frames,
    )


def schedule_options(variant: Variant) -> dict[str, str | int | float | bool]:
    """Fields of the engine's options that belong to the variant's schedule and execution."""
    options: dict[str, str | int | float | bool] = {}
    if Execution(variant.execution).continues:
        trained = variant.execution == Execution.RTC_TRAINED
        options["rtc"] = "trained" if trained else variant.rtc_jacobian
    if variant.schedule not in DRAFTING:
        return options
    options |= {
        "drafter": variant.drafter,
        "draft_extrapolation": variant.draft_extrapolation,
        "adaptive_draft": variant.adaptive_draft,
        "acceptance": variant.acceptance,
        "relax_bins": variant.relaxed_distance,
    }
    if variant.calibration:
        options["calibration"] = variant.calibration
    if variant.draft_checkpoint:
        options["draft_checkpoint"] = variant.draft_checkpoint
    return options


def chunking_of(variant: Variant, limits: Limits, info: PolicyInfo) -> Chunking:
    """How chunks are executed, in lock-step, where inference makes nothing older. ValueError where
    the policy cannot be fresh so."""
    chunking = Chunking(
        Execution(variant.execution),
        replan_interval=variant.replan_interval,
        delay_frames=variant.delay_frames,
    ).fitted(limits, info, 0.0)
    least = chunking.least_age_s(limits, info, 0.0)
    if limits.max_age_s < least:
        raise ValueError(
            f"{variant.label}: its actions are up to {least:.2f} s old, the limit is"
            f" {limits.max_age_s:g} s: give a larger --max-age"
        )
    return chunking


def limits_of(setup: Setup, variant: Variant, spec: EnvSpec) -> Limits:
    """What the gate holds the policy to; otherwise the node's defaults."""
    gate = UNGATED if setup.ungated else {}
    return Limits(
        control_rate_hz=spec.control_rate_hz,
        camera_rate_hz=spec.control_rate_hz,
        max_age_s=age_limit_s(setup, variant, spec.control_rate_hz),
        **gate,  # type: ignore[arg-type]
    )
