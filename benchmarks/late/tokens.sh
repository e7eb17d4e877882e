#!/bin/sh
# Single actions that are executed late (on fresh images: benchmarks/tabletop.sh success), and ActionFlow, which is
# late by itself. In lock-step; 28 tasks x EPISODES. Stopped at any moment, the same command goes on.
#   benchmarks/late/tokens.sh
#   EPISODES=20 WORKERS=8 benchmarks/late/tokens.sh
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
play() {
    "$python" -m vla_ros eval --no-ros --seed 0 --episodes "${EPISODES:-5}" --workers "${WORKERS:-2}" \
        --device "${DEVICE:-cpu}" "$@"
}
play --checkpoint shipped:tabletop --decoding autoregressive --delay-frames "${DELAYS:-2,6}" \
    --out benchmarks/late/tabletop
play --checkpoint shipped:tabletop --decoding actionflow --out benchmarks/late/actionflow
