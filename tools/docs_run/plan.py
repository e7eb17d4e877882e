"""Which documented commands are run, page by page, in the order in which they build on each other.

A command is given as its page has it; a test holds that it still does. `more` is appended to make
it small enough for minutes (the last of two equal options wins), `words` stand for its
placeholders, and `instead` is what is run of a `make` target once everything is installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

CARD = "| milliseconds "  # of the demo, when it has been played to its end
REPORT = "tokens that match"  # of a replay; a bag taken on a busy machine lacks frames
EVAL = "--tasks reach_red_cube --episodes 1"


@dataclass(frozen=True)
class Step:
    """One command. ``page`` "" is a step that only prepares. ``beside``: start it, go on with the
    next, and end it by Ctrl-C after that; ``seconds``: end it by Ctrl-C after so long. ``shows``:
    words of its output that say that it did its work, for one whose exit status is a judgement
    (a demo in real time that is not solved, since the machine is busy, has run all the same)."""

    page: str
    command: str
    more: str = ""
    words: Mapping[str, str] = field(default_factory=dict)
    instead: str = ""
    beside: bool = False
    seconds: float = 0.0
    shows: str = ""
    limit_s: float = 1800.0  # to compile a network takes minutes, many on a busy machine

    @property
    def line(self) -> str:
        """What is typed."""
        line = self.instead or self.command
        for placeholder, word in self.words.items():
            line = line.replace(placeholder, word)
        return f"{line} {self.more}".strip()


FIRST, RECORD = "docs/tutorial/first-run.md", "docs/how-to/record-and-replay.md"
PRECISION, EVALUATE = "docs/how-to/check-precision.md", "docs/how-to/evaluate-a-policy.md"
ROOFLINE, TRAIN = "docs/reference/roofline.md", "docs/how-to/train-a-policy.md"
DECODING, CHUNKS = "docs/explanation/decoding.md", "docs/explanation/chunks.md"
CONVERT = "docs/how-to/convert-a-checkpoint.md"

#: a chain stands in a folder of its own
CHAINS: dict[str, tuple[Step, ...]] = {
    "demo": (
        Step("README.md", "make demo", instead="vla-ros demo", shows=CARD),
        Step(
            FIRST,
            "make demo POLICY=scripted",
            instead="vla-ros demo --policy scripted",
            shows=CARD,
        ),
        Step(
            FIRST,
            "vla-ros demo --mode lockstep --task stack_green_on_red --gif FILE",
            words={"FILE": "stack.gif"},
        ),
        Step(
            FIRST,
            "make demo TASK=stack_green_on_red",
            instead="vla-ros demo --task stack_green_on_red --policy scripted",
            shows=CARD,
        ),
        Step("docs/README.md", "vla-ros doctor"),
        Step(
            CONVERT,
            "vla-ros doctor --checkpoint TARGET --full",
            words={"TARGET": "shipped:tabletop"},
        ),
    ),
    "up": (
        Step(
            FIRST,
            ".venv/bin/vla-ros up sim -p policy.policy=vla -p policy.checkpoint=shipped:tabletop",
            seconds=30,
        ),
    ),
    "record": (
        Step(
            "",
            "vla-ros up sim -p policy.policy=vla -p policy.checkpoint=shipped:tabletop",
            beside=True,
        ),
        Step(RECORD, "vla-ros record -o run1", seconds=25),
        Step(RECORD, "vla-ros replay run1", shows=REPORT),
        Step(RECORD, "vla-ros replay run1 --decoding speculative", shows=REPORT),
        Step(RECORD, "vla-ros replay run1 --rate 1 --device cuda:0", "--device cpu", shows=REPORT),
        Step(RECORD, "vla-ros replay run1 --html report.html --json", shows=REPORT),
        Step(CHUNKS, "vla-ros replay BAG --mode chunks", words={"BAG": "run1"}),
        Step(
            PRECISION,
            "vla-ros verify --checkpoint DIR --dtype bfloat16 --device cuda --bag run.mcap",
            "--device cpu --bag run1 --frames 4",
            words={"DIR": "shipped:tabletop"},
        ),
    ),
    "roofline": (
        Step(
            "",
            "vla-ros bench --checkpoint shipped:tabletop --timed 2 --warm-up 1"
            " --rows autoregressive,speculative_hit,actionflow --output .",
        ),
        Step(ROOFLINE, "vla-ros roofline"),
        Step(ROOFLINE, "vla-ros roofline --device orin-64 --dtype int4"),
        Step(ROOFLINE, "vla-ros roofline --model small --device this"),
        Step(ROOFLINE, "vla-ros roofline --compare bench.json"),
        Step(ROOFLINE, "vla-ros roofline --device h200 --plots out/"),
        Step(ROOFLINE, "vla-ros roofline --reproduce"),
        Step(ROOFLINE, "vla-ros roofline --list"),
        Step(
            ROOFLINE,
            "vla-ros advise --camera-hz 30 --control-hz 20 --max-age-ms 150 --device h200",
        ),
        Step(
            ROOFLINE,
            "vla-ros advise --camera-hz 30 --action-hz 20 --control-hz 100 --max-age-ms 200"
            " --bench bench.json",
        ),
        Step(DECODING, "vla-ros roofline --alpha 0.55 --device NAME", words={"NAME": "orin-64"}),
        Step("docs/lab/decoding-measured.md", "vla-ros roofline --device h200 --head"),
    ),
    "precision": (
        Step(
            PRECISION,
            "vla-ros verify --checkpoint shipped:tabletop --dtype bfloat16 --html verify.html",
            "--frames 4",
        ),
        Step(PRECISION, "vla-ros verify --weights int8", "--frames 4"),
        Step(
            PRECISION,
            "vla-ros eval --no-ros --dtype bfloat16 --weights decoder=int4,head=int8",
            EVAL,
        ),
        Step(
            PRECISION,
            "vla-ros quantize --checkpoint shipped:tabletop"
            " --weights vision=int8,decoder=int4,head=int8 --out few",
        ),
        Step(PRECISION, "vla-ros verify --checkpoint few", "--frames 4"),
        Step(PRECISION, "vla-ros eval --checkpoint few --dtype bfloat16 --no-ros", EVAL),
        Step(
            CONVERT,
            "vla-ros bench --checkpoint TARGET --timed 1 --warm-up 0 --rows autoregressive",
            words={"TARGET": "few"},
        ),
    ),
    "eval": (
        Step(
            EVALUATE,
            "vla-ros eval --policy scripted --no-ros --episodes 5",
            "--tasks reach_red_cube push_blue_cube_left",
        ),
        Step(
            EVALUATE,
            "vla-ros eval --episodes 20 --no-ros --workers 4 --out runs/eval",
            f"{EVAL} --workers 1",
        ),
        *(
            Step(EVALUATE, f"vla-ros eval --no-ros --workers 2 {options}", f"{EVAL} --workers 1")
            for options in (
                "--decoding autoregressive,speculative,actionflow",
                "--decoding speculative --relaxed-distance 1,2,3,5,8,15",
                "--delay-frames 0,1,2,4,8",
                "--delay-frames 0,1,2,4,8 --nudge 0.05",
                "--decoding speculative --drafter temporal,temporal_tree,head,model",
                "--decoding heterospec",
                "--decoding parallel --replan-interval 1,2,4,8",
            )
        ),
        Step(
            EVALUATE,
            "vla-ros eval --mode realtime --decoding parallel --replan-interval 1,2,4,8",
            f"{EVAL} --replan-interval 4",
        ),
        Step(
            CHUNKS,
            "vla-ros eval --no-ros --checkpoint ... --execution sync,async,rtc"
            " --delay-frames 0,2,4,6,8",
            f"{EVAL} --delay-frames 2",
            words={"...": "shipped:tabletop-flow"},
        ),
        Step(
            "",
            "vla-ros eval --no-ros --tasks pick_red_cube push_red_cube_left stack_green_on_red"
            " --episodes 5 --keep-tokens --out kept",  # coverage asks for 500 frames
        ),
        Step(EVALUATE, "vla-ros coverage DIR", words={"DIR": "kept"}),
    ),
    "train": (
        Step(TRAIN, "vla-ros collect --out data/tabletop --workers 4", "--demos 8 --workers 1"),
        Step(
            TRAIN,
            "vla-ros train --data data/tabletop --out runs/small --dagger 4 --workers 2 --compile",
            "--steps 4 --batch 4 --dagger 0",
        ),
        Step(
            TRAIN,
            "vla-ros train --data data/tabletop --out runs/draft --arch qwen2-draft"
            " --vision-from runs/small/policy",
            "--steps 2 --batch 4",
        ),
        Step(
            TRAIN,
            "vla-ros train --data data/tabletop runs/small/round-* --out runs/oft --arch small-oft"
            " --init-from runs/small/policy --steps 2500 --compile",
            "--steps 2 --batch 4",
            words={" runs/small/round-*": ""},  # no round was played
        ),
        Step(
            TRAIN,
            "vla-ros train --data data/tabletop --out runs/chunk --arch small-chunk"
            " --init-from runs/small/policy --steps 3000 --batch 16 --branches 3 --compile",
            "--steps 2 --batch 2",
        ),
        Step(
            TRAIN,
            "vla-ros train --data data/tabletop --out runs/late-begun --delays 8 --dagger 3"
            " --steps 3000 --init-from runs/small/policy --compile --workers 2",
            "--steps 2 --batch 2 --dagger 0",
        ),
        Step(
            TRAIN,
            "vla-ros collect --out data/box --interpolation box --workers 4",
            "--demos 4 --workers 1",
        ),
        Step(
            TRAIN,
            "vla-ros train --data data/box --out runs/flow --arch small-flow --steps 3500"
            " --batch 16 --branches 3 --shift 0 --init-from runs/oft/policy",
            "--steps 2 --batch 2",
        ),
        Step(
            TRAIN,
            "vla-ros eval --no-ros --checkpoint runs/flow/policy --replan-interval 4",
            f"{EVAL} --max-steps 20",
        ),
    ),
}
