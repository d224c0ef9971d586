"""Exceptions, results and patches of a workload that attack the code which records them."""

from __future__ import annotations

import json

import pytest

from runners import failure
from runners.metrics import LARGEST_BYTES, as_metrics
from runners.outcome import Status
from tests.faults import hostile
from tests.measuring import Lab

# The recorded type and message, where these are not the exception's own name and "mine".
RECORDED = {
    "raising text": ("hostile.RaisingText", "<hostile.RaisingText, whose str() raised BaseException: not even this>"),
    "raising itself": ("hostile.RaisingItself", "<hostile.RaisingItself, whose str() raised hostile.RaisingItself>"),
    "text that is none": ("hostile.TextThatIsNone", "__str__ returned non-string (type NoneType)>"),
    "text of its own": ("hostile.TextOfItsOwn", "of its own"),
    "text without end": ("hostile.TextWithoutEnd", "whose str() raised RecursionError: maximum recursion depth exceed"),
    "text that leaves": ("hostile.TextThatLeaves", "whose message was not read: the process ended in the code of the"),
    "text that kills": ("hostile.TextThatKills", "whose message was not read: the process ended in the code of the"),
    "frozen": ("hostile.Frozen", ""),
    "odd notes": ("ValueError", "noted"),
    "cyclic": ("ValueError", "one"),
    "deep chain": ("RuntimeError", "number 19999"),
    "renamed": ("NameOfItsOwn", "renamed"),
    "named hugely": (f"hostile.{'N' * 300} [... {hostile.LONG - 300} characters left out ...]", "of a long name"),
    "with many bases": ("hostile.Base499", "of many bases"),
    "nested groups": ("ExceptionGroup", "a group (1 sub-exception)"),
    "of the parser": ("SyntaxError", "invalid (file)"),
    "huge text": ("ValueError", "x" * 10_000 + f" [... {hostile.LONG - 10_000} characters left out ...]"),
    "huge number": ("ValueError", "<ValueError, whose str() raised ValueError: Exceeds the limit"),
    "half a pair": ("ValueError", "?"),
    "unprintable argument": ("KeyError", "<KeyError, whose str() raised BaseException: not even this>"),
}


@pytest.mark.parametrize("how", hostile.RAISED)
def test_an_error_keeps_its_type_message_and_traceback_whatever_its_own_code_does(lab: Lab, how: str) -> None:
    measured = lab.measure("hostile:raises", {"how": how})
    outcome = measured.outcome
    words = how.replace("list of texts", "list Of Texts").split()
    own = "hostile." + "".join(word[0].upper() + word[1:] for word in words)
    name, message = RECORDED.get(how, (own, "mine"))
    assert (outcome.status, outcome.fits, outcome.error_type) == (Status.ERROR, None, name)
    assert message in (outcome.error_message or "")
    assert outcome.failed_phase == "work"
    assert "in raises" in (outcome.traceback or "") or how in (
        "deep chain",
        "hidden cause",
        "huge text",
        "named hugely",
        "odd notes",
    )
    assert measured.exit["journal_bytes"] < 100_000


def test_a_description_of_an_exception_names_what_it_leaves_out() -> None:
    deep = failure.failure_facts(hostile.chain(1000))
    assert len(deep["chain"]) == failure.MOST_CAUSES
    assert deep["traceback"].startswith("[... the causes behind these 20 exceptions left out ...]")
    huge = failure.failure_facts(ValueError("x" * 100_000))
    assert huge["traceback"].startswith("[... ")
    assert "characters left out ...]\nxxx" in huge["traceback"]


def test_a_traceback_of_many_frames_keeps_both_ends(lab: Lab) -> None:
    outcome = lab.measure("hostile:raises_after_recursion", {"limit": 100, "depth": 5000}).outcome
    assert (outcome.status, outcome.error_message) == (Status.ERROR, "from below")
    assert "in raises_after_recursion" in (outcome.traceback or "")
    assert "frames left out ...]" in (outcome.traceback or "")


