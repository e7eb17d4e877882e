"""How Rerun's window is arranged for what a run has: cameras and the log on the left, the robot in
the middle, state and lines on the right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vla_ros.windows.facts import Fact, Numbers, Picture, State, Text
from vla_ros.windows.scene import WORLD

#: Charts by the last words of the entities in them, in this order.
CHARTS = (
    ("Age and staleness [s]", ("age", "staleness", "limit")),
    ("Stages of an action [s]", ("stages",)),
    ("Latency [s]", ("total", "inference")),
    ("Action", ("numbers",)),
    ("Rates [Hz]", ("rates",)),
    ("Draft acceptance", ("acceptance",)),
    ("Joints", ("joint_states",)),
)
_EYE, _LOOKED_AT = (1.3, -0.9, 0.9), (-0.1, 0.0, 0.2)  # m, as the page in the browser has it
_SHOWN = 4  # charts below each other; the others are tabs


def charts(kinds: Mapping[str, type[Fact]]) -> dict[str, list[str]]:
    """Title to entities, of those charts that there is anything for."""
    found: dict[str, list[str]] = {}
    for title, words in CHARTS:
        paths = [p for p, kind in kinds.items() if kind is Numbers and p.split("/")[-1] in words]
        if paths:
            found[title] = paths
    return found


def layout(kinds: Mapping[str, type[Fact]]) -> Any:
    """A blueprint of rerun-sdk for these entities."""
    import rerun.blueprint as rrb

    def of(kind: type[Fact]) -> list[str]:
        return [path for path, one in kinds.items() if one is kind]

    def entities(paths: list[str]) -> list[str]:
        return [f"+ /{path}" for path in paths]

    cameras = [rrb.Spatial2DView(origin=f"/{path}", name=path) for path in of(Picture)]
    left: list[Any] = [*cameras]
    if texts := of(Text):
        left.append(rrb.TextLogView(origin="/", contents=entities(texts), name="Log"))
    right: list[Any] = []
    if states := of(State):
        right.append(rrb.StateTimelineView(origin="/", contents=entities(states), name="State"))
    series = [
        rrb.TimeSeriesView(origin="/", contents=entities(paths), name=title)
        for title, paths in charts(kinds).items()
    ]
    right += series[:_SHOWN]
    if series[_SHOWN:]:
        right.append(rrb.Tabs(*series[_SHOWN:]))
    columns: list[Any] = []
    if left:
        columns.append(rrb.Vertical(*left, name="Cameras"))
    if any(path.startswith(f"{WORLD}/") for path in kinds):
        eye = rrb.EyeControls3D(position=_EYE, look_target=_LOOKED_AT, eye_up=(0.0, 0.0, 1.0))
        columns.append(rrb.Spatial3DView(origin=f"/{WORLD}", name="3-D", eye_controls=eye))
    if right:
        columns.append(rrb.Vertical(*right, name="Charts"))
    return rrb.Blueprint(
        rrb.Horizontal(*columns),
        rrb.TimePanel(timeline="ros_time", state="collapsed"),
        rrb.BlueprintPanel(state="collapsed"),
        rrb.SelectionPanel(state="collapsed"),
    )
