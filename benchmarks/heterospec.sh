#!/bin/sh
# Whether draft trees that follow the uncertainty pay for the shipped policy, kept under
# benchmarks/heterospec/. Recording takes ten minutes on two cores, as for benchmarks/trees.sh.
#   benchmarks/heterospec.sh             all of it
#   benchmarks/heterospec.sh calibrate   some: calibrate times
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
workers=${WORKERS:-1}
tokens=${TOKENS:-runs/trees-tokens}
out=benchmarks/heterospec
mkdir -p "$out" "$(dirname "$tokens")"
for what in ${*:-calibrate times}; do
    case $what in
    calibrate) # fitted on every second episode, judged by the others; what the package comes with
        "$python" -m vla_ros eval --no-ros --decoding autoregressive --episodes 2 --seed 0 \
            --workers "$workers" --keep-tokens --out "$tokens"
        {
            echo "vla-ros eval --no-ros --decoding autoregressive --episodes 2 --seed 0 --keep-tokens --out DIR"
            echo "vla-ros calibrate --checkpoint shipped:tabletop --tokens DIR --output heterospec.json"
            echo
            "$python" -m vla_ros calibrate --checkpoint shipped:tabletop --tokens "$tokens" \
                --output vla_ros/shipped/tabletop/heterospec.json --json
        } >"$out/calibrate.all"
        grep -v '^{' "$out/calibrate.all" >"$out/calibrate.txt"
        grep '^{' "$out/calibrate.all" >"$out/calibrate.json"
        rm "$out/calibrate.all" ;;
    times) # beside its rivals; $tokens.npz is made by benchmarks/trees.sh times
        "$python" -m vla_ros bench --checkpoint shipped:tabletop --dtype float32 --warm-up 10 \
            --timed 40 --frames "$tokens.npz" --output "$out/cpu-float32" \
            --rows generate,autoregressive,speculative_temporal,speculative_entropy,speculative_tree,speculative_tree_full,heterospec ;;
    *) echo "no study $what" >&2; exit 2 ;;
    esac
done
