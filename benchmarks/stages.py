"""What run.py measures: stages of groups, each a command with a limit, in the order of worth."""

from __future__ import annotations

from dataclasses import dataclass

#: every decoding and drafter, one process each; the first is what the others are held against
ENGINES = (
    "generate",
    "autoregressive",
    "actionflow",
    "speculative_temporal",
    "speculative_tree",
    "speculative_head",
    "parallel",
    "speculative_model",
    "heterospec",
    "speculative_entropy",
    "vanilla_speculative",
    "naive_pipe",
    "speculative_hit",
    "speculative_miss",
)
WEIGHTS = ("int8", "int4", "fp8")
#: published sizes, and GB that one takes on a GPU in bf16, with what it needs to be made
FAMILIES = {
    "smolvla": 3, "pi0": 9, "pi05": 9, "evo1": 4, "groot-n1.7": 9, "groot-n1.6": 8,
    "groot-n1.5": 7, "bitvla": 10,
}  # fmt: skip
SEVEN_GB, WITH_DRAFT_GB, QUANTISING_GB = 19.0, 24.0, 28.0  # of OpenVLA-7B
CALIBRATION = "vla_ros/shipped/tabletop/heterospec.json"  # of any checkpoint with 7 tokens

PASSES, ROWS, OTHER = "passes", "rows", "other"
ENGINE, FORMAT, FAMILY = "engines", "weights", "families"


@dataclass(frozen=True)
class Stage:
    """A command that writes into the folder of its name; ``seconds`` at most, and not begun with
    less than ``least``. ``may_refuse``: exit status 2 with a line is a result of it too."""

    name: str
    command: tuple[str, ...]
    seconds: float
    least: float = 10.0
    group: str = OTHER
    memory_gb: float = 0.0  # of the GPU
    may_refuse: bool = False


def bench(
    name: str, seconds: float, *words: str, group: str = ROWS, memory_gb: float = 0.0,
    may_refuse: bool = False,
) -> Stage:  # fmt: skip
    """A run of `vla-ros bench`."""
    command = ("-m", "vla_ros", "bench", *words)
    return Stage(name, command, seconds, min(20.0, seconds), group, memory_gb, may_refuse)


def tests(seconds: float, *words: str) -> Stage:
    """test/gpu; what a stage prints is kept in its log."""
    return Stage("tests", ("-m", "pytest", "-q", "-ra", "gpu", *words), seconds, least=30.0)


def kernels(seconds: float) -> Stage:
    """Every Triton kernel compiled and tried: what later stages find in Triton's cache."""
    files = ("gpu/test_kernels.py", "gpu/test_flow_layers.py")
    command = ("-m", "pytest", "-q", "-ra", *files, "-m", "gpu")
    return Stage("kernels", command, seconds, least=60.0)


def engines(
    names: tuple[str, ...], seconds: float, *words: str, memory_gb: float = 0.0
) -> list[Stage]:
    """Each of these rows in a process of its own."""
    found = []
    for name in names:
        more = ("--calibration", CALIBRATION) if name == "heterospec" else ()
        with_draft = memory_gb and name in ("vanilla_speculative", "speculative_model")
        found.append(
            bench(
                f"engine-{name}", seconds, *words, "--rows", name, *more, group=ENGINE,
                memory_gb=WITH_DRAFT_GB if with_draft else memory_gb,
            )
        )  # fmt: skip
    return found


def weights(seconds: float, *words: str, memory_gb: float = 0.0) -> list[Stage]:
    """One engine, its weights in fewer bits; what the engine refuses is reported."""
    return [
        bench(
            f"weights-{form}", seconds, *words, "--rows", "autoregressive", "--weights", form,
            group=FORMAT, memory_gb=memory_gb, may_refuse=True,
        )
        for form in WEIGHTS
    ]  # fmt: skip


def families(names: dict[str, str], seconds: float, gpu: bool, *words: str) -> list[Stage]:
    """The policies with an action head: name -> checkpoint; the engine's own row."""
    device = ("--device", "cuda") if gpu else ()
    return [
        bench(
            f"family-{name}", seconds, "--checkpoint", checkpoint, *device, "--rows",
            "parallel" if name.startswith("bitvla") else "flow", *words, group=FAMILY,
            memory_gb=FAMILIES.get(name, 0) if gpu else 0.0, may_refuse=True,
        )
        for name, checkpoint in names.items()
    ]  # fmt: skip


def libero() -> Stage:
    """What an episode of LIBERO costs without a policy; refused where it is not installed."""
    words = ("benchmarks/libero_cost.py", "--workers", "1,2,4")
    return Stage("libero", words, 240, least=60.0, may_refuse=True)


