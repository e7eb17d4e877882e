#!/bin/sh
# Every study of the shipped policy in the built-in simulation, kept under benchmarks/tabletop/.
# Each is an evaluation of its own that can be stopped and goes on. On two quiet cores: an hour and a half.
#   benchmarks/tabletop.sh             all of them
#   benchmarks/tabletop.sh success     some: success flow decodings head relaxed realtime slower replan
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
workers=${WORKERS:-2}
study() {
    name=$1
    shift
    echo "== $name"
    "$python" -m vla_ros eval --seed 0 "$@" --out "benchmarks/tabletop/$name"
}
some="reach_green_cube push_blue_cube_left pick_yellow_cube stack_red_on_blue"
for what in ${*:-success flow decodings head relaxed realtime slower replan}; do
    case $what in
    success) # lock-step, every task, initial states that training never drew; drafted, the same
        study success --episodes 20 --no-ros --workers "$workers" \
            --decoding autoregressive,speculative ;;
    flow) # the flow policy, 4 actions of each chunk
        study flow --checkpoint shipped:tabletop-flow --replan-interval 4 --episodes 20 --no-ros \
            --workers "$workers" ;;
    decodings) # lossless decodings act identically; ActionFlow as autoregressive 6 frames later
        study decodings --episodes 1 --no-ros --workers "$workers" \
            --decoding autoregressive,speculative,vanilla_speculative,generate,actionflow \
            --drafter temporal,model ;;
    head) # the same with the trained draft head
        study head --episodes 1 --no-ros --workers "$workers" --decoding speculative --drafter head ;;
    relaxed) # acceptance per dimension and success, exact and for every r
        study relaxed --episodes 1 --no-ros --workers "$workers" --decoding speculative \
            --relaxed-distance 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15 ;;
    realtime) # the world does not wait: every decoding through the ROS graph
        study realtime --tasks $some --episodes 5 --mode realtime \
            --decoding autoregressive,speculative,actionflow ;;
    slower) # the same with late images
        study slower --tasks $some --episodes 3 --mode realtime --decoding speculative \
            --image-delay-ms 0,50,100,200,400 ;;
    replan) # a chunk policy that looks again after S of its 8 actions
        study replan --checkpoint shipped:tabletop-oft --decoding parallel --episodes 1 \
            --no-ros --workers "$workers" --replan-interval 1,2,4,8 ;;
    *) echo "no study $what" >&2; exit 2 ;;
    esac
done
