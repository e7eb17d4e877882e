"""The report: whole with records of every shape, its numbers those of the records."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.evaluations import evaluation
from vla_ros.core import origin
from vla_ros.data.episodes.records import Job, Record, Setup, Spread, Variant
from vla_ros.data.episodes.rows import summary, wilson
from vla_ros.data.episodes.store import FrameStrip, strip_paths
from vla_ros.sim.episode import Mode
from vla_ros.sim.tasks import TASKS
from vla_ros_lab.report import page as report
from vla_ros_lab.report.figures import _bands, panels
from vla_ros_lab.report.page import kind_of

NAMES = [task.name for task in TASKS]
SOME = ("pick_red_cube", "push_red_cube_left", "stack_red_on_blue", "reach_red_cube")
PLAIN = Variant("autoregressive", decoding="autoregressive")
DRAFTS = Variant("speculative", decoding="speculative")
VOID = {"meta", "img", "br", "wbr", "rect", "path", "use", "image"}


class Page(HTMLParser):
    """Checks that tags match, and collects the text, by tag, and every address."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.rows: list[list[str]] = []
        self.addresses: list[str] = []
        self.feed(content)
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.addresses += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href")]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.addresses += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" in self.open:
            return
        self.text.append(data)
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())

    def row(self, *begin: str) -> list[str]:
        """The first row of a table that begins so."""
        return next(row for row in self.rows if tuple(row[: len(begin)]) == begin)


def written(
    directory: Path, setup: Setup, variants, records, command: str = "vla-ros eval"
) -> Page:
    path = report.write_report(directory, setup, variants, records, command)
    assert path == directory / "report.html"
    content = path.read_text(encoding="utf-8")
    page = Page(content)
    assert all(address.startswith(("#", "data:")) for address in page.addresses)
    assert not re.search(r"@import|url\((?!#)|<script|<link", content)
    return page


def test_one_variant_with_few_episodes(tmp_path):
    page = written(tmp_path, Setup(), [PLAIN], evaluation([PLAIN], SOME, 3))
    assert "12 episodes: 4 tasks" in page.words
    assert "lock-step" in page.words
    order = [row[0] for row in page.rows if row[0] in ("reach red cube", "push red cube left")]
    assert order == ["reach red cube", "push red cube left"]  # from easy to hard


def test_success_and_its_interval_are_those_of_the_records(tmp_path):
    records = evaluation([PLAIN, DRAFTS], NAMES, 2)
    page = written(tmp_path, Setup(), [PLAIN, DRAFTS], records)
    for variant in (PLAIN, DRAFTS):
        own = [record.success for record in records if record.job.variant == variant.label]
        low, high = wilson(sum(own), len(own))
        shown = f"{100 * sum(own) / len(own):.1f} [{100 * low:.1f}, {100 * high:.1f}]"
        assert any(row[:2] == [variant.label, shown] for row in page.rows)
    reach = [r.success for r in records if r.job.task.startswith("reach") and r.job.number < 56]
    assert page.row("reach")[1].strip() == f"{100 * np.mean(reach):.0f} % {sum(reach)}/{len(reach)}"


def test_before_the_first_episode(tmp_path):
    page = written(tmp_path, Setup(), [PLAIN], [])
    assert "No episode has been played yet" in page.words
    assert "autoregressive: decoding=autoregressive" in page.words


def test_an_unfinished_evaluation_says_so(tmp_path):
    records = evaluation([PLAIN, DRAFTS], SOME, 2)[:-3]
    assert (
        "not have the same episodes yet"
        in written(tmp_path, Setup(), [PLAIN, DRAFTS], records).words
    )


def test_acceptance_per_dimension_of_those_who_draft(tmp_path):
    def draft(variant: Variant, accepted: tuple[int, ...]) -> Record:
        job = Job(variant.label, "reach_red_cube", 0, 0)
        return Record(job, True, "success", drafted=(10,) * len(accepted), accepted=accepted)

    page = written(
        tmp_path,
        Setup(),
        [PLAIN, DRAFTS],
        [draft(DRAFTS, (1, 2, 3, 4, 5, 6, 7)), draft(PLAIN, ())],
    )
    dims = [f"{10 * i}.0" for i in range(1, 8)]
    assert [DRAFTS.label, *dims, "40.0", "70", "–"] in page.rows
    assert sum(row[0] == PLAIN.label and "70" in row for row in page.rows) == 0


def test_a_draft_of_three_tokens_leaves_the_other_dimensions_open(tmp_path):
    job = Job(DRAFTS.label, "reach_red_cube", 0, 0)
    record = Record(job, True, "success", drafted=(4, 4, 0), accepted=(4, 2, 0))
    page = written(tmp_path, Setup(), [DRAFTS], [record])
    assert [DRAFTS.label, "100.0", "50.0", *"–" * 5, "75.0", "8", "–"] in page.rows


