#!/bin/sh
# Does the precision check predict success? Kept under benchmarks/precision/.
# 28 tasks x EPISODES of every precision, the same initial states, in lock-step without ROS.
# Resumable: episodes that were played are not played again. RUNS (not kept) holds what it plays.
#   benchmarks/precision.sh             all of it
#   benchmarks/precision.sh gate        some: checkpoints gate draws play summary
#   PRECISIONS="float32 bits3" EPISODES=5 benchmarks/precision.sh play summary
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
runs=${RUNS:-runs/precision}
episodes=${EPISODES:-20}
all="float32 bfloat16 int8 decoder4head8 int4 bits3 bits2 positions_half positions_one_low"
precisions=${PRECISIONS:-$all}
export OMP_NUM_THREADS=1
mkdir -p "$runs/checkpoints" "$runs/gate" "$runs/draws"

options() { # of a precision, for gate and eval alike
    case $1 in
    float32) echo "--checkpoint shipped:tabletop --dtype float32" ;;
    bfloat16) echo "--checkpoint shipped:tabletop --dtype bfloat16" ;;
    int8 | int4) echo "--checkpoint shipped:tabletop --dtype bfloat16 --weights vision=$1,decoder=$1,head=$1" ;;
    decoder4head8) echo "--checkpoint shipped:tabletop --dtype bfloat16 --weights decoder=int4,head=int8" ;;
    *) echo "--checkpoint $runs/checkpoints/$1 --dtype bfloat16" ;;
    esac
}

for what in ${*:-checkpoints gate draws play summary}; do
    case $what in
    checkpoints) # those with a fault in their weights: fewer bits than any format, patches misplaced
        for name in $precisions; do
            [ ! -e "$runs/checkpoints/$name" ] || continue
            case $name in
            bits*) "$python" benchmarks/precision/damage.py --bits "${name#bits}" "$runs/checkpoints/$name" ;;
            positions_*) "$python" benchmarks/precision/damage.py --positions "${name#positions_}" "$runs/checkpoints/$name" ;;
            esac
        done ;;
    gate) # its figures; status 1, failed, is an answer too
        for name in $precisions; do
            [ ! -s "$runs/gate/$name.json" ] && [ "${name%float32}" = "$name" ] || continue
            # shellcheck disable=SC2046
            "$python" -m vla_ros verify $(options "$name") --reference shipped:tabletop \
                --num-threads 1 --json >"$runs/gate/$name.txt" || [ $? -eq 1 ]
            grep '^{' "$runs/gate/$name.txt" >"$runs/gate/$name.json"
        done ;;
    draws) # the same verdict on other frames? All by the limits of int4
        for name in int4 bits3; do
            for seed in 1 2 3 4; do
                [ ! -s "$runs/draws/$name-$seed.json" ] || continue
                # shellcheck disable=SC2046
                "$python" -m vla_ros verify $(options "$name") --reference shipped:tabletop \
                    --max-error 0.16 --max-clear 0.01 --seed "$seed" --num-threads 1 --json \
                    >"$runs/draws/all.txt" || [ $? -eq 1 ]
                grep '^{' "$runs/draws/all.txt" >"$runs/draws/$name-$seed.json"
            done
        done ;;
    play)
        for name in $precisions; do
            # shellcheck disable=SC2046
            "$python" -m vla_ros eval --no-ros $(options "$name") --episodes "$episodes" --seed 0 \
                --out "$runs/$name"
        done ;;
    summary) # collects what is in RUNS, then the table and the picture
        "$python" benchmarks/precision/study.py --runs "$runs" ;;
    *) echo "no stage $what" >&2; exit 2 ;;
    esac
done
