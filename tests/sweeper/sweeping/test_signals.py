"""The signals that stop a sweep."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator

import pytest

from sweeper.sweeping.signals import catch_signals


@pytest.fixture
def hangup() -> Iterator[None]:
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


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


def test_a_terminal_that_is_closed_stops_a_sweep_once(hangup: None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with catch_signals() as signals:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)
        assert signals.caught == [signal.SIGHUP]
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.caught == [signal.SIGHUP, signal.SIGINT]


def test_a_hangup_that_is_ignored_stays_ignored(hangup: None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with catch_signals() as signals:
        os.kill(os.getpid(), signal.SIGHUP)
        assert signals.caught == []
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
