"""A measurement in a process of its own, which reports how far it is."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from vla_ros.core.console import Report
from vla_ros.core.errors import UserError

O = TypeVar("O")  # noqa: E741
R = TypeVar("R")


def run_apart(run: Callable[[O, Report], R], options: O, report: Report) -> R:
    """``run(options, report)`` in a fresh process; function, options and result can be pickled.

    Raises the UserError that it raised, and RuntimeError with its line where it failed otherwise
    or was ended (out of memory, a fault in a kernel).
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(run, options, there), daemon=True)
    process.start()
    there.close()
    try:
        while True:
            kind, content = _next(here, process)
            if kind == "report":
                report(*content)
            elif kind == "result":
                found: R = content
                return found
            else:
                raise UserError(content) if kind == "refused" else RuntimeError(content)
    finally:
        here.close()
        process.join(10.0)
        if process.is_alive():
            process.kill()
            process.join()


def _next(here: Connection, process: Any) -> tuple[str, Any]:
    try:
        kind, content = here.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"the measuring process ended with status {process.exitcode}") from None
    return kind, content


def _serve(run: Callable[[O, Report], R], options: O, there: Connection) -> None:
    try:
        found = run(options, lambda text, done, total: there.send(("report", (text, done, total))))
    except UserError as error:
        there.send(("refused", str(error)))
    except Exception as error:
        lines = str(error).splitlines()
        there.send(("failed", f"{type(error).__name__}: {lines[0] if lines else ''}"))
    else:
        there.send(("result", found))
