"""A node of vla_ros as it is, whose callbacks are counted: what was executed, not what was sent.

    python -m endurance.counted COUNTS.json policy --ros-args ...

Writes for every subscription its topic, its type, and how often its callback ran or raised.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if (ROOT / "vla_ros" / "msg").is_dir():
    sys.path.insert(0, str(ROOT))  # a checkout with messages; else the installed package

from rclpy.node import Node

EVERY_S = 0.1


class Counts:
    """By topic; written to a file again and again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.topics: dict[str, dict[str, Any]] = {}
        threading.Thread(target=self._write, daemon=True).start()

    def wrapped(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """``Node.create_subscription`` that counts."""

        @functools.wraps(make)
        def create(
            node: Node, kind: type, topic: str, callback: Any, *args: Any, **more: Any
        ) -> Any:
            entry: dict[str, Any] = {"type": f"{kind.__module__.split('.')[0]}/{kind.__name__}"}

            @functools.wraps(callback)
            def count(*said: Any) -> Any:
                try:
                    return callback(*said)
                except Exception as error:
                    found = f"{type(error).__name__}: {error}"
                    entry.setdefault("raised", {})
                    entry["raised"][found] = entry["raised"].get(found, 0) + 1
                    raise
                finally:
                    entry["executed"] = entry.get("executed", 0) + 1

            subscription = make(node, kind, topic, count, *args, **more)
            name = subscription.topic_name
            self.topics[f"{name} {len(self.topics)}"] = entry
            return subscription

        return create

    def _write(self) -> None:
        part = self._path.with_suffix(".part")
        while True:
            time.sleep(EVERY_S)
            part.write_text(json.dumps(dict(self.topics)))
            os.replace(part, self._path)


def main() -> int:
    """Run the node."""
    counts, executable = Path(sys.argv[1]), sys.argv[2]
    Node.create_subscription = Counts(counts).wrapped(Node.create_subscription)  # type: ignore
    sys.argv = [executable, *sys.argv[3:]]
    node = importlib.import_module(f"vla_ros.ros.nodes.{executable}.node")
    return int(node.main() or 0)


if __name__ == "__main__":
    sys.exit(main())
