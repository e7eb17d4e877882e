"""Policies of SROS 2 as sros2 reads them: schema 0.2.0, and the DDS topics that they come to.

Restated from sros2's policy/schemas/policy.xsd and policy/templates/dds/permissions.xsl, so that
policies can be held to a graph where sros2 is not installed. Where it is, a test compares.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

VERSION = "0.2.0"
#: list → what stands in it, and what may be done with it
LISTS = {
    "topics": ("topic", {"publish", "subscribe"}),
    "services": ("service", {"request", "reply"}),
    "actions": ("action", {"call", "execute"}),
}
#: the services and topics that an action is made of
ACTION_SERVICES = ("send_goal", "cancel_goal", "get_result")
ACTION_TOPICS = ("feedback", "status")


@dataclass(frozen=True)
class Endpoint:
    """What a node opens: ``how`` is one of the six words of :data:`LISTS`, ``name`` absolute."""

    how: str
    name: str

    def writes(self) -> set[str]:
        """The DDS topics that it writes."""
        return self._topics({"publish", "request", "call"}, {"reply", "execute"})

    def reads(self) -> set[str]:
        """The DDS topics that it reads."""
        return self._topics({"reply", "execute"}, {"request", "call"}, topics="subscribe")

    def _topics(self, asks: set[str], answers: set[str], topics: str = "publish") -> set[str]:
        parts = f"{self.name}/_action/"
        if self.how in ("publish", "subscribe"):
            return {f"rt{self.name}"} if self.how == topics else set()
        whole = self.how in ("call", "execute")
        services = [parts + s for s in ACTION_SERVICES] if whole else [self.name]
        out = set()
        if self.how in asks:
            out = {f"rq{s}Request" for s in services}
        elif self.how in answers:
            out = {f"rr{s}Reply" for s in services}
        says = self.how == ("execute" if topics == "publish" else "call")
        return out | ({f"rt{parts}{t}" for t in ACTION_TOPICS} if whole and says else set())


@dataclass(frozen=True)
class Enclave:
    """One enclave's permissions, all of them ALLOW."""

    path: str
    node: str
    allowed: tuple[Endpoint, ...]

    @property
    def writes(self) -> frozenset[str]:
        """Expressions of the DDS topics that it may write."""
        return frozenset(t for e in self.allowed for t in e.writes())

    @property
    def reads(self) -> frozenset[str]:
        return frozenset(t for e in self.allowed for t in e.reads())

    def lacks(self, endpoint: Endpoint) -> set[str]:
        """The DDS topics of ``endpoint`` that are denied to it."""
        denied = {t for t in endpoint.writes() if not matches(t, self.writes)}
        return denied | {t for t in endpoint.reads() if not matches(t, self.reads)}

    def may_write(self, topic: str) -> bool:
        return matches(topic, self.writes)


def matches(topic: str, expressions: Iterable[str]) -> bool:
    """As DDS Security does it: by fnmatch, where * goes over / too."""
    return any(fnmatch.fnmatchcase(topic, one) for one in expressions)


def read_policy(path: Path) -> Enclave:
    """The one enclave of a file. ValueError: the schema does not allow it, with the reason."""
    root = ElementTree.parse(path).getroot()
    _only(root, "policy", {"version"}, {"enclaves"}, most=1)
    if root.get("version") != VERSION:
        raise ValueError(f"policy version {root.get('version')!r}, not {VERSION}")
    enclave = _only(root[0], "enclaves", set(), {"enclave"}, most=1)[0]
    _only(enclave, "enclave", {"path"}, {"profiles"}, most=1)
    profile = _only(enclave[0], "profiles", set(), {"profile"}, most=1)[0]
    _only(profile, "profile", {"ns", "node"}, set(LISTS))
    ns, node = profile.attrib["ns"], profile.attrib["node"]
    allowed = [endpoint for part in profile for endpoint in _endpoints(part, ns, node)]
    return Enclave(enclave.attrib["path"], node, tuple(allowed))


def _only(
    element: ElementTree.Element, tag: str, wanted: set[str], inside: set[str], most: int = 10**6
) -> ElementTree.Element:
    tags = [child.tag for child in element]
    if element.tag != tag or set(element.attrib) != wanted or not set(tags) <= inside:
        raise ValueError(f"<{element.tag}> {sorted(element.attrib)} with {sorted(set(tags))}")
    if not 1 <= len(tags) <= most:
        raise ValueError(f"<{tag}> has {len(tags)} children")
    return element


def _endpoints(part: ElementTree.Element, ns: str, node: str) -> list[Endpoint]:
    one, words = LISTS[part.tag]
    if not part.attrib or not set(part.attrib) <= words or len(part) == 0:
        raise ValueError(f"<{part.tag}> {part.attrib}")
    if wrong := set(part.attrib.values()) - {"ALLOW"}:
        raise ValueError(f"<{part.tag}>: {wrong}: these policies only allow; the rest is denied")
    if any(child.tag != one or len(child) or not (child.text or "").strip() for child in part):
        raise ValueError(f"<{part.tag}> holds more than names of {part.tag}")
    names = [absolute((child.text or "").strip(), ns, node) for child in part]
    return [Endpoint(how, name) for how in part.attrib for name in names]


def absolute(name: str, ns: str = "/", node: str = "") -> str:
    """A name as ROS resolves it."""
    if name.startswith("/"):
        return name
    base = ns if ns.endswith("/") else f"{ns}/"
    return f"{base}{node}{name[1:]}" if name.startswith("~") else f"{base}{name}"
