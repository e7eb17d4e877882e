"""The chain of checkpoints as one page, one table of the terminal and one line of JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_ros.core.console import Table as Lines
from vla_ros.data.episodes.rows import Successes, pooled
from vla_ros.viz.pages import Bar, Cell, Table, TableLine, cell, render
from vla_ros_lab.loop.chain import Chain, ChainEvaluation, Generation
from vla_ros_lab.report.figures import INK, SIZE, panels, success_axis, svg, title
from vla_ros_lab.roofline.plots import COLORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FILE = "loop.html"
_DASH = "–"


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of a generation's records together; None where nothing was measured.

    ``minutes`` it ran; ``person``: a person's share of the time in which the robot was moved,
    ``takeovers`` a minute that it ran; ``age_ms`` median and 95 % over its bags, else over its
    evaluation."""

    judged: ChainEvaluation | None
    minutes: float
    person: float | None
    takeovers: float | None
    age_ms: tuple[float, float] | None
    robot: Successes | None


def figures(one: Generation) -> Figures:
    """Figures of its largest evaluation, and of all bags in which it ran."""
    policy_s, person_s = sum(r.policy_s for r in one.ran), sum(r.person_s for r in one.ran)
    moved, run_s = policy_s + person_s, sum(r.run_s for r in one.ran)
    age = pooled(r.age_ms for r in one.ran)
    judged = max(one.judged, key=lambda j: (j.outcome.episodes, str(j.folder)), default=None)
    ended = [r.episodes for r in one.ran if r.episodes is not None]
    return Figures(
        judged,
        run_s / 60,
        person_s / moved if moved else None,
        60 * sum(r.takeovers for r in one.ran) / run_s if run_s else None,
        (age.p50, age.p95) if age.count else judged.age_ms if judged else None,
        Successes(sum(o.successes for o in ended), sum(o.episodes for o in ended))
        if ended
        else None,
    )


def write_page(path: Path, chain: Chain, command: str) -> None:
    """The page; it loads nothing. OSError: it cannot be written."""
    found = [(one, figures(one)) for one in chain.generations]
    content = render(
        Path(__file__).parent,
        "loop.html.j2",
        title="Generations of a policy",
        lead=_lead(found),
        generations=_generations(found),
        trainings=_trainings(found),
        runs=_runs(chain.generations),
        picture=svg(drawn(found), "Success and takeovers by generation")
        if len(found) > 1
        else None,
        left_out=chain.left_out,
        command=command,
    )
    unfinished = path.with_suffix(".part")
    unfinished.write_text(content, encoding="utf-8", errors="replace")
    unfinished.replace(path)


def terminal_table(chain: Chain) -> Lines:
    """A line a generation."""
    heads = ("generation", "checkpoint", "solved", "%", "won:lost", "person %", "takeovers/min",
             "age p50", "p95 ms")  # fmt: skip
    rows = []
    for one in chain.generations:
        f = figures(one)
        solved = f.judged.outcome if f.judged else None
        rows.append((
            f"{one.number} {one.name}",
            one.sha256[:8],
            f"{solved.successes}/{solved.episodes}" if solved else _DASH,
            f"{100 * solved.rate:.1f}" if solved else _DASH,
            f"{f.judged.won}:{f.judged.lost}" if f.judged and f.judged.before else _DASH,
            _percent(f.person),
            _formatted(f.takeovers, ".1f"),
            *(f"{v:.0f}" for v in f.age_ms or ()),
            *([_DASH] * 2 if f.age_ms is None else []),
        ))  # fmt: skip
    return Lines(heads, rows, spare=("won:lost",))


def as_json(chain: Chain) -> dict[str, Any]:
    """The chain for a program."""
    return {"generations": list(map(_json, chain.generations)), "left_out": list(chain.left_out)}


def _json(one: Generation) -> dict[str, Any]:
    f, made = figures(one), one.training
    return {
        "generation": one.number,
        "name": one.name,
        "checkpoint_sha256": one.sha256,
        "parent_sha256": one.parent,
        "steps": made.steps if made else None,
        "frames": made.frames if made else None,
        "corrections": made.corrections if made else None,
        "data": list(made.data) if made else [],
        "successes": f.judged.outcome.successes if f.judged else None,
        "episodes": f.judged.outcome.episodes if f.judged else None,
        "won": f.judged.won if f.judged and f.judged.before else None,
        "lost": f.judged.lost if f.judged and f.judged.before else None,
        "minutes": f.minutes,
        "person_share": f.person,
        "takeovers_per_minute": f.takeovers,
        "age_ms": list(f.age_ms) if f.age_ms else None,
    }


# The tables and the image of the page.


_Found = Sequence[tuple[Generation, Figures]]


def _lead(found: _Found) -> str:
    judged = [f.judged.outcome for _, f in found if f.judged]
    if not judged:
        return "No generation has been evaluated yet."
    first, last = judged[0], judged[-1]
    many = f"{len(found)} generation{'s' if len(found) > 1 else ''}"
    return (
        f"{many}; solved {first.successes} of {first.episodes} at first and {last.successes} of"
        f" {last.episodes} now."
    )


def _generations(found: _Found) -> Table:
    heads = ("generation", "checkpoint", "solved", "against the one before", "person", "takeovers",
             "age p50", "p95", "on the robot")  # fmt: skip
    kinds = ("l", "l", "b", "l", "", "", "", "", "l")
    return Table(
        tuple(map(Cell, heads, kinds)),
        tuple(TableLine(tuple(_generation(one, f))) for one, f in found),
    )


