"""The engine's options: each defined once, with its type, range, choices, unit and text.

The policy node's parameters, the flags of `vla-ros bench`, `verify`, `eval`, ...,
config/policy.yaml and the tables of docs/reference/parameters.md are made from these fields; none
of them gives an option another name or another default. Torch is not imported here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from vla_ros.core.extensions import DECODING_OPTIONS, extensions, imported
from vla_ros.core.names import known_or_nearest
from vla_ros.engine.errors import InvalidOption
from vla_ros.engine.formats import parse_formats

AUTO = "auto"
DTYPES = ("float32", "bfloat16", "float16")
DECODINGS = (AUTO, "autoregressive", "actionflow", "speculative", "heterospec", "parallel")
#: Baselines of measurements; no choice of a robot's.
REFERENCES = ("generate", "naive_pipe", "vanilla_speculative")
#: Those that come with the lab, by entry points `vla_ros.decodings`.
LAB_DECODINGS = ("heterospec", *REFERENCES)
DRAFTERS = ("temporal", "temporal_linear", "temporal_tree", "head", "model")
ACCEPTANCES = ("exact", "sampling", "relaxed")
#: How a chunk continues the one that is executed; "" not at all.
RTC_MODES = ("", "guided", "guided_vjp", "trained")
#: Families of policies that an option may mean something to.
TOKENS, FLOW = "token policies", "flow policies"
#: pi0-FAST gives tokens, over LeRobot's cameras, state and files: it takes options of either
#: family.
FAST = "pi0_fast"
_OF_FAST = (
    *("camera_map", "state_normalization", "still_state", "tokenizer", "state_in_prompt"),
    *("decoding", "drafter", "draft_checkpoint", "adaptive_draft", "gamma", "acceptance"),
)

#: Options that anybody may set, whatever the policy.
_SPEED_ALONE = ("gemm",)
#: Values of "auto" where no statistics say otherwise.
_AS_BY_AUTO = {"center_crop": "never", "preprocessing": "default"}

Declared = TypeVar("Declared")
Value = str | int | float | bool | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Option:
    """Metadata of a field of :class:`EngineOptions`.

    ``low`` and ``high`` are inclusive; ``of`` names the family of policies that it is for, "" for
    all.
    """

    name: str
    default: Value
    text: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    unit: str = ""
    of: str = ""

    def check(self, value: object) -> None:
        """Raise InvalidOption, naming the option, for a value that cannot be."""
        kind = type(self.default)
        number = kind is float and isinstance(value, int)
        if isinstance(value, bool) != (kind is bool) or not (number or isinstance(value, kind)):
            raise InvalidOption(f"{self.name} is {value!r}: give {_KINDS[kind]}")
        if self.choices and value not in self.choices:
            raise InvalidOption(
                f"{self.name} is {value!r}: give one of {', '.join(filter(None, self.choices))}"
            )
        if self.low is None or self.high is None or not isinstance(value, (int, float)):
            return
        if not (math.isfinite(value) and self.low <= value <= self.high):
            raise InvalidOption(f"{self.name} is {value}: give {self.low:g} to {self.high:g}")

    def parse(self, text: str) -> Value:
        """The value of a text, as in ``name=value``. Raises InvalidOption."""
        kind = type(self.default)
        if kind is bool:
            if text.lower() not in ("true", "false"):
                raise InvalidOption(f"{self.name} is {text!r}: give true or false")
            return text.lower() == "true"
        if kind is tuple:
            return tuple(filter(None, (word.strip() for word in text.split(","))))
        try:
            return kind(text)
        except ValueError:
            raise InvalidOption(f"{self.name} is {text!r}: give {_KINDS[kind]}") from None


_KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    tuple: "a tuple of texts",
}


def _option(default: Any, text: str, **more: Any) -> Any:
    """A field of :class:`EngineOptions`; ``more`` as in :class:`Option`."""
    return field(default=default, metadata={"text": text, **more})


#: What the policy node and its like take unless they are told: whatever this machine has.
HERE = {"device": AUTO, "dtype": ""}


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of :func:`vla_ros.engine.load_engine`, validated once, here.

    0 and "" leave a choice to the checkpoint or to the engine, as each text says.
    """

    # The policy
    checkpoint: str = _option(
        "",
        "directory in OpenVLA's or LeRobot's layout, hub id (owner/name[@commit]), shipped:tabletop"
        " (the built-in simulation's), or random:small; with #FILE behind: checked with that list"
        " of SHA-256",
    )
    device: str = _option(
        "cpu", "torch device, such as cpu or cuda:0; auto: the first GPU, else the CPU"
    )
    dtype: str = _option(
        "float32",
        "number format of the weights; empty: bfloat16 on a GPU, unless vla-ros verify found this"
        " checkpoint wrong in it, and float32 on a CPU; auto: bfloat16 where the device multiplies"
        " it and vla-ros verify passed this checkpoint in it, else float32",
        choices=("", *DTYPES, AUTO),
    )
    weights: str = _option(
        "",
        "formats of the weights, such as int8, fp8 or decoder=int4,head=int8, with dtype bfloat16"
        " on a CPU or CUDA; empty: as they are stored",
    )
    unnorm_key: str = _option("", "whose action statistics scale the actions; empty: the only ones")
    embodiment: str = _option(
        "",
        "which of the robots that the checkpoint was trained for this is; empty: the only one",
        of=FLOW,
    )
    action_dim: int = _option(0, "numbers of an action; 0: any", low=0, high=4096)
    seed: int = _option(0, "seed of random weights and of sampling", low=0, high=2**31 - 1)
    num_threads: int = _option(
        0,
        "threads of the model on a CPU; 0: as many as torch takes, in the policy node half of the"
        " CPUs, so that the control tick and the cameras have the others",
        low=0,
        high=256,
    )
    # Images and prompt
    center_crop: str = _option(
        AUTO,
        "crop as for fine-tunes with crop augmentation; auto: as the checkpoint's statistics say",
        choices=(AUTO, "always", "never"),
        of=TOKENS,
    )
    preprocessing: str = _option(
        AUTO,
        "images as the checkpoint's processor wants them (default), or as in the published LIBERO"
        " evaluations (libero): mirrored, and of token policies through JPEG and Lanczos-3; auto:"
        " as the checkpoint says",
        choices=(AUTO, "default", "libero"),
    )
    image_steps: str = _option(
        AUTO,
        "where images are resized, to the same pixels; auto: on the GPU where there is one",
        choices=(AUTO, "cpu", "device"),
        of=TOKENS,
    )
    camera_roles: tuple[str, ...] = _option((), "the robot's cameras beside main and wrist")
    camera_map: str = _option(
        "",
        "which of the checkpoint's cameras is which of the robot's, such as 'top=main left=wrist"
        " right=none'; what is left out the names tell",
        of=FLOW,
    )
    state_normalization: str = _option(
        AUTO,
        "how the robot's state is scaled where the checkpoint has no statistics of it: identity, as"
        " it comes; auto: by the checkpoint's statistics, and refused without",
        choices=(AUTO, "identity"),
        of=FLOW,
    )
    still_state: str = _option(
        "scale",
        "a value of the state that never moved in the data: scale divides what the robot is off by"
        " 1e-8, as LeRobot does; clamp takes it to be where it was in the data",
        choices=("scale", "clamp"),
        of=FLOW,
    )
    tokenizer: str = _option(
        "", "folder of the language model's tokenizer.json; empty: the checkpoint's own", of=FLOW
    )
    state_in_prompt: str = _option(
        "",
        "of pi05 and pi0_fast: trained with the robot's own state in the prompt (robot: openpi,"
        " LeRobot 0.6) or with zeros behind it (padded: LeRobot 0.4); empty: as the folder says,"
        " and LeRobot's say nothing",
        choices=("", "robot", "padded"),
        of=FLOW,
    )
    # Decoding of tokens
    decoding: str = _option(
        AUTO,
        "how action tokens are decoded; auto: the fastest way that changes nothing for this"
        " checkpoint; heterospec comes with the lab",
        choices=DECODINGS,
        of=TOKENS,
    )
    drafter: str = _option(
        "temporal",
        "decoding speculative: who drafts; temporal: the previous action, temporal_linear: as the"
        " last two changed; heterospec: whose uncertainty, head or else temporal_tree",
        choices=DRAFTERS,
        of=TOKENS,
    )
    draft_checkpoint: str = _option(
        "",
        "of drafter model: its checkpoint; of head: its folder, empty: the one within the"
        " checkpoint",
        of=TOKENS,
    )
    adaptive_draft: bool = _option(True, "stop drafting where it does not pay", of=TOKENS)
    gamma: int = _option(0, "longest draft of a pass; 0: as many as pay", low=0, high=64,
                         unit="tokens", of=TOKENS)  # fmt: skip
    acceptance: str = _option(
        "exact",
        "how drafts are verified; relaxed changes what the policy says",
        choices=ACCEPTANCES,
        of=TOKENS,
    )
    relaxed_distance: int = _option(0, "acceptance relaxed: largest distance r", low=0, high=255,
                                    unit="bins", of=TOKENS)  # fmt: skip
    temperature: float = _option(1.0, "acceptance sampling: of the softmax", low=1e-3, high=100.0,
                                 of=TOKENS)  # fmt: skip
    fixed_shapes: bool = _option(
        False,
        "give every speculative pass the shape of the longest draft: the tokens of an episode"
        " then depend to the bit on nothing before it, where a close call in bf16 may",
        of=TOKENS,
    )
    # Decoding of chunks
    flow_steps: int = _option(0, "steps of the flow solver; 0: the checkpoint's", low=0, high=1000,
                              of=FLOW)  # fmt: skip
    rtc_mode: str = _option(
        "",
        "flow policies, how a chunk continues the one that is executed: guided, with the network's"
        " Jacobian taken as the identity; guided_vjp, with a backward pass a step; trained, by"
        " a network that was trained for it; empty: not at all",
        choices=RTC_MODES,
    )
    rtc_guidance_limit: float = _option(
        5.0, "flow policies, guided: beta, the largest gain of the guidance", low=0.0, high=1e6
    )
    # Kernels
    cuda_graphs: bool = _option(True, "capture the passes as CUDA graphs")
    attention: str = _option(
        AUTO,
        "the tail of a pack by a Triton kernel on CUDA (auto), or by torch everywhere",
        choices=(AUTO, "torch"),
        of=TOKENS,
    )
    gemm: str = _option(
        "torch",
        "on CUDA, products of captured passes by torch, whose bits are the same at every start; or"
        " timed before service and each done by the fastest of Triton's kernels and torch's (auto),"
        " in flow policies together with the norm, RoPE, activation or sum around it",
        choices=(AUTO, "torch"),
        of=TOKENS,
    )

    # Not an option: name=value of those that decodings of other distributions declare.
    extra: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for option in OPTIONS.values():
            if option.name != "decoding" or self.decoding not in REFERENCES:
                option.check(getattr(self, option.name))
        try:
            parse_formats(self.weights)
        except ValueError as error:
            raise InvalidOption(str(error)) from error
        self._check_auto()

    def changed(self) -> dict[str, Value]:
        """The options that are not their defaults."""
        return {f.name: getattr(self, f.name) for f in fields(self)
                if getattr(self, f.name) != f.default}  # fmt: skip

    # Which options go together, and with which checkpoint, is said here and nowhere else.

    def _check_auto(self) -> None:
        """Raise InvalidOption where ``auto``, which changes nothing, is to change something."""
        asked = {
            f"acceptance {self.acceptance!r}": self.acceptance != "exact",
            f"drafter {self.drafter!r}": self.drafter not in ("temporal", "temporal_linear"),
            "a draft_checkpoint": bool(self.draft_checkpoint),
        }
        for what, given in asked.items():
            if self.decoding == AUTO and given:
                raise InvalidOption(
                    f"decoding 'auto' changes nothing and needs no draft model: for {what} name the"
                    " decoding, such as speculative"
                )

    def check_family(self, family: str) -> None:
        """Raise InvalidOption where an option was chosen that means nothing to this family.

        What anybody may set is let through: "auto" may come with how it would draft.
        """
        unread = set(_SPEED_ALONE)
        if self.decoding in (AUTO, "autoregressive"):
            unread |= {"decoding", "adaptive_draft", "gamma"}
            unread |= {"drafter"} if self.drafter == "temporal_linear" else set()
        unread |= {name for name, value in _AS_BY_AUTO.items() if getattr(self, name) == value}
        if family == FAST:
            unread |= {*_OF_FAST}
        of = {name: OPTIONS[name].of if name in OPTIONS else TOKENS for name in self.changed()}
        wrong = [n for n, other in of.items() if other not in ("", family) and n not in unread]
        if wrong:
            mine = family.removesuffix(" policies")
            own = ", ".join(word.partition("=")[0] for word in self.extra)
            names = ", ".join(own if name == "extra" else name for name in wrong)
            raise InvalidOption(f"{names}: these options are for {of[wrong[0]]}, not for {mine}")

    def check_answer(self, answer: Answer) -> None:
        """Raise InvalidOption where the decoding does not fit a checkpoint's answers."""
        name = self.decoding
        if answer.fast:
            drafted = name == "speculative" and self.acceptance == "exact"
            if name != "autoregressive" and not (drafted and self.drafter in _FAST_DRAFTERS):
                raise InvalidOption(
                    f"decoding {name}, drafter {self.drafter}, acceptance {self.acceptance}: of"
                    " pi0_fast there are autoregressive, and speculative with drafter temporal,"
                    " temporal_tree or head and acceptance exact"
                )
            return
        if answer.parallel != (name == "parallel"):
            kind = "an OFT checkpoint" if answer.parallel else "no OFT checkpoint"
            raise InvalidOption(
                f"decoding {name!r} does not fit: this is {kind}, made for parallel"
            )
        if name in ("actionflow", "naive_pipe") and answer.chunk > 1:
            raise InvalidOption(
                f"{name} says a token a frame: a chunk of {answer.tokens} tokens would be"
                f" {answer.tokens} frames old; give autoregressive or speculative"
            )
        if name not in ("speculative", "heterospec"):
            return
        beside = {"relaxed", "temporal_linear", "temporal_tree", "heterospec"}
        if beside & {self.acceptance, self.drafter, name} and not answer.ordered:
            raise InvalidOption(
                "relaxed acceptance, linear drafts, temporal_tree and heterospec need bins that lie"
                " beside each other: this checkpoint's tokens are codes of a VQ-VAE"
            )
        if self.drafter == "head" and answer.tokens < 3:
            raise InvalidOption(
                f"actions of {answer.tokens} tokens leave a draft head nothing to guess"
            )


