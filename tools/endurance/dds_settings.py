"""Fast DDS profiles that differ from the shipped one in what is measured, and in nothing else."""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.domain import leased_domain
from support.nodes import ros_environment
from vla_ros.core.resources import config_path
from vla_ros.ros.bringup.environment import PROFILES, find_leftovers, profile_name, remove

SPACE = "http://www.eprosima.com"
NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Discovery:
    """How a participant makes itself known; None leaves what the shipped profile says.

    ``initial``: announcements at the start, ``period_s`` apart; ``announcement_s``: between those
    that follow (:data:`NEVER`: none); ``lease_s``: a peer silent for so long is gone;
    ``response_s``, ``first_answer_s``: readers' delay of the answer to a heartbeat, and of the
    first one after a match (Fast DDS: 5 and 70 ms).
    """

    initial: int | None = None
    period_s: float | None = None
    announcement_s: float | None = None
    lease_s: float | None = None
    response_s: float | None = None
    first_answer_s: float | None = None


def changed(shipped: str, discovery: Discovery) -> str:
    """The text of ``shipped`` (an XML profile) with these settings."""
    ET.register_namespace("", SPACE)
    root = ET.fromstring(shipped)
    profiles = _under(root, "profiles")
    config = _under(_under(_under(profiles, "participant"), "rtps"), "builtin")
    config = _under(config, "discovery_config")
    # The order that the schema asks for.
    if discovery.lease_s is not None:
        found = config.find(_name("leaseDuration"))
        if found is None:
            found = ET.Element(_name("leaseDuration"))
            config.insert(0, found)
        _duration(found, discovery.lease_s)
    if discovery.announcement_s is not None:
        _duration(_under(config, "leaseAnnouncement"), discovery.announcement_s)
    initial = _under(config, "initialAnnouncements")
    if discovery.initial is not None:
        _under(initial, "count").text = str(discovery.initial)
    if discovery.period_s is not None:
        _duration(_under(initial, "period"), discovery.period_s)
    if discovery.response_s is not None or discovery.first_answer_s is not None:
        reader = ET.SubElement(
            profiles,
            _name("data_reader"),
            {"profile_name": "vla_ros_reader", "is_default_profile": "true"},
        )
        times = ET.SubElement(reader, _name("times"))
        if discovery.first_answer_s is not None:
            _duration(
                ET.SubElement(times, _name("initial_acknack_delay")), discovery.first_answer_s
            )
        if discovery.response_s is not None:
            _duration(ET.SubElement(times, _name("heartbeat_response_delay")), discovery.response_s)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True)


def _name(tag: str) -> str:
    return f"{{{SPACE}}}{tag}"


def _under(parent: ET.Element, tag: str) -> ET.Element:
    found = parent.find(_name(tag))
    return ET.SubElement(parent, _name(tag)) if found is None else found


def _duration(element: ET.Element, seconds: float) -> None:
    for child in list(element):
        element.remove(child)
    if seconds == NEVER:
        ET.SubElement(element, _name("sec")).text = "DURATION_INFINITY"
        return
    whole = int(seconds)
    ET.SubElement(element, _name("sec")).text = str(whole)
    ET.SubElement(element, _name("nanosec")).text = str(round((seconds - whole) * 1e9))


def _seconds(text: str) -> float:
    return NEVER if text == "never" else float(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A command's choice of profile, and of what differs from it."""
    add = parser.add_argument
    add("--profile", default="", help="a file in place of the shipped one; none: no profile")
    add("--initial", type=int, help="announcements at the start")
    add("--period", dest="period_s", type=_seconds, help="between these, s")
    add("--announcement", dest="announcement_s", type=_seconds, help="later ones, s or never")
    add("--lease", dest="lease_s", type=_seconds, help="of a participant, s or never")
    add("--response", dest="response_s", type=_seconds, help="to a heartbeat, s")
    add("--first-answer", dest="first_answer_s", type=_seconds, help="of a reader, s or never")


def described(args: argparse.Namespace) -> dict[str, object]:
    """What was chosen by :func:`add_arguments`, for the record."""
    chosen = {name: getattr(args, name) for name in Discovery.__slots__}
    return {"profile": args.profile or "shipped"} | {
        k: v for k, v in chosen.items() if v is not None
    }


@contextlib.contextmanager
def environment(args: argparse.Namespace) -> Iterator[dict[str, str]]:
    """For the processes of a measurement: a domain of their own, and the profile chosen."""
    remove(find_leftovers())
    with leased_domain() as domain, tempfile.TemporaryDirectory() as folder:
        env = ros_environment(domain)
        for name in PROFILES:
            env.pop(name, None)
        if args.profile != "none":
            shipped = Path(args.profile) if args.profile else config_path("fastdds_shm.xml")
            discovery = Discovery(**{name: getattr(args, name) for name in Discovery.__slots__})
            profile = Path(folder) / "profile.xml"
            profile.write_text(changed(shipped.read_text(), discovery))
            env[profile_name(os.environ)] = str(profile)
        yield env
    remove(find_leftovers())
