"""What the page says for which messages."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support.shown import EVIL, obeyed
from vla_ros.core.assumption import Assumption
from vla_ros.core.clock import SECOND
from vla_ros.core.types import SHADOW, PolicyState
from vla_ros.runtime.monitor.seen import StatusSeen
from vla_ros.viz.viewer.model import (
    LOG_LINES,
    UNHEARD,
    LogLine,
    Page,
    SimulationState,
)
from vla_ros.viz.viewer.model import (
    STATE_COLORS as COLORS,
)


def status(state=PolicyState.RUNNING, **more):
    return StatusSeen(state=state, **{"reason": "running", **more})


@pytest.mark.parametrize("state", list(PolicyState))
def test_every_state_has_its_word_its_reason_and_a_color_of_its_own(state):
    page = Page()
    page.hear_status(status(state, reason="because"), "pick", SECOND)
    banner = page.banner(SECOND)
    assert (banner.word, banner.reason) == (state.name, "because")
    assert list(COLORS.values()).count(banner.color) == 1
    assert banner.color in page.banner_html(SECOND)


def test_the_shadow_is_in_the_word_and_how_far_the_policy_is_below_it():
    page = Page()
    reason = f"running; {SHADOW}nothing of ours moves the robot; differs by 0.1 rad (elbow)"
    page.hear_status(status(reason=reason), "", 0)
    assert page.banner(1).word == "SHADOW, RUNNING"
    assert "differs by 0.1 rad (elbow)" in page.banner(1).reason
    page.hear_status(status(reason="running"), "", 0)
    assert page.banner(1).word == "RUNNING"


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("stopped: call ~/resume, or give another", "press Resume, or give another"),
        ("it stays: call ~/release or ~/resume", "it stays: press Give back or Resume"),
        ("running", ""),
    ],
)
def test_the_page_names_its_buttons_and_not_the_services(reason, shown):
    page = Page()
    state = PolicyState.RUNNING if reason == "running" else PolicyState.WAITING
    page.hear_status(status(state, reason=reason), "pick", SECOND)
    assert page.banner(SECOND).reason == shown


def test_what_was_said_long_ago_is_not_shown_as_the_present():
    page = Page()
    assert page.banner(0).word == "NO POLICY"
    page.hear_status(status(), "pick", SECOND)
    assert page.banner(3 * SECOND).word == "RUNNING"
    late = page.banner(9 * SECOND)
    assert (late.word, late.color) == ("SILENT", UNHEARD)
    assert late.reason == "silent for 8 s; it was RUNNING"


def html_of(page: Page) -> str:
    words = page.banner_html(SECOND), page.facts_html(), page.assumptions_html(), page.log_html()
    return "".join(words)


def test_what_nothing_says_comes_first_among_what_is_taken_for_granted():
    page = Page()
    page.assumptions = (Assumption("rate", "20 Hz", "its data"), Assumption.taken("frame", "base"))
    shown = page.assumptions_html()
    assert shown.index("frame") < shown.index("rate")
    assert shown.count(">?<") == 1


@given(st.text(max_size=40))
@example(EVIL)
def test_nothing_that_is_heard_becomes_markup(text):
    page = Page()
    page.hear_status(status(reason=text, checkpoint=text, decoding=text), text, SECOND)
    page.world = SimulationState("tabletop", text, 1, 2, 3, "running")
    page.hear_log(LogLine(text, 20, text))
    page.assumptions = (Assumption(text, text, text), Assumption.taken(text, text))
    marked = html_of(page)
    plain = Page()
    plain.hear_status(status(reason="a", checkpoint="a", decoding="a"), "a", SECOND)
    plain.world = SimulationState("tabletop", "a", 1, 2, 3, "running")
    plain.hear_log(LogLine("a", 20, "a"))
    plain.assumptions = (Assumption("a", "a", "a"), Assumption.taken("a", "a"))
    usual = html_of(plain)
    assert obeyed(marked) == []
    # <i> stands where there is no instruction; checkpoints and decodings may be empty
    assert marked.replace("<i>", "").count("<") <= usual.count("<") + 1


def test_a_world_that_is_another_is_labelled():
    page = Page()
    page.note = "MuJoCo 3.8.1, not LIBERO's 3.3.2: <b>"
    assert page.facts() == ()  # no simulation was heard of
    page.world = SimulationState("libero", "libero_object/0", 1, 2, 3, "running")
    assert ("note", page.note) in page.facts()
    assert "&lt;b&gt;" in page.facts_html()
    page.note = ""
    assert "note" not in dict(page.facts())


def test_decoding_and_passes_an_action():
    page = Page()
    page.hear_status(status(policy="vla", decoding="speculative", device="cpu"), "", SECOND)
    page.hear_inference(2, 8)
    assert ("decoding", "speculative, 0.25 passes an action") in page.facts()
    page.hear_inference(0, 1)
    assert ("decoding", "speculative") in page.facts()
    page.hear_status(status(policy="scripted", decoding="none"), "", SECOND)
    assert ("decoding", "none: no model") in page.facts()


def test_both_rates_are_shown_where_they_differ():
    page = Page()
    page.hear_status(status(action_rate_hz=20.0, control_rate_hz=100.0), "", SECOND)
    assert ("rates", "actions 20 Hz, commands 100 Hz") in page.facts()
    page.hear_status(status(action_rate_hz=20.0, control_rate_hz=20.0), "", SECOND)
    assert "rates" not in dict(page.facts())


def test_suggestions_are_the_tasks_and_then_what_was_said():
    page = Page()
    page.hear_status(status(), "do as you like", SECOND)
    page.hear_status(status(), "pick the red cube", SECOND)
    assert page.suggestions(["pick the red cube", "push it"]) == (
        "pick the red cube",
        "push it",
        "do as you like",
    )


def test_the_log_shows_its_last_lines():
    page = Page()
    for i in range(LOG_LINES + 3):
        page.hear_log(LogLine("policy", 30 if i % 2 else 20, f"line {i} "))
    assert "line 2 " not in page.log_html()
    assert page.log_html().count("[policy]") == LOG_LINES