@dataclass(frozen=True, slots=True)
class Answer:
    """Tokens of a checkpoint's answer, of ``chunk`` actions; ``parallel``: all from one pass;
    ``ordered``: neighboring bins are neighboring values; ``fast``: pi0-FAST's, at most so many."""

    tokens: int
    chunk: int = 1
    parallel: bool = False
    ordered: bool = True
    fast: bool = False


_FAST_DRAFTERS = ("temporal", "temporal_tree", "head")


def options_of(declared: type) -> dict[str, Option]:
    """Options by name, in order, that a dataclass's fields declare by their metadata."""
    return {
        f.name: Option(f.name, f.default, **f.metadata)  # type: ignore[arg-type]
        for f in fields(declared)
        if f.metadata
    }


#: Every option by name, in the order of the fields.
OPTIONS = options_of(EngineOptions)


def extra_options() -> dict[str, Option]:
    """Options that decodings of other distributions declare: entry points `vla_ros.options`."""
    found: dict[str, Option] = {}
    for point in extensions(DECODING_OPTIONS).values():
        found |= options_of(imported(point))
    return found


def parse_extra(words: Iterable[str], declared: type[Declared]) -> Declared:
    """A decoding's own options out of ``EngineOptions.extra``."""
    known, pairs = options_of(declared), (word.partition("=") for word in words)
    return declared(**{name: known[name].parse(text) for name, _, text in pairs if name in known})


def parse_options(words: Mapping[str, str]) -> dict[str, Value]:
    """Options that were written as texts, by name; those of other distributions' decodings under
    ``extra``. Raises InvalidOption for an unknown one, or a value that cannot be."""
    unknown = sorted(set(words) - set(OPTIONS))
    known = {**(extra_options() if unknown else {}), **OPTIONS}
    if strange := sorted(set(unknown) - set(known)):
        raise InvalidOption(f"no engine option {strange[0]!r}{known_or_nearest(strange[0], known)}")
    found = {name: known[name].parse(text) for name, text in words.items()}
    for name, value in found.items():
        known[name].check(value)
    extra = tuple(f"{name}={found.pop(name)}" for name in unknown)
    return {**found, "extra": extra} if extra else found
