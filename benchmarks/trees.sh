#!/bin/sh
# Whether draft trees pay for the shipped policy, kept under benchmarks/trees/.
# Recording and counting take ten minutes on two cores.
#   benchmarks/trees.sh             all of it
#   benchmarks/trees.sh coverage    some: coverage closed_loop times
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
workers=${WORKERS:-1}
tokens=${TOKENS:-runs/trees-tokens}
out=benchmarks/trees
mkdir -p "$out" "$(dirname "$tokens")"
for what in ${*:-coverage closed_loop times}; do
    case $what in
    coverage) # what the tokens of the shipped policy would allow, nothing drafted yet
        "$python" -m vla_ros eval --no-ros --decoding autoregressive --episodes 2 --seed 0 \
            --workers "$workers" --keep-tokens --out "$tokens"
        {
            echo "vla-ros eval --no-ros --decoding autoregressive --episodes 2 --seed 0 --keep-tokens"
            echo "vla-ros coverage; $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | xargs), $(getconf _NPROCESSORS_ONLN) cores, fp32"
            echo
            "$python" -m vla_ros coverage "$tokens" --json
        } >"$out/coverage.all"
        grep -v '^{' "$out/coverage.all" >"$out/coverage.txt"
        grep '^{' "$out/coverage.all" >"$out/coverage.json"
        rm "$out/coverage.all" ;;
    closed_loop) # passes an action while the policy acts, by every drafter; the same success?
        "$python" -m vla_ros eval --no-ros --decoding autoregressive,speculative,heterospec \
            --drafter temporal,temporal_tree,head --episodes 5 --seed 1 --workers "$workers" \
            --out "$out/closed_loop" ;;
    times) # where the time goes, on frames of a task that is being solved
        "$python" benchmarks/frames.py pick_red_cube "$tokens.npz"
        for dtype in bfloat16 float32; do
            "$python" -m vla_ros bench --checkpoint shipped:tabletop --dtype "$dtype" --timed 60 \
                --frames "$tokens.npz" --output "$out/cpu-$dtype" \
                --rows autoregressive,speculative_temporal,speculative_tree,speculative_tree_full,speculative_head
        done ;;
    *) echo "no study $what" >&2; exit 2 ;;
    esac
done
