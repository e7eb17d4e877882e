"""Initial states are read without running anything that their files may ask for."""

import os
import pickle
import subprocess

import numpy as np
import pytest

from support.libero import STATES, pickled, states_file
from vla_ros.sim.env import SimError
from vla_ros.sim.libero.environment import load_array, load_states


class Runs:
    """A pickle that calls something when it is read."""

    def __init__(self, function, *words):
        self.call = (function, words)

    def __reduce__(self):
        return self.call


class Smuggled:
    """The same, hidden in the state of an array."""

    def __init__(self, inner):
        self.inner = inner

    def __reduce__(self):
        return (*np.array(STATES).__reduce__()[:2], (1, (3, 4), self.inner, False, b""))


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_comes_back(tmp_path, protocol, order):
    array = np.asarray(STATES, order=order)
    found = load_states(states_file(tmp_path / "x.pruned_init", array, protocol))
    assert found.dtype == np.float64 and found.flags.c_contiguous
    assert np.array_equal(found, STATES)


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_the_names_of_the_numpy_that_is_installed_are_known(protocol):
    assert np.array_equal(load_array(pickle.dumps(STATES, protocol)), STATES)


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x, STATES], Smuggled])
@pytest.mark.parametrize(
    "function", [os.system, eval, exec, __import__, subprocess.Popen, np.load, np.frombuffer]
)
def test_nothing_is_called(tmp_path, function, wrap):
    """A pickle that would make a file makes none, wherever in it the call is."""
    mark = tmp_path / "mark"
    bad = wrap(Runs(function, f"open({str(mark)!r}, 'w')" if function is eval else f"touch {mark}"))
    with pytest.raises(SimError, match=r"cannot read the initial states in .*it asks for "):
        load_states(states_file(tmp_path / "x.pruned_init", bad))
    assert not mark.exists()


def test_the_same_pickle_does_call_something_when_it_is_trusted(tmp_path):
    """Otherwise the test above would prove nothing."""
    mark = tmp_path / "mark"
    pickle.loads(pickle.dumps([Runs(os.system, f"touch {mark}")], 2))
    assert mark.exists()


@pytest.mark.parametrize(
    ("content", "needle"),
    [
        (STATES.astype(np.float32), "numbers of type 'f4'"),
        (STATES.astype(">f8"), "not little-endian"),
        (np.array([[object()]]), "it asks for builtins.object|numbers of type 'O8'"),
        (np.array([(1.0, 2)], [("a", "f8"), ("b", "i4")]), "numbers of type 'V12'"),
        (np.arange(3.0), "shape"),
        (np.array([[np.nan]]), "not finite"),
        ({"a": 1}, "a dict, expected an array"),
        ([STATES], "a list, expected an array"),
        (b"", "EOFError"),
        (pickled(STATES)[:-40], "truncated|EOFError|Error"),
        (b"\x80\x02cnumpy\nndarray\n.", "expected an array"),
        (b"\x80\x02cnumpy\nndarray\n)R.", "without contents"),
        (b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R.", "rot13"),
        (b"\x80\x02X\x01\x00\x00\x00aQ.", "refers to other files"),
    ],
)
def test_all_else_is_refused_in_one_line(tmp_path, content, needle):
    with pytest.raises(SimError, match=needle) as caught:
        load_states(states_file(tmp_path / "x.pruned_init", content))
    assert "\n" not in str(caught.value)


def test_a_length_that_lies_is_refused():
    with pytest.raises(pickle.UnpicklingError, match="length is not that of its contents"):
        load_array(pickled(STATES).replace(b"K\x03K\x04\x86", b"K\x7fK\x7f\x86"))


def test_missing_and_torn_files_are_one_line(tmp_path):
    with pytest.raises(SimError, match="cannot read the initial states"):
        load_states(tmp_path / "none")
    (tmp_path / "torn").write_bytes(b"PK\x03\x04")
    with pytest.raises(SimError, match="cannot read the initial states"):
        load_states(tmp_path / "torn")
