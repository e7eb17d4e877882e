"""A bag as a recording of Rerun."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from vla_ros.replay.bag import Bag, BagMessage, BagTopic
from vla_ros.replay.errors import BagError
from vla_ros.windows.facts import Fact
from vla_ros.windows.reading import Reader, stamp_of


class Window(Protocol):
    """What facts are shown in."""

    def show(self, fact: Fact, stamp_ns: int, recorded_ns: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Shown:
    """What came of a bag: messages shown, topics that nothing is shown of, and of each topic with
    malformed messages how many there were and the first complaint."""

    messages: int
    skipped: tuple[BagTopic, ...]
    malformed: dict[str, tuple[int, str]]
    seconds: float


def show_bag(bag: Bag, window: Window, progress: Callable[[int, int], None]) -> Shown:
    """Every message that a window has something to show of, in the order of its recording.

    A message without a stamp stands at the newest stamp before it, the first ones at the first
    stamp of all. BagError: nothing of the bag can be shown, or it is damaged.
    """
    reader = Reader()
    chosen = [topic for topic in bag.topics if topic.count and topic.kind in reader.kinds]
    skipped = tuple(topic for topic in bag.topics if topic.count and topic not in chosen)
    if not chosen:
        names = ", ".join(f"{t.name} ({t.kind})" for t in skipped[:8])
        raise BagError(f"{bag.path}: nothing of it can be shown; it has {names}")
    total = sum(topic.count for topic in chosen)
    early: list[tuple[BagMessage, Any]] = []
    wrong: Counter[str] = Counter()
    complaints: dict[str, str] = {}
    now: int | None = None
    first_ns = last_ns = 0
    done = 0

    def show(message: BagMessage, content: Any, stamp_ns: int) -> None:
        try:
            for fact in reader.read(message.topic, message.kind, content):
                window.show(fact, stamp_ns, message.stamp_ns)
        except ValueError as error:  # BadMessage among them
            wrong[message.topic] += 1
            complaints.setdefault(message.topic, str(error))

    for done, message in enumerate(bag.messages([t.name for t in chosen]), 1):
        content = bag.decode(message)
        stamp = stamp_of(content)
        first_ns = first_ns or message.stamp_ns
        last_ns = message.stamp_ns
        if stamp is None and now is None:
            early.append((message, content))
            continue
        if now is None and stamp is not None:
            for held in early:
                show(*held, stamp)
            early.clear()
        now = max(filter(None, (now, stamp)))
        show(message, content, stamp or now)
        progress(done, total)
    for held_message, held_content in early:  # a bag without any stamp
        show(held_message, held_content, held_message.stamp_ns)
    if sum(wrong.values()) == done:
        raise BagError(f"{bag.path}: nothing of it can be shown: {next(iter(complaints.values()))}")
    malformed = {topic: (wrong[topic], complaints[topic]) for topic in wrong}
    return Shown(done - sum(wrong.values()), skipped, malformed, (last_ns - first_ns) / 1e9)


def export(
    bag: Bag, path: Path, jpeg: int, progress: Callable[[int, int], None]
) -> tuple[Shown, dict[str, type[Fact]]]:
    """Write a bag as ``path``, whole or not at all; what was shown, and the entities.

    UserError: rerun-sdk is missing. BagError: see :func:`show_bag`.
    """
    from vla_ros.windows.rerun_log import RerunLog

    log = RerunLog(bag.path.name, jpeg)
    part = path.with_name(path.name + ".part")
    try:
        log.to_file(part)
        shown = show_bag(bag, log, progress)
        log.send_layout()
        log.close()
        part.replace(path)
    except BaseException:
        log.close()
        part.unlink(missing_ok=True)
        raise
    return shown, log.paths
