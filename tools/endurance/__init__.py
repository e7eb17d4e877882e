"""Runs long and hostile enough to be believed: a graph in real time, troubles drawn from a seed,
and a judge who hears nothing but the topics.

    make soak MINUTES=60          # or: cd test && python -m endurance.soak --minutes 60

`troubles` says what may happen and when, `soak` does it to a running graph (`stage`,
`rough_camera`), `judge` holds what was heard to the rules, `growth` asks whether a process grows,
`page` shows it all.
"""
