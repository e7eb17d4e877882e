"""Parameter files with one mistake each, of people: what is written, and what the line must name.

Each is in the third line of its file, below ``policy:`` and ``ros__parameters:``, and every door
names that line.
"""

from __future__ import annotations

#: what is wrong -> (text below the section's head, words of the refusal)
PLANTED: dict[str, tuple[str, tuple[str, ...]]] = {
    "without its unit": ("max_age: 0.3", ("'max_age'", "'max_age_s'")),
    "without underscores": ("controlrate: 10.0", ("'control_rate_hz'",)),
    "in the singular": ("velocity_limit: [0.5]", ("'velocity_limits'",)),
    "letters exchanged": ("chekpoint: /models", ("'checkpoint'",)),
    "in upper case": ("Policy: zero", ("'policy'",)),
    "of another project": ("policy_device: cuda", ("'policy_device'",)),
    "a dash for an underscore": ("max-age-s: 0.3", ("'max_age_s'",)),
    "of launch": ("params_file: x.yaml", ("'params_file'",)),
    "one level too deep": ("limits: {max_age_s: 0.3}", ("'limits.max_age_s'",)),
    "a camera without its role": ("camera: {topic: x}", ("'camera.topic'",)),
    "a camera that is no role": ("cameras: {front: {topic: x}}", ("cameras.front.topic",)),
    "a field that cameras lack": ("cameras: {main: {topics: x}}", ("cameras.main.topic",)),
    "in milliseconds": ("max_age_ms: 300", ("'max_age_s'",)),
    "the older word": ("joint_topic: /joint_states", ("'joint_topic'",)),
    "one of two letters": ("outptus: [twist]", ("'outputs'",)),
    "text for a number": ("max_age_s: fast", ("max_age_s",)),
    "a number beyond its range": ("control_rate_hz: 20000.0", ("control_rate_hz", "500")),
    "a negative age": ("max_age_s: -1.0", ("max_age_s",)),
    "a word for a choice": ("mode: real_time", ("mode", "realtime")),
    "two names of one list": ("joint_names: {a: 1}", ("'joint_names.a'",)),
    "text for true": ('use_joint_states: "maybe"', ("use_joint_states",)),
    "a list for a text": ("policy: [zero]", ("policy",)),
    "no value": ("checkpoint:", ()),
    "not a number": ("max_age_s: .nan", ("max_age_s",)),
    "an empty list of numbers": ("bounds_low: []", ("bounds_low",)),
    "a text for a list": ("outputs: twist", ("outputs",)),
    "an option of the engine": ("engine_options: [gama=3]", ("engine_options", "'gamma'")),
    "a role twice": ("camera_roles: [left, left]", ("camera_roles",)),
    "a transport that is none": ("image_transport: theora", ("image_transport", "compressed")),
    "a size that is none": ("image_resize: [512]", ("image_resize",)),
}


def planted(name: str) -> str:
    """A parameter file with that mistake."""
    return f"policy:\n  ros__parameters:\n    {PLANTED[name][0]}\n"
