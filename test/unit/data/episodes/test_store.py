"""An evaluation's directory survives any end and never mixes two evaluations."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_ros.data.episodes.records import Job, Record, Setup, Variant, to_json
from vla_ros.data.episodes.store import Store, StoreError, read_records, read_run

SETUP = Setup(checkpoint="c", checkpoint_sha256="abc")
ONE, TWO = Variant("one", "autoregressive"), Variant("two", "actionflow")


def record(number: int, variant: str = "one") -> Record:
    return Record(Job(variant, "pick_red_cube", number, 0), number % 2 == 0, "step limit", 7)


def fill(directory, numbers, setup=SETUP, variants=(ONE,)):
    with Store(directory, setup, variants) as store:
        for number in numbers:
            store.add(record(number))
        return list(store.records)


@settings(deadline=None, max_examples=60)
@given(cut=st.integers(0, 3000), count=st.integers(0, 5))
def test_whatever_is_left_of_the_file_it_goes_on(tmp_path_factory, cut, count):
    directory = tmp_path_factory.mktemp("run")
    fill(directory, range(count))
    path = directory / "episodes.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])  # as after a power cut
    kept = whole[:cut].count(b"\n")
    assert read_records(directory) == [record(n) for n in range(kept)]
    with Store(directory, SETUP, (ONE,)) as store:
        assert [r.job.initial_state for r in store.records] == list(range(kept))
        assert store.done == {record(n).job.key() for n in range(kept)}
        for number in range(kept, count):
            store.add(record(number))
    assert path.read_bytes() == whole


def test_a_record_is_in_the_file_when_add_returns(tmp_path):
    with Store(tmp_path, SETUP, (ONE,)) as store:
        store.add(record(0))
        assert read_records(tmp_path) == [record(0)]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 4}, r"with seed 0 \(now 4\)"),
        ({"checkpoint_sha256": "xyz"}, "checkpoint_sha256 'abc'"),
        ({"route": "direct"}, "route 'ros'"),
    ],
)
def test_another_setup_is_refused_in_one_line(tmp_path, changes, said):
    fill(tmp_path, range(2))
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(StoreError, match=said) as error:
        fill(tmp_path, range(2, 4), replace(SETUP, **changes))
    assert "\n" not in str(error.value)
    assert (tmp_path / "run.json").read_bytes() == before
    assert len(read_records(tmp_path)) == 2


def test_variants_are_added_and_never_changed(tmp_path):
    fill(tmp_path, range(1))
    fill(tmp_path, range(1, 2), variants=(TWO,))
    setup, variants = read_run(tmp_path)
    assert (setup, list(variants.values())) == (SETUP, [ONE, TWO])
    with Store(tmp_path, SETUP, (TWO,)) as store:
        assert store.variants == (ONE, TWO)
    with pytest.raises(StoreError, match="'two' with delay_frames 0"):
        fill(tmp_path, (), variants=(replace(TWO, delay_frames=2),))


def test_two_writers_at_once_are_refused(tmp_path):
    with (
        Store(tmp_path, SETUP, (ONE,)),
        pytest.raises(StoreError, match="another evaluation is writing"),
        Store(tmp_path, SETUP, (ONE,)),
    ):
        pass
    fill(tmp_path, range(1))


def test_a_damaged_line_is_named(tmp_path):
    fill(tmp_path, range(2))
    path = tmp_path / "episodes.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1][:20], lines[1]]) + "\n")
    with pytest.raises(StoreError, match="line 2 cannot be read"):
        fill(tmp_path, ())
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(StoreError, match=r"run\.json cannot be read"):
        fill(tmp_path, ())


def test_a_job_played_twice_counts_once(tmp_path):
    fill(tmp_path, (0, 0))
    first = replace(record(0), success=False)
    path = tmp_path / "episodes.jsonl"
    path.write_text(json.dumps(to_json(first)) + "\n" + path.read_text())
    assert read_records(tmp_path) == [first]
