#!/bin/sh
# How many actions of a chunk to execute before the next (vla.cpp's Table 8): S = 1 to 16, chunks in time.
# In lock-step; 28 tasks x EPISODES. Stopped at any moment, the same command goes on.
#   benchmarks/late/replan.sh
set -eu
cd "$(dirname "$0")/../.."
"${PYTHON:-python3}" -m vla_ros eval --no-ros --checkpoint "${CHECKPOINT:-shipped:tabletop-flow}" --seed 0 \
    --execution async --replan-interval "${INTERVALS:-1,2,4,8,16}" --max-age 1.5 --episodes "${EPISODES:-5}" \
    --workers "${WORKERS:-2}" --device "${DEVICE:-cpu}" --out "${OUT:-benchmarks/late/replan}"
