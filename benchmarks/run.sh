#!/bin/sh
# Measures everything that this machine can measure and keeps it under benchmarks/<its name>/:
# test/gpu, each pass beside the roofline, every decoding; table.md, report.json, plot.png.
# On a bare machine: python3 and the GPU's driver. At most 10 minutes (besides setting up .venv);
# called again it goes on where it ended. No ROS is used.
#   benchmarks/run.sh                          all of it
#   benchmarks/run.sh --seconds 1800           a longer visit
#   benchmarks/run.sh --only tests,passes      some
#   benchmarks/run.sh --smoke                  a try of everything on a CPU, with the smallest model
#   benchmarks/run.sh --small                  a try of everything on a GPU, with the smallest models
#   PYTHON=/opt/venv/bin/python benchmarks/run.sh   with an environment that is there: torch,
#       transformers, safetensors, tokenizers, numpy, Pillow; pytest, pytest-timeout and hypothesis for the tests
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-}
if [ -z "$python" ]; then
    python=.venv/bin/python
    if ! "$python" -c 'import torch, transformers, pytest' 2>/dev/null; then
        echo "== setting up .venv"
        python3 requirements/install.py  # the package too: without messages the tests look for it there
    fi
fi
exec "$python" benchmarks/run.py "$@"
