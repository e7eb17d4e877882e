"""The actions that a checkpoint learned from, as far as its folder describes them.

No field of an architecture says what an action's numbers are. There are: LeRobot's
``action_feature_names`` in config.json; the names of a data set's ``action`` feature in
``meta/info.json``, beside the policy or where its ``train_config.json`` says that it was; the
statistics, which say how far each number reaches; and the names of data set and simulation, which
may be LIBERO's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_ros.core.files import read_text
from vla_ros.engine.io.rates import CARD, CONFIG, INFO, TRAINED, data_sets, part, read, repository

STATISTICS = "its statistics"
Ends = tuple[float, ...]
_CARDS_DATA = re.compile(r"^datasets:\s*(?:\n\s*-\s*)?(\S*libero\S*)", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ActionData:
    """What a folder says about the actions of its data.

    ``names`` of their values and ``named_by`` which file has them; () where nothing does. ``low``
    and ``high``: the reach of nearly all values, [width] each; () unknown. ``positions``: they are
    of joints, since the model adds them to the state. ``libero``: which file says that the data are
    LIBERO's, "" none does. ``gripper``: closed..open of the gripper as it comes out of the network,
    "" where nothing says it, and ``gripper_by`` who does. ``executed``: actions of a chunk that its
    authors execute, 0 unknown.
    """

    names: tuple[str, ...] = ()
    named_by: str = ""
    low: Ends = ()
    high: Ends = ()
    positions: bool = False
    libero: str = ""
    gripper: str = ""
    gripper_by: str = CONFIG
    executed: int = 0


def reach_of(stats: Mapping[str, Sequence[float]]) -> tuple[Ends, Ends]:
    """The ends of each value, of a data set's statistics; ((), ()) where there are none.

    Quantiles before extremes, single outliers of which may be many metres. Of mean and deviation
    alone two deviations about the mean, within 0..1 or -1..1 where such values can have them at all
    (a gripper that is either 0 or 1 has a deviation of 0.5; Bhatia and Davis, 2000).
    """
    for low, high in (("q01", "q99"), ("min", "max")):
        if low in stats and high in stats:
            return tuple(map(float, stats[low])), tuple(map(float, stats[high]))
    if "mean" not in stats or "std" not in stats:
        return (), ()
    pairs = list(zip(stats["mean"], stats["std"], strict=True))
    ends = [_within(float(mean), float(std)) for mean, std in pairs]
    return tuple(low for low, _ in ends), tuple(high for _, high in ends)


def _within(mean: float, std: float) -> tuple[float, float]:
    low, high = mean - 2 * std, mean + 2 * std
    for least in (0.0, -1.0):
        if least <= mean <= 1.0 and std**2 <= (1.0 - mean) * (mean - least) + 1e-6:
            return max(low, least), min(high, 1.0)
    return low, high


def action_names_in(directory: Path, width: int) -> tuple[tuple[str, ...], str]:
    """Names of an action's ``width`` values, and the file that has them; ((), "") where none does.

    Other people's files are read as far as they can be.
    """
    found = _flat(read(directory / CONFIG).get("action_feature_names"))
    if len(found) == width:
        return found, CONFIG
    trained = read(directory / TRAINED)
    for folder in (directory, *data_sets(trained)):
        feature = part(part(read(folder / INFO), "features"), "action")
        if len(found := _flat(feature.get("names"))) == width:
            return found, str(INFO) if folder == directory else f"{folder.name}/{INFO}"
    return (), ""


def _flat(names: Any) -> tuple[str, ...]:
    """Names in a list, or in the lists of a map ({"motors": [...]}), or with their places."""
    return tuple(_texts(names))


def _texts(names: Any) -> Iterator[str]:
    if isinstance(names, str):
        yield names
    elif isinstance(names, list | tuple):
        for one in names:
            yield from _texts(one)
    elif isinstance(names, Mapping):
        if names and all(isinstance(place, int) for place in names.values()):
            yield from sorted(names, key=names.__getitem__)
        else:
            yield from _texts(list(names.values()))


def libero_in(directory: Path) -> str:
    """Which file of a folder says that its policy learned from LIBERO's data; "" none."""
    trained = read(directory / TRAINED)
    if "libero" in f"{part(trained, 'env').get('type')} {repository(trained)}".lower():
        return TRAINED
    path = directory / CARD
    try:
        return CARD if path.is_file() and _CARDS_DATA.search(read_text(path)) else ""
    except (OSError, ValueError):
        return ""


def executed_in(directory: Path) -> int:
    """LeRobot's ``n_action_steps``: how many actions of a chunk are executed; 0 where none is
    given."""
    many = read(directory / CONFIG).get("n_action_steps")
    return many if isinstance(many, int) and not isinstance(many, bool) and many > 0 else 0
