#!/bin/sh
# Single actions that are executed late: the shipped policy, which is told its delay, and
# ActionFlow, which is late by itself. In lock-step; 28 tasks x EPISODES. Stopped at any moment,
# the same command goes on.
#   benchmarks/late/tokens.sh
#   EPISODES=20 WORKERS=8 benchmarks/late/tokens.sh
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
play() {
    "$python" -m vla_ros eval --no-ros --seed 0 --episodes "${EPISODES:-5}" --workers "${WORKERS:-2}" \
        --device "${DEVICE:-cpu}" "$@"
}
play --checkpoint shipped:tabletop --decoding autoregressive --delay-frames "${DELAYS:-0,1,2,4,6,8}" \
    --out benchmarks/late/tabletop
play --checkpoint shipped:tabletop --decoding actionflow --out benchmarks/late/actionflow
