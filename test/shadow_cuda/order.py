"""Who has waited for whom: streams and the host as vector clocks, and what each did to memory."""

from __future__ import annotations

from shadow_cuda.journal import Journal


class Actor:
    """The host, or a stream: how much it has done, and how much of others' work is done before
    whatever it does next."""

    def __init__(self, name: str) -> None:
        self.name, self.tick = name, 0
        self.seen: dict[Actor, int] = {}

    def clock(self) -> dict[Actor, int]:
        """All that is done before what others do after this."""
        return {**self.seen, self: self.tick}

    def wait(self, clock: dict[Actor, int]) -> None:
        """What was done by then is done before what this one does next."""
        for actor, tick in clock.items():
            if actor is not self and self.seen.get(actor, 0) < tick:
                self.seen[actor] = tick

    def knows(self, actor: Actor, tick: int) -> bool:
        return actor is self or self.seen.get(actor, 0) >= tick


class Uses:
    """The last write of a piece of memory, and the reads since."""

    def __init__(self) -> None:
        self.written: tuple[Actor, int] | None = None
        self.reads: dict[Actor, int] = {}

    def read(self, by: Actor, journal: Journal, what: str) -> None:
        if self.written is not None and not by.knows(*self.written):
            journal.fail(
                f"{what}: {by.name} reads what {self.written[0].name} writes, and has not waited"
            )
        self.reads[by] = by.tick

    def write(self, by: Actor, journal: Journal, what: str) -> None:
        if self.written is not None and not by.knows(*self.written):
            journal.fail(
                f"{what}: {by.name} overwrites what {self.written[0].name} writes, and has not"
                " waited"
            )
        for actor, tick in self.reads.items():
            if not by.knows(actor, tick):
                journal.fail(
                    f"{what}: {by.name} overwrites what {actor.name} reads, and has not waited"
                )
        self.written, self.reads = (by, by.tick), {}

    def unknown_to(self, actor: Actor) -> list[Actor]:
        """Those whose use is not done before what this one does next."""
        every = [*self.reads.items(), *([self.written] if self.written else [])]
        return [other for other, tick in every if not actor.knows(other, tick)]
