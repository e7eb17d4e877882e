"""JSON that people compare: what is short is one line."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from vla_ros.core.console import json_text

ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


@given(ANY, st.integers(10, 120))
def test_it_is_the_same_content(content, width):
    assert json.loads(json_text(content, width)) == content


def test_what_fits_is_one_line_and_the_rest_a_line_an_entry():
    content = {"solved": 3, "interval": [0.25, 0.5], "tasks": {"reach": [1] * 20, "push": {"n": 2}}}
    assert json_text(content, 40) == (
        "{\n"
        ' "solved": 3,\n'
        ' "interval": [0.25, 0.5],\n'
        ' "tasks": {\n'
        '  "reach": [\n' + ",\n".join(["   1"] * 20) + "\n  ],\n"
        '  "push": {"n": 2}\n'
        " }\n"
        "}"
    )
