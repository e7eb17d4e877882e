#!/bin/sh
# Chunks that come late: d control steps after their observation, executed in every way there is, with
# S = max(d, 4) actions of each. In lock-step, so that the delay is exact on any machine; 28 tasks x EPISODES.
# One directory (run.json, episodes.jsonl, summary.json, report.html with the figure); stopped at any
# moment, the same command goes on.
#   benchmarks/late/run.sh                          # shipped:tabletop-flow, all executions, 5 episodes a task
#   NUDGE=0.04 OUT=benchmarks/late/nudged benchmarks/late/run.sh     # the cube is moved on the way
#   EPISODES=20 WORKERS=8 benchmarks/late/run.sh
#   CHECKPOINT=shipped:tabletop-oft EXECUTIONS=sync,async,ensemble DELAYS="0 2 4" \
#       OUT=/tmp/late TASKS=reach EPISODES=1 benchmarks/late/run.sh           # a quick look
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
checkpoint=${CHECKPOINT:-shipped:tabletop-flow}
play() {
    # shellcheck disable=SC2086  # TASKS is a list of words
    "$python" -m vla_ros eval --no-ros --checkpoint "$checkpoint" --seed 0 "$@" \
        --episodes "${EPISODES:-5}" ${NUDGE:+--nudge $NUDGE} ${TASKS:+--tasks $TASKS} \
        --workers "${WORKERS:-2}" --device "${DEVICE:-cpu}" \
        --out "${OUT:-benchmarks/late/${checkpoint#shipped:}}"
}
for d in ${DELAYS:-0 2 4 6 8}; do
    s=$((d > 4 ? d : 4))
    echo "== d = $d, S = $s"
    play --delay-frames "$d" --replan-interval "$s" --execution "${EXECUTIONS:-sync,async,ensemble,rtc,rtc_trained}" \
        --rtc-mode "${RTC_MODES:-guided,guided_vjp}"
done
