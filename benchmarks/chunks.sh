#!/bin/sh
# Chunks decoded token by token: what drafts save where an answer is 56 tokens, kept under
# benchmarks/chunks/. Half an hour on two cores.
#   benchmarks/chunks.sh             all of it
#   benchmarks/chunks.sh coverage    some: closed_loop coverage head calibrate times
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
workers=${WORKERS:-2}
checkpoint=${CHECKPOINT:-shipped:tabletop-chunk}
runs=${RUNS:-runs/chunks}
out=benchmarks/chunks
mkdir -p "$out" "$runs"
play() {
    "$python" -m vla_ros eval --no-ros --checkpoint "$checkpoint" --seed 0 --episodes 5 \
        --replan-interval 4 --workers "$workers" "$@"
}
keep() { # the text and the figures of a command that ends with a line of JSON
    "$@" --json >"$runs/all"
    grep -v '^{' "$runs/all" >"$out/$what.txt"
    grep '^{' "$runs/all" >"$out/$what.json"
}
for what in ${*:-closed_loop coverage head calibrate times}; do
    case $what in
    closed_loop) # passes a chunk while the policy acts: none, chain, tree; the same success?
        play --decoding autoregressive,speculative --drafter temporal,temporal_tree --keep-tokens \
            --out "$runs/closed_loop"
        mkdir -p "$out/closed_loop"
        (cd "$runs/closed_loop" && cp run.json episodes.jsonl summary.json report.html "$OLDPWD/$out/closed_loop") ;;
    coverage) # what its tokens would allow
        keep "$python" -m vla_ros coverage "$runs/closed_loop" --variant autoregressive,S=4 ;;
    head) # the same episodes with the draft head, and with trees that follow its uncertainty
        play --decoding speculative,heterospec --drafter head --out "$runs/head"
        mkdir -p "$out/head"
        (cd "$runs/head" && cp run.json episodes.jsonl summary.json report.html "$OLDPWD/$out/head") ;;
    calibrate) # bins of the head's uncertainty; rollouts of: train --head --target C --out DIR --executed 4
        keep "$python" -m vla_ros calibrate --checkpoint "$checkpoint" --drafter head \
            --rollouts "${ROLLOUTS:-$runs/head-training/rollouts}" --output "$runs/heterospec.json" ;;
    times) # where the time goes, on frames of a task that is being solved
        "$python" benchmarks/frames.py pick_red_cube "$runs/frames.npz"
        for dtype in float32 bfloat16; do
            "$python" -m vla_ros bench --checkpoint "$checkpoint" --dtype "$dtype" --warm-up 6 \
                --timed 20 --frames "$runs/frames.npz" --output "$out/cpu-$dtype" \
                --rows generate,autoregressive,speculative_temporal,speculative_tree_full,speculative_head,speculative_head_paying,heterospec_head_full
        done ;;
    *) echo "no study $what" >&2; exit 2 ;;
    esac
done
