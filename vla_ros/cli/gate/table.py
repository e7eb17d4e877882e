"""A gate's result in a terminal."""

from __future__ import annotations

from vla_ros.console.streams import show
from vla_ros.console.tables import Table
from vla_ros.precision.result import Result

_FEW = 12  # stages or flips in a table; the page has all


def show_result(result: Result) -> None:
    """Stages, choices, figures, and the verdict last."""
    found, most = result.comparison, result.thresholds
    print(f"{result.precision} against float32, {found.frames} frames of {result.frames_from}\n")
    stages = [
        (one.name, f"{one.worst:.2g}", f"{one.mean:.2g}", "" if one.worst <= most.error else "over")
        for one in found.stages
    ]
    if len(stages) > 2 * _FEW:
        left = len(stages) - 2 * _FEW
        stages[_FEW:-_FEW] = [(f"... {left} more", "", "", "")]
    choices = []
    for name, count in found.checked:
        flips = [flip for flip in found.flips if flip.name == name]
        margin = f"{max(f.margin for f in flips):.3f}" if flips else "-"
        choices.append((name, str(count), str(len(flips)), margin))
    moved = found.displacement
    figures = [
        ("displacement of an action, mm", f"{moved.mm:.2f}", f"{most.mm:g}"),
        ("rotation of an action, degrees", f"{moved.degrees:.2f}", f"{most.degrees:g}"),
        ("opening of the gripper", f"{moved.gripper:.2f}", f"{most.gripper:g}"),
    ]
    if found.agreement is not None:
        share, least = (
            f"{100 * found.agreement:.1f}",
            f"at least {100 * most.agreement:g}" if most.agreement else "-",
        )
        figures.insert(0, ("equal tokens, %", share, least))
    show(
        Table(("stage", "relative error\nworst", "mean", ""), stages), "",
        Table(("discrete choice", "looked at", "flipped", "largest margin"), choices), "",
        Table(("largest", "measured", "threshold"), figures),
        f"judged on {result.verdict.judged} frames, those without a token that flipped in a close"
        " call" if result.verdict.judged < found.frames else "", "",
    )  # fmt: skip
    for reason in result.verdict.reasons:
        print(f"- {reason}")
    print("passed" if result.verdict.passed else "FAILED")