def _generation(one: Generation, f: Figures) -> Iterable[Cell]:
    yield Cell(f"{one.number} {one.name}", "l")
    yield Cell(one.sha256[:12], "l")
    if f.judged:
        outcome = f.judged.outcome
        bar = Bar(outcome.rate, *outcome.interval)
        yield Cell(
            f"{100 * outcome.rate:.1f} %", "b", f"{outcome.successes}/{outcome.episodes}", bar
        )
    else:
        yield cell(_DASH, "l")
    compared = f.judged if f.judged and f.judged.before else None
    p = "" if compared is None or compared.p is None else f"p {compared.p:.2g}"
    yield Cell(f"{compared.won} won, {compared.lost} lost" if compared else _DASH, "l", p)
    yield cell(f"{_percent(f.person)} %" if f.person is not None else _DASH)
    yield cell(f"{f.takeovers:.1f}/min" if f.takeovers is not None else _DASH)
    for age in f.age_ms or (None, None):
        yield cell(f"{age:.0f} ms" if age is not None else _DASH)
    episodes = f"{f.robot.successes} of {f.robot.episodes} episodes" if f.robot else ""
    yield Cell(f"{f.minutes:.1f} min" if f.minutes else _DASH, "l", episodes)


def _trainings(found: _Found) -> Table:
    heads = ("generation", "from", "steps", "frames", "a person's", "held-out loss", "data")
    kinds = ("l", "l", "", "", "", "", "w")
    lines = [
        TableLine((
            Cell(f"{one.number} {one.name}", "l"),
            Cell(one.parent[:12] or _DASH, "l"),
            cell(f"{made.steps:,}"),
            cell(f"{made.frames:,}" if made.frames else _DASH),
            cell(f"{made.corrections:,}"),
            cell(_formatted(made.loss, ".3f")),
            Cell(", ".join(made.data), "w"),
        ))
        for one, _ in found
        if (made := one.training) is not None
    ]  # fmt: skip
    return Table(tuple(map(Cell, heads, kinds)), tuple(lines))


def _runs(generations: Sequence[Generation]) -> Table:
    heads = ("bag", "generation", "begun", "ran", "policy", "person", "takeovers", "age p50",
             "p95")  # fmt: skip
    kinds = ("l", "l", "l", "", "", "", "", "", "")
    lines = [
        TableLine((
            Cell(ran.folder.name, "l"),
            Cell(f"{one.number} {one.name}", "l"),
            Cell(ran.begun.replace("T", " ")[:16], "l"),
            cell(f"{ran.run_s:.0f} s"),
            cell(f"{ran.policy_s:.0f} s"),
            cell(f"{ran.person_s:.0f} s"),
            cell(ran.takeovers),
            cell(f"{ran.age_ms.p50:.0f} ms" if ran.age_ms.count else _DASH),
            cell(f"{ran.age_ms.p95:.0f} ms" if ran.age_ms.count else _DASH),
        ))
        for one in generations
        for ran in sorted(one.ran, key=lambda r: (r.begun, str(r.folder)))
    ]  # fmt: skip
    return Table(tuple(map(Cell, heads, kinds)), tuple(lines))


def save_picture(path: Path, chain: Chain) -> None:
    """The page's image by itself; the suffix of ``path`` says how. OSError, ValueError: it cannot
    be written so."""
    drawn([(one, figures(one)) for one in chain.generations]).savefig(path, dpi=110)


def drawn(found: _Found) -> Figure:
    """Success with its interval, and how much a person had to do, by generation."""
    figure, (left, right) = panels(2, height=3.0)
    success_axis(left)
    title(left, "Solved, with 95 % interval")
    judged = [(i, f.judged.outcome) for i, (_, f) in enumerate(found) if f.judged]
    at = [i for i, _ in judged]
    rates = [outcome.rate for _, outcome in judged]
    low = [outcome.rate - outcome.interval[0] for _, outcome in judged]
    high = [outcome.interval[1] - outcome.rate for _, outcome in judged]
    left.errorbar(at, rates, yerr=(low, high), fmt="-o", color=INK, lw=1.8, ms=5, capsize=3)
    title(right, "A person: share of the moving time, %")
    shares = [(i, 100 * f.person) for i, (_, f) in enumerate(found) if f.person is not None]
    right.bar([i for i, _ in shares], [share for _, share in shares], width=0.5, color=COLORS[0])
    for (i, share), (_, f) in zip(
        shares, [p for p in found if p[1].person is not None], strict=True
    ):
        right.annotate(f"{f.takeovers:.1f}/min", (i, share), (0, 3), textcoords="offset points",
                       ha="center", fontsize=SIZE, color=INK)  # fmt: skip
    for axes in (left, right):
        _generation_axis(axes, found)
    right.set_ylim(0, max([share for _, share in shares], default=1.0) * 1.2 or 1.0)
    return figure


def _generation_axis(axes: Axes, found: _Found) -> None:
    axes.set_xticks(range(len(found)), [f"{one.number}\n{one.name}" for one, _ in found])
    axes.set_xlim(-0.5, len(found) - 0.5)
    axes.set_xlabel("generation", fontsize=SIZE, color=INK)


def _percent(share: float | None) -> str:
    return _DASH if share is None else f"{100 * share:.1f}"


def _formatted(value: float | None, form: str) -> str:
    return _DASH if value is None else format(value, form)