def test_the_drafts_of_solved_episodes_stand_apart(tmp_path):
    def episode(state: int, success: bool, accepted: int) -> Record:
        job = Job(DRAFTS.label, "reach_red_cube", state, 0)
        return Record(
            job, success, "", frames=5, served=5, passes=20, drafted=(10,), accepted=(accepted,)
        )

    records = [episode(0, True, 2), episode(1, False, 10)]
    page = written(tmp_path, Setup(), [DRAFTS], records)
    assert [DRAFTS.label, "60.0", *"–" * 6, "60.0", "20", "4.00"] in page.rows
    name = f"{DRAFTS.label}, solved episodes"
    assert [name, "20.0", *"–" * 6, "20.0", "10", "4.00"] in page.rows
    found = summary(Setup(), [DRAFTS], records)
    assert (found["acceptance"], found["solved_only"]["acceptance"]) == ([0.6], [0.2])


def test_who_says_the_same_as_the_first_variant(tmp_path):
    records = evaluation([PLAIN, DRAFTS], SOME, 2)
    changed = [replace(records[-1], action_digest="another")]
    page = written(tmp_path, Setup(), [PLAIN, DRAFTS], records[:-1] + changed)
    assert any(row[0] == "speculative" and row[-1] == "7 of 8" for row in page.rows)
    live = written(tmp_path, Setup(mode=Mode.REALTIME), [PLAIN, DRAFTS], records)
    assert "same actions" not in live.words


def test_failures_are_counted_by_reason(tmp_path):
    def failed(task: str, reason: str, number: int) -> Record:
        return Record(Job(PLAIN.label, task, 0, 0, number=number), False, reason)

    records = [
        failed("reach_red_cube", "step limit", 0),
        failed("push_red_cube_left", "policy FAULT: no answer for 1.5 s", 1),
        failed("push_red_cube_right", "policy FAULT: <worker> died", 2),
    ]
    page = written(tmp_path, Setup(), [PLAIN], records)
    example = "policy FAULT: no answer for 1.5 s"
    assert page.row("policy FAULT") == ["policy FAULT", "2", "–", "2", example]
    assert page.row("all", "3")[:4] == ["all", "3", "1", "2"]


def test_nothing_failed(tmp_path):
    won = [replace(record, success=True) for record in evaluation([PLAIN], SOME, 1)]
    assert "Failures None." in written(tmp_path, Setup(), [PLAIN], won).words


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("step limit", "step limit"),
        ("policy FAULT: no answer: 3 s", "policy FAULT"),
        ("no progress for 12.5 s", "no progress for … s"),
        ("", "no reason"),
    ],
)
def test_the_kind_of_a_reason(reason, kind):
    assert kind_of(reason) == kind


def test_what_reproduces_it_is_there_word_for_word(tmp_path):
    command = "vla-ros eval --instruction \"push <b> & 'go'\" --seed 3"
    setup = Setup(seed=3, note="LIBERO physics, <placeholder> visuals", num_threads=2)
    page = written(tmp_path, setup, [PLAIN], evaluation([PLAIN], SOME, 1), command)
    assert command in page.text
    assert setup.note in page.text
    assert origin.code() in page.words
    assert origin.machine() in page.words


def test_strips_are_embedded_and_nothing_from_elsewhere(tmp_path):
    directory = tmp_path / "run"
    records = evaluation([PLAIN], SOME, 2)
    paths = strip_paths(record.job for record in records)
    for path in paths.values():
        strip = FrameStrip()
        strip.add(np.zeros((16, 16, 3), np.uint8), 0)
        strip.save(directory / path)
    records = [replace(r, strip=paths.get(r.job.key(), "")) for r in records]
    page = written(directory, Setup(), [PLAIN], records)
    assert sum(a.startswith("data:image/jpeg;base64,") for a in page.addresses) == len(SOME)

    (directory / records[0].strip).unlink()  # one is lost
    (tmp_path / "secret.jpg").write_bytes(b"no business of the report")
    records[1] = replace(records[1], strip="../secret.jpg")
    page = written(directory, Setup(), [PLAIN], records)
    assert sum(a.startswith("data:") for a in page.addresses) == len(SOME) - 2


def test_long_names_of_another_benchmark(tmp_path):
    tasks = [f"pick_up_the_{'very_' * i}black_bowl_and_place_it" for i in range(10)]
    setup = Setup(environment="libero", suite="libero_object", policy="scripted")
    page = written(tmp_path, setup, [PLAIN], evaluation([PLAIN], tasks, 3))
    assert "Evaluation on libero_object" in page.words
    shown = [row[0] for row in page.rows if row[0].startswith("pick up the")]
    assert shown == [task.replace("_", " ") for task in tasks]  # in the suite's order