@pytest.mark.parametrize("what", sorted(hostile.PATCHES.keys() - {"alarms", "trace"}))
def test_a_workload_that_replaces_what_we_call_keeps_its_own_error_and_its_result(lab: Lab, what: str) -> None:
    raised = lab.measure("hostile:patches", {"what": what}).outcome
    assert (raised.status, raised.error_type, raised.error_message) == (Status.ERROR, "ValueError", "mine")
    assert "in patches" in (raised.traceback or "")
    returned = lab.measure("hostile:patches", {"what": what, "raises": False}).outcome
    assert (returned.status, returned.fits, returned.metrics) == (Status.OK, True, {"kept": 1})


@pytest.mark.parametrize(("what", "messages"), [("alarms", ("an alarm", "mine")), ("trace", ("traced",))])
def test_what_a_workload_raises_in_our_own_code_is_an_error_with_its_message(
    lab: Lab, what: str, messages: tuple[str, ...]
) -> None:
    outcome = lab.measure("hostile:patches", {"what": what}).outcome
    assert (outcome.status, outcome.fits) == (Status.ERROR, None)
    assert outcome.error_message in messages
    assert "in patches" in (outcome.traceback or "")


def test_an_error_is_not_hidden_by_memory_that_the_workload_still_holds(lab: Lab) -> None:
    outcome = lab.measure("hostile:raises_without_memory").outcome
    assert (outcome.status, outcome.error_type, outcome.error_message) == (Status.ERROR, "ValueError", "mine")
    assert (outcome.fits, outcome.failed_phase, outcome.peak_is_partial) == (None, "work", True)
    assert "in raises_without_memory" in (outcome.traceback or "")


# What a value becomes, besides `kept`.
BECOMES = {
    "huge number": {"number": "<a whole number of 16610 bits>"},
    "negative huge number": {"number": "<a whole number of 16610 bits>"},
    "not a number": {"number": "nan", "other": "-inf"},
    "surrogates": {"text": "?", "?": 1},
    "unreadable": {"value": "<hostile.Unreadable, whose code raised BaseException: no ndim>"},
    "number of its own": {"number": 1.5},
    "scalar of its own": {"number": "<hostile.Scalar, whose code raised BaseException: no item>"},
    "text of its own": {"text": "x", "y": 1},
    "huge text": {"text": "x" * 2000 + " [... 99998000 characters left out ...]"},
    "bytes": {"bytes": repr(b"\xff" * 500) + f" [... {hostile.LONG - 500} bytes left out ...]"},
    "huge key": {"x" * 2000 + f" [... {hostile.LONG - 2000} characters left out ...]": 1},
}


@pytest.mark.parametrize("how", hostile.RETURNED)
def test_a_result_becomes_json_of_a_limited_size_that_names_what_it_leaves_out(how: str) -> None:
    found = as_metrics(hostile.RETURNED[how]())
    assert len(json.dumps(found, ensure_ascii=False, allow_nan=False).encode()) < 1.05 * LARGEST_BYTES
    if how in BECOMES:
        assert {name.replace("tests.faults.", ""): _short(value) for name, value in found.items()} == {
            **BECOMES[how],
            "kept": 1,
        }
    elif how in ("wide", "long list", "endless items"):
        assert "values left out" in str(found.get("[...]") or found["list"][-1])
    elif how in ("raising items", "only unreadable"):
        assert "whose code raised BaseException" in found["result"]
    else:
        assert found["kept"] == 1


def _short(value: object) -> object:
    return value.replace("tests.faults.", "") if isinstance(value, str) else value


@pytest.mark.parametrize("how", ["huge number", "unreadable", "endless items"])
def test_a_workload_that_reports_what_cannot_be_read_still_passes(lab: Lab, how: str) -> None:
    returned = lab.measure("hostile:returns", {"how": how}).outcome
    assert (returned.status, returned.fits) == (Status.OK, True)
    noted = lab.measure("hostile:notes", {"how": how}).outcome
    assert (noted.status, noted.fits, noted.metrics) == (Status.OK, True, {"kept": 1})


def test_two_keys_with_the_same_text_are_both_kept() -> None:
    assert as_metrics({1: "number", "1": "text"}) == {"1": "number", "1 (key 2)": "text"}
