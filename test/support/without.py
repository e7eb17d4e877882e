"""Where torch is not installed, as in `make test-humble`, what needs it is skipped, not failed.

Where torch is installed these hooks change nothing: a torch that does not load fails its tests.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Generator

import pytest

HERE = importlib.util.find_spec("torch") is not None
MISSING = "No module named 'torch'"
REASON = "Skipped: torch is not installed"


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A file of tests that imports torch, or a folder whose conftest does."""
    report = yield
    if report.failed and not HERE and MISSING in str(report.longrepr):
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, REASON)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test whose subject imports torch once it is called."""
    report = yield
    error = call.excinfo.value if call.excinfo else None
    if not HERE and isinstance(error, ModuleNotFoundError) and error.name == "torch":
        report.outcome, report.longrepr = "skipped", (str(item.path), 0, REASON)
    return report
