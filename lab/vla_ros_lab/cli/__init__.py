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
    "calibrate": "fit the bins of uncertainty that decoding heterospec goes by",
    "coverage": "what drafts an evaluation's recorded tokens would allow",
    "loop": "generations of a checkpoint: data, success, takeovers, age",
}
