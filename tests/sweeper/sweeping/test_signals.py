"""The signals that stop a sweep."""

from __future__ import annotations

import os
import select
import signal

import pytest

from sweeper.sweeping.signals import catch_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_recorded_and_makes_the_descriptor_readable(number: signal.Signals) -> None:
    with catch_signals() as signals:
        assert select.select([signals.descriptor], [], [], 0)[0] == []
        os.kill(os.getpid(), number)
        assert select.select([signals.descriptor], [], [], 5)[0] == [signals.descriptor]
        assert signals.caught == [number]


def test_the_handlers_are_restored() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with catch_signals():
        assert signal.getsignal(signal.SIGINT) is not before[0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
