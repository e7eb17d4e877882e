"""A run that is told again: the same questions, and what was executed meanwhile."""

import json

import pytest

from unit.runtime.control.bench import Bench
from vla_ros.core.types import Executing
from vla_ros.runtime.control.queue import Chunking, Execution
from vla_ros.runtime.control.requests import (
    RecordedRequest,
    RecordedRequests,
    read_requests,
    write_requests,
)

ASKED = [RecordedRequest(5), RecordedRequest(9, Executing(5, 3, 2)), RecordedRequest(12, None, 3)]


def test_each_frame_is_asked_as_it_was_and_once():
    retold = RecordedRequests(ASKED)
    assert retold.next(4) is None, "nothing was asked of this one"
    assert retold.next(5) == ASKED[0]
    assert retold.next(5) is None
    assert retold.next(12) == ASKED[2], "those before are over"
    assert retold.next(13) is None


def test_a_file_of_questions_is_read_as_it_was_written(tmp_path):
    file = tmp_path / "chunks.json"
    write_requests(file, ASKED)
    assert json.loads(file.read_text("utf-8")) == [[5, 0], [9, 0, 5, 3, 2, 0], [12, 3]]
    retold = read_requests(file)
    assert [retold.next(question.stamp_ns) for question in ASKED] == ASKED
    file.write_text('[["5", 0.0, "4", 3.0, 2]]')
    assert read_requests(file).next(5) == RecordedRequest(5, Executing(4, 3, 2), 0), "whole numbers"


@pytest.mark.parametrize("wrong", ["{}x", "[[1]]", "[[1, 2, 3]]", "7", "[[null, 1]]", None])
def test_a_file_that_is_none_is_refused_in_a_line_that_names_it(tmp_path, wrong):
    file = tmp_path / "chunks.json"
    if wrong is not None:
        file.write_text(wrong)
    with pytest.raises(ValueError, match=f"^cannot read {file}: .") as refused:
        read_requests(file)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("lockstep", [False, True])
def test_the_worker_hears_what_was_executed_then_and_the_answer_is_waited_for(lockstep):
    bench = Bench(
        lockstep=lockstep, chunk=4, continues=("rtc",), chunking=Chunking(Execution.RTC)
    ).ready()
    now, executing = bench.clock.now, Executing(7, 2, 1)
    bench.control.requests.recorded = RecordedRequests([RecordedRequest(now, executing)])
    bench.frame(now - 1)
    assert bench.out.submitted == [], "nothing was asked of this one"
    frame = bench.frame(now)
    assert [o.executing for o, _ in bench.out.submitted] == [executing]
    assert bench.out.commands[-1:] == [] or bench.out.commands[-1].latest_ns != frame.stamp_ns
    bench.answer(frame)
    assert len(bench.tick() or bench.out.commands) >= 1
