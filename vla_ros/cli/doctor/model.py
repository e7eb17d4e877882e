"""The checks of what a large model needs: torch, a GPU with room for it, the checkpoint itself."""

from __future__ import annotations

import importlib.util

from vla_ros.cli.doctor.checks import Check, fail, ok, try_python, warn


def torch() -> Check:
    if importlib.util.find_spec("torch") is None:
        return warn("torch", "missing: no VLA can run", "pip install '.[model]'")
    good, text = try_python("import torch, transformers, safetensors; print(torch.__version__)")
    if not good:
        return fail("torch", text, "pip install '.[model]'")
    return ok("torch", text)


def gpu() -> Check:
    """What a large model would run on."""
    if importlib.util.find_spec("torch") is None:
        return warn("GPU", "not looked for: torch is missing", "see the line of torch")
    code = (
        "import torch\n"
        "if torch.cuda.is_available():\n"
        "    p = torch.cuda.get_device_properties(0)\n"
        "    torch.ones(8, device='cuda').sum().item()\n"
        "    print(f'{p.name}, CUDA {torch.version.cuda}|{p.total_memory}')\n"
        "else:\n"
        "    print('none' if torch.version.cuda else 'none (this torch is the CPU build)')"
    )
    good, text = try_python(code)
    if not good:
        return fail("GPU", text, "compare the driver (nvidia-smi) with the CUDA of torch")
    if text.startswith("none"):
        return warn("GPU", text, f"fine for the small policy; {room_for(0)}")
    found, _, memory = text.rpartition("|")
    return ok("GPU", f"{found}, {int(memory) / 1e9:.1f} GB; {room_for(int(memory))}")


def room_for(gpu_bytes: float) -> str:
    """Whether OpenVLA-7B has room on a GPU, as `vla-ros roofline` counts; 0: there is none."""
    from vla_ros.analysis.memory import memory_of
    from vla_ros.analysis.models import OPENVLA
    from vla_ros.analysis.work import Precision

    need = memory_of(OPENVLA, Precision())
    said = f"OpenVLA-7B in bf16 needs {need.total / 1e9:.1f} GB"
    if not gpu_bytes:
        return f"{said} of a GPU"
    return f"{said} and {'fits' if need.fits(gpu_bytes) else 'does not fit'}"


def checkpoint(name: str) -> Check:
    """A model can be read: every tensor there, of the right shape, finite. One at a time.

    Of random weights nothing is read: they are made when the policy is loaded.
    """
    random = name.startswith("random:")
    good, text = try_python(_of_random(name) if random else _of_files(name), 600.0)
    if not good:
        return fail("checkpoint", text, "docs/reference/checkpoints.md says what can be read")
    return ok("checkpoint", text)


def _of_random(name: str) -> str:
    return (
        "import sys\n"
        "from vla_ros.analysis.memory import memory_of\n"
        "from vla_ros.analysis.model_files import load_model\n"
        "from vla_ros.analysis.work import Precision\n"
        "from vla_ros.engine.inspection import inspect_random\n"
        "try:\n"
        f"    kind, count = inspect_random({name!r})\n"
        f"    need = memory_of(load_model({name!r}), Precision()).total / 1e9\n"
        "except (OSError, ValueError) as error:\n"
        "    sys.exit(' '.join(str(error).split()))\n"
        f"print({name!r} + f', made when it is loaded: {{count / 1e6:.0f}} M parameters,'\n"
        "      f' {need:.1f} GB in bf16, {kind}')"
    )


def _of_files(name: str) -> str:
    return (
        "import sys\n"
        "from vla_ros.analysis.memory import memory_of\n"
        "from vla_ros.analysis.model_files import load_model\n"
        "from vla_ros.analysis.work import Precision\n"
        "from vla_ros.engine.inspection import inspect, sha256_on_disk\n"
        "try:\n"
        f"    c = inspect({name!r})\n"
        "except (OSError, ValueError) as error:\n"
        "    sys.exit(' '.join(str(error).split()))\n"
        "need = memory_of(load_model(str(c.directory)), Precision()).total / 1e9\n"
        "whose = 'unnorm_key ' + ', '.join(c.statistics) if c.statistics else c.kind\n"
        "print(f'{c.directory}: {c.parameters / 1e6:.0f} M parameters, {need:.1f} GB in bf16,'\n"
        "      f' {whose}, sha256 {sha256_on_disk(str(c.directory))[:12]}')"
    )