def on_gpu(small: bool = False) -> list[Stage]:
    """What a short visit must bring home comes first. ``small``: the same stages of the smallest
    models, whose figures are worth nothing: that none of them stops for an error of its own."""
    seven, few = ("--preset", "openvla-7b"), ("--timed", "30")
    if small:
        seven = ("--checkpoint", "random:small", "--device", "cuda", "--dtype", "bfloat16")
        few = ("--timed", "2", "--warm-up", "1")
    ending = "-small" if small else ""
    main = ("--rows", "generate,autoregressive,actionflow,speculative_hit")
    mini = ("--checkpoint", "random:small" if small else "random:minivla", "--device", "cuda")
    chunk = "random:small-chunk" if small else "random:openvla-7b-chunk"
    published = {name: f"random:{name}{ending}" for name in FAMILIES}

    def passes(
        name: str, seconds: float, *words: str, memory_gb: float = SEVEN_GB,
        may_refuse: bool = False,
    ) -> Stage:  # fmt: skip
        more = (*words, "--passes", *few)
        return bench(name, seconds, *more, group=PASSES, memory_gb=memory_gb, may_refuse=may_refuse)

    def rows(name: str, seconds: float, *words: str) -> Stage:
        return bench(name, seconds, *seven, *words, memory_gb=SEVEN_GB)

    return [
        kernels(200),
        tests(120, "-m", "gpu"),
        passes("passes", 90, *seven),
        *(
            passes(f"passes-{name}-{how}", 60, "--checkpoint", published[name], "--device",
                   "cuda", "--gemm", how, memory_gb=FAMILIES[name])
            for name in ("pi0", "smolvla")
            for how in ("auto", "torch")
        ),
        *engines(ENGINES, 60, *seven, *few, memory_gb=SEVEN_GB),
        *weights(90, *seven, *few, memory_gb=QUANTISING_GB),
        *families(published, 60, True, *(few if small else ())),
        passes("passes-eager", 60, *seven, "--no-cuda-graphs"),
        passes("passes-torch", 60, *seven, "--attention", "torch"),
        passes("passes-gemm-auto", 60, *seven, "--gemm", "auto"),
        passes("passes-fp8", 90, *seven, "--weights", "fp8", memory_gb=QUANTISING_GB,
               may_refuse=True),  # by a GPU that does not multiply it
        passes("passes-minivla", 60, *mini, memory_gb=4),
        rows("openvla-7b-torch", 90, *few, *main, "--attention", "torch"),
        rows("openvla-7b-eager", 90, *few, *main, "--no-cuda-graphs"),
        rows("openvla-7b-32-tokens", 120, *main, "--tokens", "32",
             *(few if small else ("--timed", "64", "--warm-up", "32"))),
        *(
            bench(f"openvla-7b-56-tokens-{row}", 60, "--checkpoint", chunk,
                  "--device", "cuda", *few, "--rows", row, memory_gb=SEVEN_GB)
            for row in ("autoregressive", "speculative_head")
        ),
        libero(),
        rows("openvla-7b-compile", 600, *few, "--compile-ablation"),
    ]  # fmt: skip


def on_cpu() -> list[Stage]:
    """The same questions of a small model."""
    few = ("--preset", "cpu", "--timed", "20", "--warm-up", "5")
    small = {"smolvla-small": "random:smolvla-small", "pi0-small": "random:pi0-small"}
    return [
        tests(120, "-m", "not gpu"),
        bench("passes", 60, "--preset", "cpu", "--passes", "--timed", "30", group=PASSES),
        *engines(ENGINES, 60, *few),
        *weights(60, *few),
        *families(small, 60, False),
        bench("cpu-bf16", 240, "--preset", "cpu", "--timed", "30"),
        libero(),
    ]


def smoke() -> list[Stage]:
    """That all of this works, on the smallest model: no figure of it is worth anything."""
    small = ("--checkpoint", "random:small", "--dtype", "float32", "--timed", "2", "--warm-up", "1")
    some = ("generate", "autoregressive", "speculative_head", "heterospec")
    return [
        tests(120, "-m", "not gpu", "-k", "rope_and_kv_write"),
        bench("passes", 120, *small, "--passes", group=PASSES),
        bench("passes-pi0-auto", 120, "--checkpoint", "random:pi0-small", "--timed", "2",
              "--passes", "--gemm", "auto", group=PASSES),
        *engines(some, 120, *small),
        bench("weights-none", 120, *small, "--rows", "autoregressive", "--weights", "int9",
              group=FORMAT, may_refuse=True),
        *families({"smolvla-small": "random:smolvla-small"}, 120, False, "--timed", "2"),
        bench("no-such-row", 120, *small, "--rows", "magic"),
    ]  # fmt: skip
