"""Numbers that a program reads and that are not calculated: what it is given instead, and where it asked.

An assumed number remembers that it is one, and Python's results from it remember it as well. Where it decides how large
something is or how often something is done, a bound is taken if one is known, and else the point is unavailable.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from types import FrameType
from typing import Any

from runners.phases import Unavailable
from runners.simulation.branches import Branch, Decision, LoopTest, becomes, decides, grouping, is_data
from runners.simulation.levels import Level

LIBRARIES = (f"{os.sep}torch{os.sep}", f"{os.sep}numpy{os.sep}")
PYTHON = os.path.dirname(os.__file__) + os.sep
OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
MOST_TESTS = 100_000  # assumed tests of one loop, after which it is taken as one that does not end
MOST_PLACES = 50  # that are named one by one
MOST_NOTES = 3
WAYS = {None: "", True: "taken", False: "not taken"}
AT_MOST_ALL = "at most all"


class Assumptions:
    """What was assumed in a traced run. `assume` is the value of a number that is not known."""

    def __init__(self, assume: float = 1.0, folder: str = ".") -> None:
        self.assume = assume
        self.handed_out = False  # whether the program has a number that remembers where it comes from
        self.on_failure: Callable[[str], None] = lambda message: None
        self.on_place: Callable[[], None] = lambda: None  # called at the first assumed number and at each new bound
        self._folder = os.path.abspath(folder)
        self._libraries = tuple(os.path.join(path, "") for path in sys.path if path.endswith("-packages"))
        self.count = 0  # how often a number was read that is assumed
        self._has_bound = False  # whether code runs that decides within a bound that is known
        self._assumed: dict[tuple[str, int, str, str], int] = {}
        self._bounds: dict[tuple[str, int, str, str, str], int] = {}
        self._tests: dict[tuple[str, int], int] = {}
        self._library_files: set[str] = set()  # as they are named
        self._decided: dict[tuple[str, int, str], dict[str, None]] = {}  # of a place and a test, in order

    # --- what was asked ---

    @property
    def has_bounds(self) -> bool:
        return bool(self._bounds)

    def on_end(self) -> None:
        if self._assumed or self._bounds:
            self.on_place()

    def described_bounds(self) -> str:
        file, line, _, operator, bound = next(iter(self._bounds))
        return f"{file}:{line}, {operator} was taken as {bound}"

    def facts(self) -> dict[str, Any]:
        """The fields of facts.Assumed."""
        keys = ("file", "line", "function", "operator", "bound")
        return {
            "values": self.count,
            "places": [
                {**dict(zip(keys, place, strict=False)), "times": times}
                for place, times in list(self._assumed.items())[:MOST_PLACES]
            ],
            "bounds": [
                {**dict(zip(keys, place, strict=False)), "times": times}
                for place, times in list(self._bounds.items())[:MOST_PLACES]
            ],
        }

    # --- what is answered ---

    def number(self, value: Any, level: Level, operator: str) -> Any:
        """The Python number that the program is given, which remembers its level."""
        if level is Level.KNOWN:
            return value
        if isinstance(value, bool):
            return self.truth(value, level, operator)
        self.note(operator)
        return self.remembering(value, level)

    def remembering(self, value: Any, level: Level) -> Any:
        """The Python number that remembers its level; the value itself if that is known, or is no number."""
        from runners.simulation.torch_assumed_numbers import AssumedFloat, AssumedInt, be_seeds_of_numpy, plain_of

        value = plain_of(value)
        if level is Level.KNOWN or isinstance(value, bool) or type(value).__module__ == "numpy":
            return value
        if isinstance(value, int):
            made: Any = AssumedInt(value)
        elif isinstance(value, float):
            made = AssumedFloat(value)
        else:
            return value
        if not self.handed_out:
            self.handed_out = True
            be_seeds_of_numpy()
        made.level, made.assumptions = level, self
        return made

    def truth(self, value: bool, level: Level, operator: str, comparing: bool = False, of_number: bool = False) -> bool:
        """The truth of an assumed value. Raises Unavailable if a loop then cannot end.

        A loop that it could end goes on, and no exception is raised that it could raise: a program checks in this way
        what holds as long as it works, such as the range of its labels.

        `comparing`: Python numbers are compared. `of_number`: a Python number is asked. Their reading was noted before.
        """
        frame = None if self._has_bound else asking_frame()
        decided = None if frame is None or level is Level.FINITE else decides(frame, comparing)
        if not isinstance(decided, LoopTest):
            if not comparing and not of_number:
                self.note(operator)
            if decided is not None:
                if decided.fails is not None and level is Level.ASSUMED:  # a bound that fails has no other value
                    value = not decided.fails
                self._decide(value, decided)
            return value
        if not decided.ends:
            raise self.unavailable(operator, f"an assumed number decides when the loop ends ({decided.statement})")
        place = self.place()[:2]
        self._tests[place] = self._tests.get(place, 0) + 1
        if self._tests[place] > MOST_TESTS:
            raise self.unavailable(operator, f"the loop did not end after {MOST_TESTS} assumed tests")
        way = f"as if no {decided.statement}" if decided.statement != "while" else "as long as it may go on"
        self.bound(operator, way)
        return decided.goes_on

    def _decide(self, value: bool, decided: Decision) -> None:
        """Note which branch the program takes by an assumed number."""
        is_taken = None if decided.taken is None else value == decided.taken
        way = WAYS[is_taken]
        key = (*self.place(), f"{decided.statement}{way and f': {way}'}")
        self._assumed[key] = self._assumed.get(key, 0) + 1
        if decided.may_allocate or (is_taken and decided.skips):
            self._decided.setdefault((key[0], key[1], decided.statement), {})[way] = None

    def hashed(self, level: Level) -> None:
        """An assumed number is a key or an element of a set: how many there are depends on it."""
        frame = asking_frame(skips_libraries=True) if level is Level.ASSUMED else None
        if frame is not None and (grouped := grouping(frame)) is not None:
            self._decide_later(grouped)

    def _decide_later(self, branch: Branch | None) -> None:
        """Note a branch that the program takes by a plain number which was an assumed one."""
        if branch is not None:
            self._decided.setdefault((*self.place()[:2], branch.code), {})[""] = None

    def notes(self) -> list[str]:
        """The branches of the program whose other way may take other memory, and how many more there are."""
        found = []
        own = [each for each in self._decided.items() if each[0][0] not in self._library_files]
        for (file, line, statement), ways in own[:MOST_NOTES]:
            way = " and ".join(filter(None, ways))
            decides = f"an assumed number decides `{statement}`{way and f', which is {way}'}"
            found.append(f"{file}:{line}: {decides}; the other way may take other memory")
        more, in_libraries = len(own[MOST_NOTES:]), len(self._decided) - len(own)
        if more:
            found.append(f"assumed numbers decide {more} more branch{'es' if more > 1 else ''} of the program")
        if in_libraries:
            found.append(f"assumed numbers decide {in_libraries} branch{'es' if in_libraries > 1 else ''} in libraries")
        return found

    def whole(self, value: int, level: Level, operator: str) -> int:
        """An exact int, as C demands: it cannot remember where it comes from.

        Raises Unavailable for an assumed number that may then decide a size.
        """
        if level is Level.FINITE:
            self.note(operator)
            return value
        frame = asking_frame()
        use = None if frame is None else becomes(frame)
        if use is None or isinstance(use, Branch):
            self.note(operator)
            self._decide_later(use)
        elif use.is_loop:
            raise self.unavailable(operator, f"an assumed number decides when the loop ends ({use.code})")
        elif level is Level.BOUND:
            self.bound(operator)
        else:
            why = f"a number that is not calculated becomes a plain one, which may decide a size ({use.code})"
            if operator == "int":
                why += "; without int() it is followed, as Tensor.item() returns it"
            raise self.unavailable(operator, why)
        return value

    def real(self, value: float, level: Level, operator: str) -> float:
        """An exact float, as `float()` demands: it cannot remember where it comes from either. Raises as `whole`."""
        self.note(operator)
        frame = None if self._has_bound else asking_frame()
        use = None if frame is None or level is Level.FINITE else becomes(frame, is_float=True)
        if use is None or isinstance(use, Branch):
            self._decide_later(use)
        else:
            why = "an assumed number decides when the loop ends" if use.is_loop else "an assumed number decides a size"
            raise self.unavailable(operator, f"{why} ({use.code}); without float() it is followed")
        return value

    def note(self, operator: str) -> None:
        """Count a number that the program reads."""
        key = (*self.place(), operator)
        self._assumed[key] = self._assumed.get(key, 0) + 1
        self.count += 1
        if self.count == 1:
            self.on_place()

    def bound(self, operator: str, bound: str = AT_MOST_ALL) -> None:
        key = (*self.place(), operator, bound)
        self._bounds[key] = self._bounds.get(key, 0) + 1
        if self._bounds[key] == 1 and len(self._bounds) <= MOST_PLACES:
            self.on_place()

    def given_to_torch(self, number: Any) -> int:
        """The plain number for PyTorch, which asks where the program's device did not. Raises as `size` does."""
        frame = asking_frame()
        if frame is not None and is_data(frame):
            self.note("torch.tensor")
        else:
            self.size(number, "torch")
        return int(number.plain)

    @contextmanager
    def within(self, operator: str, bound: str) -> Iterator[None]:
        """Enter around code of a library that takes at most a known bound, whatever the numbers decide."""
        self.bound(operator, bound)
        with self._deciding(has_bound=True):
            yield

    def without_bound(self) -> AbstractContextManager[None]:
        """Enter around code of the program's that the library calls within a bound."""
        return self._deciding(has_bound=False)

    @contextmanager
    def _deciding(self, has_bound: bool) -> Iterator[None]:
        before, self._has_bound = self._has_bound, has_bound
        try:
            yield
        finally:
            self._has_bound = before

    def size(self, number: Any, operator: str) -> None:
        """An assumed number decides a shape or how often a loop runs. Raises Unavailable if it has no bound."""
        if number.level is Level.ASSUMED:
            raise self.unavailable(operator, "a number that is not calculated decides a size")
        if number.level is Level.BOUND:
            self.bound(operator)

    def unavailable(self, operator: Any, why: str) -> Unavailable:
        message = f"{self.where()}, {operator}: {why}"
        self.on_failure(message)
        return Unavailable(message)

    # --- where ---

    def place(self) -> tuple[str, int, str]:
        """File, line and function of the code that asks, as the user knows the file."""
        frame = asking_frame(skips_libraries=True)
        if frame is None:
            return "the workload", 0, "result"
        return self.named(frame.f_code.co_filename), frame.f_lineno, frame.f_code.co_name

    def where(self) -> str:
        file, line, function = self.place()
        return f"{file}:{line} ({function})"

    def named(self, file: str) -> str:
        if not os.path.isabs(file):
            return file
        for folder in self._libraries:
            if file.startswith(folder):
                self._library_files.add(file[len(folder) :])
                return file[len(folder) :]
        inside = os.path.relpath(file, self._folder)
        return file if inside.startswith(os.pardir) else inside

    # --- functions of Python ---

    @contextmanager
    def followed_in_python(self) -> Iterator[None]:
        """Until the end, `max` and `min` remember that one of the numbers that they compare is assumed."""
        from runners.simulation.torch_assumed_numbers import followed_in_library, is_assumed

        def remembering(choose: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(choose)
            def chosen(*args: Any, **options: Any) -> Any:
                if not self.handed_out:
                    return choose(*args, **options)
                if len(args) == 1:
                    args = (list(args[0]),)
                found = [each for each in (args[0] if len(args) == 1 else args) if is_assumed(each)]
                result = choose(*args, **options)
                return self.remembering(result, max(each.level for each in found)) if found else result

            return chosen

        before = builtins.max, builtins.min
        builtins.max, builtins.min = map(remembering, before)
        try:
            with followed_in_library():
                yield
        finally:
            builtins.max, builtins.min = before


def asking_frame(skips_libraries: bool = False) -> FrameType | None:
    """The innermost frame outside of this package, and outside of PyTorch, NumPy and Python's library if so asked."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(OWN) and not (skips_libraries and _is_of_library(file)):
            return frame
        frame = frame.f_back
    return None


def _is_of_library(file: str) -> bool:
    if file.startswith(PYTHON):
        return "-packages" not in file
    return file.startswith("<") or any(each in file for each in LIBRARIES)
