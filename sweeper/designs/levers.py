"""design=levers: changes a run that does not fit, one key at a time, until it fits."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from runners.device import Device
from sweeper.designs.dialogue import Answer, Design
from sweeper.designs.grid import star
from sweeper.designs.neighbours import Choice, Neighbours
from sweeper.effects.added_levers import Verdict, add_levers
from sweeper.effects.levers import SAME_POINT, impossible
from sweeper.errors import Mistake, NotTogether
from sweeper.interval import Interval
from sweeper.plan import Plan


def levers(plan: Plan, *_: Any) -> Design:
    """The run, then one change at a time on top of those that were kept (sweeper/effects/added_levers.py).

    The first value of each key is the run's. A change that the run cannot take is not run. Raises Mistake if there is
    nothing to change, for a value that is not valid, for an interval, and for `repeat_points`.
    """
    _check(plan)
    device: Device | None = None

    def left_out(before: Choice, choice: Choice) -> str | None:
        return not_worth_a_run(plan, before, choice, device)

    neighbours = Neighbours(plan)
    known: dict[str, Answer] = {}  # by the point's id: a step back may lead to a point that was tried
    adding = add_levers({dimension.key: dimension.values for dimension in plan.dimensions}, left_out)
    choice = next(adding)
    while True:
        each = neighbours.of(choice)
        if each.point.id not in known:
            (answer,) = yield [each]
            assert answer is not None  # no point of this design is only planned for later
            known[each.point.id] = answer
        answer = known[each.point.id]
        device = answer.device
        try:
            choice = adding.send(verdict(answer))
        except StopIteration:
            return


def not_worth_a_run(plan: Plan, before: Choice, choice: Choice, device: Device | None) -> str | None:
    """Why a choice is not worth a run after another one, or None."""
    try:
        now, then = plan.settle(choice), plan.settle(before)
    except Mistake as mistake:
        return str(mistake)
    if now.id == then.id:
        return SAME_POINT
    return None if device is None else impossible(now.values, device)


def verdict(answer: Answer) -> Verdict:
    return Verdict(fits=answer.fits, peak_bytes=answer.peak_bytes, because=answer.status.value)


def _check(plan: Plan) -> None:
    if not plan.dimensions:
        raise Mistake(
            "design=levers: give each key that may change several values, the run's own first, as in batch=4,2,1"
        )
    for dimension in plan.dimensions:
        if isinstance(dimension.values, Interval):
            key = dimension.key
            raise Mistake(f"{key}={dimension.values}: design=levers lists its values, as in {key}=4,2,1")
    run, *changed = star(plan.dimensions)
    plan.settle(run)  # raises Mistake for a value that is not valid
    for choice in changed:
        with suppress(NotTogether):  # such a change is left out
            plan.settle(choice)
    if plan.run.repeat_points > 1:
        raise Mistake(f"repeat_points={plan.run.repeat_points}: design=levers runs each point once; leave it out")
