"""What a demonstration was told to do: a goal of the tabletop, or a sentence of somebody's own."""

from __future__ import annotations

from dataclasses import dataclass

from vla_ros.sim.goals import Goal, parse_instruction


@dataclass(frozen=True, slots=True)
class OwnSentence:
    """A sentence that nobody here understands: it is learned as it is worded, and nothing is
    known of what it speaks of. The fields but ``text`` are those of a Goal."""

    text: str
    family: str = "own"
    object: str = ""
    target: str = ""


Asked = Goal | OwnSentence


def asked(text: str, own: bool) -> Asked:
    """What ``text`` asks for. ``own``: it is of a set from elsewhere, whatever it says.

    sim.goals.UnknownInstruction: it is not, and the tabletop does not know it.
    """
    return OwnSentence(text) if own else parse_instruction(text)