def test_a_report_takes_the_place_of_an_earlier_one(tmp_path):
    written(tmp_path, Setup(), [PLAIN], [])
    page = written(tmp_path, Setup(), [PLAIN], evaluation([PLAIN], SOME, 1))
    assert "4 episodes" in page.words
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_many_variants_and_hundreds_of_records(tmp_path):
    variants = [PLAIN, DRAFTS]
    variants += [
        Variant(f"speculative,r={r}", "speculative", acceptance="relaxed", relaxed_distance=r)
        for r in range(1, 16)
    ]
    variants += [Variant(f"delay={d}", "autoregressive", delay_frames=d) for d in range(1, 7)]
    page = written(tmp_path, Setup(), variants, evaluation(variants, NAMES, 1))
    assert "644 episodes: 28 tasks, 23 variants" in page.words
    assert (tmp_path / "report.html").stat().st_size < 1_500_000


spreads = st.lists(st.floats(0, 1e4), max_size=4).map(Spread.of)
names = st.text(min_size=1, max_size=12).filter(lambda name: "/" not in name)


@st.composite
def any_records(draw):
    labels = draw(st.lists(names, min_size=1, max_size=3, unique=True))
    variants = [
        Variant(
            label,
            draw(st.sampled_from(["", "autoregressive", "speculative"])),
            acceptance=draw(st.sampled_from(["exact", "relaxed", "sampling"])),
            relaxed_distance=draw(st.integers(0, 2)),
            delay_frames=draw(st.integers(0, 2)),
            replan_interval=draw(st.integers(0, 2)),
        )
        for label in labels
    ]
    records = []
    for number in range(draw(st.integers(0, 6))):
        task = draw(st.sampled_from(["reach_red_cube", "stack_red_on_blue", "<&>", "$x_{"]))
        job = Job(draw(st.sampled_from(labels)), task, 0, 0, draw(st.text(max_size=5)), number)
        counts = draw(st.lists(st.integers(0, 9), max_size=8))
        records.append(
            Record(
                job,
                draw(st.booleans()),
                draw(st.text(max_size=20)),
                steps=draw(st.integers(0, 300)),
                wall_s=draw(st.floats(0, 100)),
                rate_hz=draw(st.floats(0, 100)),
                age_ms=draw(spreads),
                inference_ms=draw(spreads),
                drafted=tuple(counts),
                accepted=tuple(count // 2 for count in counts),
                passes=draw(st.integers(0, 9)),
                frames=draw(st.integers(0, 9)),
                action_digest=draw(st.sampled_from(["", "a", "b"])),
                strip=draw(st.sampled_from(["", "strips/none.jpg", "/etc/passwd", ".."])),
                error=draw(st.text(max_size=5)),
            )
        )
    return variants, records


SHARED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=40, deadline=None, suppress_health_check=SHARED)
@given(any_records())
def test_any_records_make_a_whole_page(tmp_path, made):
    variants, records = made
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "_figures", lambda rows: [])  # the next test draws
        page = written(tmp_path, Setup(), variants, records)
    assert bool(records) == ("No episode has been played" not in page.words)


@settings(max_examples=10, deadline=None, suppress_health_check=SHARED)
@given(any_records())
@pytest.mark.filterwarnings("ignore:Glyph")
def test_any_records_can_be_drawn(tmp_path, made):
    written(tmp_path, Setup(), *made)


def test_a_time_that_nobody_can_measure_is_drawn():
    _, (axes,) = panels(1)
    _bands(axes, [Spread.of([0.0, 1.0, 5e-324])])
    assert axes.get_xlim()[0] > 0


def test_the_commit_is_that_of_the_checkout_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(origin, "share", lambda: tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert origin.commit() == ""

    def git(*command: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *command], check=True, timeout=20)

    git("init", "-q")
    (tmp_path / "a").write_text("1")
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "b").write_text("1")
    git("add", ".")
    git("commit", "-qm", "one")
    assert re.fullmatch(r"[0-9a-f]{40}", origin.commit())
    (tmp_path / "benchmarks" / "b").write_text("2")
    assert re.fullmatch(r"[0-9a-f]{40}", origin.commit())
    (tmp_path / "a").write_text("2")
    assert origin.commit().endswith(", with uncommitted changes")
    inside = tmp_path / "venv"
    inside.mkdir()
    monkeypatch.setattr(origin, "share", lambda: inside)
    assert origin.commit() == ""
