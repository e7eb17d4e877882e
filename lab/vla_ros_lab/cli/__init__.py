"""The lab's verbs of `vla-ros`: one a file, each with `add_parser(subparsers)` and `run(args)`.

As in :mod:`vla_ros.cli`, importing a verb is cheap: ROS, torch and MuJoCo are imported by `run`.
"""

#: verb -> one line for `vla-ros --help`
VERBS = {
    "train": "train the small policy on simulated demonstrations",
    "collect": "record demonstrations of the scripted expert",
    "demonstrations": "make a LeRobotDataset of demonstrations, and demonstrations of one",
    "bench": "measure the inference engine, without ROS",
    "roofline": "what a model can reach on a device, calculated",
    "advise": "which ways of decoding meet a control rate and an age limit",
    "verify": "is a policy in a lower precision still the same policy?",
    "calibrate": "fit how sure a draft must be for decoding heterospec",
    "coverage": "how often drafts would have met the tokens of an evaluation",
    "loop": "generations of a checkpoint: data, success, takeovers, age",
}

#: title in `vla-ros --help` -> its verbs
GROUPS = {
    "learn": ("collect", "demonstrations", "train", "loop"),
    "measure": ("bench", "roofline", "advise", "verify", "calibrate", "coverage"),
}
