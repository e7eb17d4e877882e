"""Does a test see each small change of the code? Mutants by mutmut, tried here, many a second.

mutmut starts pytest anew for each mutant, which takes longer than the tests. Here the tests are
collected once, and a fork of that process tries one mutant: of the tests that touch the changed
function the quickest first, until one fails. Results lie where mutmut keeps its own, so that
``mutmut results`` and ``mutmut show NAME`` tell of them, and a run that was cut off goes on.

    python benchmarks/endurance/mutants.py packed "*kv_cache*"

The first word is a room: a table of pyproject.toml ([tool.mutmut.rooms]) that names its files, its
tests, and those that are left out for what they cost. Run it in the repository's root with an
interpreter that has mutmut and sees the tested packages.
``--again``: those that no test saw, once more, after a change of the tests. ``--sample N``:
of those not tried, N at random (``--seed``). ``--examples``: of each hypothesis test at most.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import gc
import importlib.util
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import hypothesis
import mutmut.__main__ as tool
import pytest
import tomllib
from _pytest.runner import runtestprotocol
from mutmut.mutation import trampoline
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.trampoline import mangled_name_from_mutant_name
from mutmut.utils.file_utils import copy_also_copy_files, copy_src_dir, walk_mutatable_files

SEEN, MISSED, UNTOUCHED, TIMEOUT = 1, 0, 33, 36  # as mutmut has them
LOG = Path("tried.jsonl")  # in mutants/: which test saw which mutant

under_test = ""
touched: set[str] = set()
trampoline.get_mutant_under_test = lambda: under_test
trampoline.record_trampoline_hit = lambda name, caller=None: touched.add(name)


class Runner:
    """A pytest plugin: collects, then tries the mutants instead of running the tests."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.data: dict[str, SourceFileMutationData] = {}  # by mutant
        self.tests: dict[str, list[str]] = defaultdict(list)  # by function, the quickest first
        self.seconds: dict[str, float] = {}
        self.killers: dict[str, Counter[str]] = defaultdict(Counter)  # by function

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        for item in session.items:
            fewer_examples(item, self.options.examples)
        self.learn()
        self.remember()
        names = self.choose()
        counts: Counter[str] = Counter()
        began = time.monotonic()
        with LOG.open("a") as log:
            for number, name in enumerate(names, 1):
                function = mangled_name_from_mutant_name(name)
                tests, killers = self.tests[function], self.killers[function]
                tests = sorted(tests, key=lambda test: self.turn(test, killers))
                code, by = self.try_one(name, tests) if tests else (UNTOUCHED, "")
                killers[by] += 1
                data = self.data[name]
                data.exit_code_by_key[name] = code
                with contextlib.chdir(".."):
                    data.save()
                counts[
                    {SEEN: "seen", MISSED: "not seen", UNTOUCHED: "no test"}.get(code, "timeout")
                ] += 1
                log.write(json.dumps({"mutant": name, "code": code, "by": by}) + "\n")
                log.flush()
                if number % 50 == 0 or number == len(names):
                    rate = number / (time.monotonic() - began)
                    told(f"{number} of {len(names)}, {rate:.1f} a second: {dict(counts)}")
        missed = [n for n in names if self.data[n].exit_code_by_key[n] in (MISSED, UNTOUCHED)]
        told("\n".join(["no test saw (see mutmut show NAME):", *missed]) if missed else "all seen")
        return True

    def remember(self) -> None:
        """What earlier runs found of which tests see what."""
        for line in LOG.read_text().splitlines() if LOG.exists() else ():
            row = json.loads(line)
            self.killers[mangled_name_from_mutant_name(row["mutant"])][row["by"]] += 1

    def turn(self, test: str, killers: Counter[str]) -> tuple[bool, float]:
        """What saw another change of the function comes earlier, new tests last."""
        new = any(part in test for part in self.options.new)
        return new, self.seconds[test] / (1 + 20 * (killers[test] > 0))

    def learn(self) -> None:
        """Which tests touch which function, and how long they take.

        In this process, so that every fork after it has what tests import when they need it;
        in forks in rooms that stand ``apart``.
        """
        global under_test
        for number, nodeid in enumerate(self.items, 1):
            if self.options.apart:
                found = self.in_fork(self.watch, nodeid, "stats", 300.0) or {"failed": True}
            else:
                under_test = "stats"
                found = self.watch(nodeid)
            if found["failed"]:
                told(f"{nodeid} fails without any change: left out")
                continue
            self.seconds[nodeid] = found["seconds"]
            for function in found["touched"]:
                self.tests[function].append(nodeid)
            if number % 50 == 0:
                told(f"{number} of {len(self.items)} tests watched")
        under_test = ""
        if not self.tests:
            raise SystemExit("no test runs any function of this room: nothing can be said of it")
        gc.collect()
        gc.freeze()
        whole = sum(self.seconds.values())
        told(f"{len(self.items)} tests take {whole:.1f} s of CPU, of these")
        for nodeid in sorted(self.seconds, key=self.seconds.__getitem__)[-8:]:
            told(f"  {self.seconds[nodeid]:.1f} s {nodeid}")

    def watch(self, nodeid: str) -> dict[str, Any]:
        for _ in range(2):
            touched.clear()
            began = time.process_time()
            failed = self.fails(nodeid)
            seconds = time.process_time() - began
            if seconds < 0.5:  # else it may have been the imports
                break
        return {"seconds": seconds, "touched": sorted(touched), "failed": failed}

    def choose(self) -> list[str]:
        with contextlib.chdir(".."):
            for path in files_of(self.options.files):
                data = SourceFileMutationData(path=path)
                data.load()
                self.data |= dict.fromkeys(data.exit_code_by_key, data)
        patterns = self.options.only or ["*"]
        names = [n for n in self.data if any(fnmatch.fnmatch(n, p) for p in patterns)]
        done = {n: self.data[n].exit_code_by_key[n] for n in names}
        open_ = [n for n in names if done[n] is None]
        if self.options.sample is not None:
            open_ = random.Random(self.options.seed).sample(
                open_, min(self.options.sample, len(open_))
            )
        if self.options.again:
            open_ += [n for n in names if done[n] in (MISSED, UNTOUCHED)]
        return open_

    def try_one(self, name: str, tests: list[str]) -> tuple[int, str]:
        limit_s = 5.0 + 10.0 * sum(self.seconds[test] for test in tests)
        result = self.in_fork(lambda _: self.first_failure(tests), "", name, limit_s)
        if result is None:
            return TIMEOUT, ""
        return (SEEN, result) if result else (MISSED, "")

    def first_failure(self, tests: list[str]) -> str:
        for nodeid in tests:  # a loop without an end is ended soon: the kernel's own way
            signal.setitimer(signal.ITIMER_PROF, 2.0 + 6.0 * self.seconds[nodeid])
            if self.fails(nodeid):
                return nodeid
        return ""

    def fails(self, nodeid: str) -> bool:
        self.items[nodeid]._initrequest()  # it may have run before
        reports = runtestprotocol(self.items[nodeid], log=False, nextitem=None)
        return any(report.failed for report in reports)

    def in_fork(self, work: Any, argument: str, mutant: str, cpu_s: float) -> Any:
        """What ``work`` returns in a process of its own with that mutant; None: it took longer
        than ``cpu_s``, or waited for minutes, or died."""
        global under_test
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            used = resource.getrusage(resource.RUSAGE_SELF)
            limit = int(used.ru_utime + used.ru_stime + cpu_s) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            under_test = mutant
            code = 1
            with contextlib.suppress(BaseException):
                os.write(writing, json.dumps(work(argument)).encode())
                code = 0
            os._exit(code)
        os.close(writing)
        deadline = time.monotonic() + 60.0 + 30.0 * cpu_s

        def give_up(*_: object) -> None:
            os.kill(pid, signal.SIGKILL)

        signal.signal(signal.SIGALRM, give_up)
        signal.setitimer(signal.ITIMER_REAL, deadline - time.monotonic())
        with os.fdopen(reading, "rb") as pipe:
            said = pipe.read()
        os.waitpid(pid, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        # What a test of it forked may have said it again.
        return json.JSONDecoder().raw_decode(said.decode())[0] if said else None


def files_of(patterns: list[str]) -> list[Path]:
    """The files of a room."""
    every = walk_mutatable_files()
    return [path for path in every if any(fnmatch.fnmatch(str(path), p) for p in patterns)]


def borrow_messages(package: Path) -> None:
    """Messages that were built and installed, where the checkout has none: without them the tests
    would turn to the installed package, whose code no mutant is in."""
    spec = importlib.util.find_spec("vla_ros")
    if spec is None or spec.origin is None:
        raise SystemExit("vla_ros is not installed for this interpreter: run make mutants")
    installed = Path(spec.origin).parent
    for kind in ("msg", "srv", "action"):
        if not (package / kind).is_dir():
            shutil.copytree(installed / kind, package / kind)
    for library in installed.glob("*.so"):
        if not (package / library.name).exists():
            shutil.copy(library, package)


def fewer_examples(item: pytest.Item, most: int) -> None:
    """The same examples for every mutant, and not too many; the first failure will do."""
    test = getattr(item, "obj", None)
    if not hypothesis.is_hypothesis_test(test):
        return
    case = getattr(item, "cls", None)
    key = "_hypothesis_internal_use_settings"
    if case is not None and hasattr(case, "settings"):
        case.settings = quick(case.settings, most)
    elif hasattr(test, key):
        setattr(test, key, quick(getattr(test, key), most))


def quick(settings: hypothesis.settings, most: int) -> hypothesis.settings:
    return hypothesis.settings(
        settings,
        max_examples=min(settings.max_examples, most),
        derandomize=True,
        database=None,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
    )


def told(text: str) -> None:
    print(text, file=sys.__stderr__, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Does a test see each small change of the code?")
    rooms = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["mutmut"]["rooms"]
    parser.add_argument("room", choices=sorted(rooms))
    parser.add_argument("only", nargs="*", help='patterns of mutants: "*kv_cache*"')
    parser.add_argument("--again", action="store_true", help="those that no test saw, once more")
    parser.add_argument("--sample", type=int, help="so many of those not tried yet, at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--examples", type=int, default=20, help="of each hypothesis test at most")
    parser.add_argument(
        "--new", nargs="*", default=[], help="tests that come last: the log says what they add"
    )
    options = parser.parse_intermixed_args()
    room = rooms[options.room]
    options.files, options.apart = room["files"], room.get("apart", False)
    Path("mutants").mkdir(exist_ok=True)
    with contextlib.redirect_stdout(None):
        copy_src_dir()
        copy_also_copy_files()
        for path in files_of(options.files):
            result = tool.create_file_mutants(path)
            if result.error:
                raise result.error
    borrow_messages(Path("mutants", "vla_ros"))
    selection = [*room["tests"], *(f"--deselect={test}" for test in room.get("without", []))]
    os.chdir("mutants")
    sys.path[:0] = [os.getcwd(), os.path.join(os.getcwd(), "test")]
    arguments = ["--rootdir=.", "-q", "-s", "-p", "no:cacheprovider", *selection]
    return int(pytest.main(arguments, plugins=[Runner(options)]))


if __name__ == "__main__":
    sys.exit(main())
