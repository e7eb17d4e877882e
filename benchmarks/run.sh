#!/bin/sh
# Measures everything that this machine can measure and keeps it under benchmarks/<name>/.
# Needs torch, transformers, safetensors, numpy and Pillow; no ROS. With a GPU: about 10 minutes.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
bench() {
    name=$1
    shift
    echo "== $name"
    "$python" -m vla_ros bench "$@" --output "benchmarks/$name" | sed '$d'
}
if "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    gpu=$("$python" -c 'import torch; print(torch.cuda.get_device_name().lower().replace(" ", "-"))')
    bench "$gpu-openvla-7b" --preset openvla-7b
    bench "$gpu-openvla-7b-varlen" --preset openvla-7b --attention varlen
    bench "$gpu-openvla-7b-no-graphs" --preset openvla-7b --no-cuda-graphs --timed 30
    bench "$gpu-openvla-7b-sweep" --preset openvla-7b --sweep --timed 30
    for model in smolvla pi0 pi05; do
        bench "$gpu-$model" --checkpoint "random:$model" --device cuda
    done
    bench "$gpu-openvla-7b-compile" --preset openvla-7b --compile-ablation --timed 30
else
    bench cpu-bf16 --preset cpu
    bench cpu-fp32 --preset cpu --dtype float32 --timed 30
    bench cpu-smolvla --checkpoint random:smolvla
fi
