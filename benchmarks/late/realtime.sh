#!/bin/sh
# Late actions in real time, through the graph: four tasks x EPISODES. Nothing waits; how late an action is
# depends on the machine, and images come later still by what LATER says (ms).
#   benchmarks/late/realtime.sh
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
tasks="reach_green_cube push_blue_cube_left pick_yellow_cube stack_red_on_blue"
play() {
    out=$1
    shift
    # shellcheck disable=SC2086  # tasks is a list of words
    "$python" -m vla_ros eval --mode realtime --seed 0 --tasks $tasks --episodes "${EPISODES:-5}" \
        --device "${DEVICE:-cpu}" --out "benchmarks/late/realtime/$out" "$@"
}
play flow --checkpoint shipped:tabletop-flow --execution sync,async,ensemble,rtc,rtc_trained --replan-interval 4 \
    --image-delay-ms "${LATER:-100}"
play tabletop --checkpoint shipped:tabletop --decoding autoregressive,speculative,actionflow
