from __future__ import annotations

import os
import signal
import threading

import pytest

from sweeper.tables.other_core import computing, is_free

pytestmark = pytest.mark.skipif(not is_free(), reason="needs two cores")


def test_a_computation_on_another_core_has_what_this_process_had() -> None:
    numbers = list(range(1000))
    with computing(lambda: (os.getpid(), sum(numbers))) as other:
        pid, found = other.result() or (0, 0)
    assert found == sum(numbers)
    assert pid != os.getpid()


def test_more_than_a_pipe_holds_is_sent() -> None:
    with computing(lambda: b"x" * 2**22) as other:
        assert other.result() == b"x" * 2**22


def test_a_computation_that_was_killed_has_no_result() -> None:
    with computing(lambda: os.kill(os.getpid(), signal.SIGKILL)) as other:
        assert other.result() is None


def test_a_computation_that_raises_has_no_result(capfd: pytest.CaptureFixture[str]) -> None:
    with computing(lambda: 1 // 0) as other:
        assert other.result() is None
    assert capfd.readouterr() == ("", "")


def test_a_computation_ends_with_its_block() -> None:
    def never() -> None:
        while True:
            signal.pause()

    with pytest.raises(KeyboardInterrupt), computing(never) as other:
        raise KeyboardInterrupt
    with pytest.raises(ProcessLookupError):
        os.kill(other.pid, 0)


def test_a_process_with_other_threads_is_not_forked() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert not is_free()
    finally:
        done.set()
        thread.join()
