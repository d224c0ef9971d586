"""What the program does with a truth value at the instruction that asked for it, read from its source."""

from __future__ import annotations

import ast
import dis
import inspect
import json
import linecache
import logging
import os
from collections import deque
from collections.abc import Iterable
from enum import Enum, auto
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, NamedTuple

OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
LOOPS = (ast.For, ast.AsyncFor, ast.While)
EXITS = (ast.Break, ast.Return, ast.Raise)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
COMPARES = frozenset({"COMPARE_OP", "CONTAINS_OP"})
JUMPS = ("POP_JUMP", "JUMP_IF", "TO_BOOL")
WITHOUT_VALUE = frozenset({"CACHE", "EXTENDED_ARG", "COPY", "NOP", "TO_BOOL"})
LONGEST_TEXT = 60

TRUTHS = frozenset({"bool", "any", "all"})  # that are true where what they are given is
CONVERSIONS = frozenset({"int", "float", "abs", "int64", "int32", "float32", "float64"})
ROUNDING = frozenset({"round", "ceil", "floor", "min", "max", "sum", "trunc", "sqrt"})
CHOICES = frozenset({"max", "min"})
FLOATS = frozenset({"float", "float32", "float64", "sqrt"})
# Functions that show a number, by name: those that print, log or make text.
SHOWN = frozenset(
    {"print", "str", "repr", "format", "chr", "hex", "bin", "oct", "isinstance", "type", "id", "hash"}
) | {
    *("info", "debug", "warning", "warn", "error", "log", "log_metric", "log_metrics", "add_scalar", "set_postfix"),
    *("set_description", "set_postfix_str", "dumps", "dump", "write"),
    *("sleep", "seed", "manual_seed", "default_rng", "RandomState", "Random"),
}
# Functions of a program, by name, that return a dictionary of numbers which a trainer only logs and compares.
METRICS = frozenset({"compute_metrics"})
# Functions that take the elements of a list as they are.
OF_DATA = frozenset(
    {"tensor", "as_tensor", "LongTensor", "IntTensor", "FloatTensor", "array", "asarray", "len", "decode"}
)
HARMLESS = (
    SHOWN
    | CONVERSIONS
    | ROUNDING
    | {"item", "append", "len", "bool", "tolist", "isnan", "isfinite", "exit", "update", "exp", "log", "log2", "log10"}
)
# Methods that a container keeps what it is given by, and methods and functions that give its elements or some of them.
ADDING = frozenset({"append", "extend", "insert", "appendleft", "add", "clear", "sort", "reverse"})
TAKING = frozenset({"join", "pop", "popleft", "copy", "get", "items", "values", "tolist"})
OF_CONTAINERS = frozenset(
    {"join", "list", "tuple", "sorted", "reversed", "zip", "enumerate", "iter", "next", "dict"}
) | {
    *("sample", "choice", "choices", "chain", "islice", "deque"),
}
# Modules of the standard library that only show numbers.
SHOWING = tuple(os.path.join(os.path.dirname(inspect.getfile(module)), "") for module in (logging, json))

ENDS = frozenset({"exit", "_exit", "quit", "abort"})
ASSERTS = frozenset({"_assert", "check"})

Parents = dict[ast.AST, ast.AST]


class LoopTest(NamedTuple):
    """A truth value that decides whether a loop goes on."""

    goes_on: bool  # the value with which it does
    ends: bool  # whether the loop has another way to its end
    statement: str  # while, break or return


class Decision(NamedTuple):
    """A truth value that decides which branch is taken."""

    statement: str  # the test, as in the source
    may_allocate: bool  # whether a branch does more than to print, to count and to leave
    skips: bool = False  # whether what follows is left out where the test is true
    fails: bool | None = None  # the truth value with which an exception is raised, or the program ends
    taken: bool | None = None  # the value with which the test is true; None if it depends on others too


def decides(frame: FrameType, comparing: bool) -> LoopTest | Decision | None:
    """What the truth value decides that this frame asks for; None if that is not seen.

    `comparing`: a comparison asks, and not a statement for the value of an object.
    """
    return _decides(frame.f_code, frame.f_lasti, frame.f_lineno, comparing)


@lru_cache(4096)
def _decides(code: CodeType, last: int, line: int, comparing: bool) -> LoopTest | Decision | None:
    module = _parsed(code.co_filename)
    if module is None:
        return None
    tree, parents = module
    name = dis.opname[code.co_code[last]] if last >= 0 else ""
    node = _expression(tree, code, last, line)
    if node is None:
        return None
    if comparing and name not in COMPARES:  # sorted() and the like compare too, and choose elements by it
        is_choice = isinstance(node, ast.Call) and not _is_remembered(node)
        is_choice = is_choice and isinstance(_flows(node, parents, set(), _Kind.WITHIN), Use | Branch)
        return Decision(_text(node), True) if is_choice else None
    if name == "UNARY_NOT" and isinstance(node, ast.UnaryOp):
        node = node.operand
    role = _role(node, parents, steers=True)
    is_inverted = name == "CONTAINS_OP" and isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.NotIn)
    if role is None or not is_inverted:
        return role
    if isinstance(role, LoopTest):  # an element is equal where `not in` is false
        return role._replace(goes_on=not role.goes_on)
    fails, taken = (each if each is None else not each for each in (role.fails, role.taken))
    return role._replace(fails=fails, taken=taken)


def _role(
    node: ast.AST, parents: Parents, through_names: bool = True, steers: bool = False
) -> LoopTest | Decision | None:
    """What a truth value decides. `steers`: also by the constants and counters that its branches set."""
    value, has_other = True, False  # of the test, where the expression is true
    is_alone = not (isinstance(node, ast.Compare) and len(node.ops) > 1)
    while True:
        parent = parents.get(node)
        if isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not):
            value = not value
        elif isinstance(parent, ast.BoolOp):
            has_other, is_alone = has_other or isinstance(parent.op, ast.And) == value, False
        elif isinstance(parent, (ast.GeneratorExp, ast.ListComp)) and node is parent.elt:
            is_alone = False
        elif not (isinstance(parent, ast.NamedExpr) or (isinstance(parent, ast.Call) and _is_of(parent, TRUTHS))):
            break
        node = parent
    taken = value if is_alone else None
    if isinstance(parent, ast.While) and node is parent.test:
        return LoopTest(value, has_other or _leaves(parent.body), "while")
    if isinstance(parent, ast.If) and node is parent.test:
        for body, goes_on in ((parent.body, not value), (parent.orelse, value)):
            exits = [each for each in body if isinstance(each, (ast.Break, ast.Return))]
            if exits and (loop := _loop_around(parent, parents)) is not None:
                statement = "break" if isinstance(exits[0], ast.Break) else "return"
                return LoopTest(goes_on, _ends_without(loop, exits[0]), statement)
        skips = any(isinstance(each, (ast.Continue, ast.Return)) for each in parent.body)
        branches = *parent.body, *parent.orelse
        may_allocate = any(map(_may_allocate, branches))
        if steers and not may_allocate:
            may_allocate = any(_steers(each, parents) for branch in branches for each in ast.walk(branch))
        fails = value if any(map(_fails, parent.body)) else not value if any(map(_fails, parent.orelse)) else None
        may_allocate = may_allocate or (fails is not None and _is_handled(parent, parents))
        return Decision(f"if {_text(node)}", may_allocate, skips, fails, taken)
    if isinstance(parent, ast.Assert) and node is parent.test:
        return Decision(f"assert {_text(node)}", _is_handled(parent, parents), False, not value, taken)
    if isinstance(parent, ast.comprehension) and node is not parent.iter:
        return Decision(f"if {_text(node)}", True, taken=taken)
    if isinstance(parent, ast.MatchValue):
        match = parents[parent]
        while not isinstance(match, ast.Match):
            match = parents[match]
        return Decision(f"match {_text(match.subject)}", True)
    if isinstance(parent, ast.IfExp) and node is parent.test:
        makes = any(isinstance(each, ast.Call) for way in (parent.body, parent.orelse) for each in ast.walk(way))
        if steers and not makes:
            kind = _Kind.FLOAT if _is_real(parent.body) and _is_real(parent.orelse) else _Kind.WHOLE
            makes = isinstance(_flows(parent, parents, set(), kind), Use | Branch)
        return Decision(f"if {_text(node)}", makes, taken=taken)
    if through_names and isinstance(parent, ast.Assign) and node is parent.value:
        roles = [_role(each, parents, False, steers) for each in _loads(parent.targets, parent, parents)]
        for role in roles:
            if isinstance(role, LoopTest):
                return role._replace(goes_on=role.goes_on == value)
        for role in roles:
            if isinstance(role, Decision):
                fails, taken = (each if each is None else each == value for each in (role.fails, role.taken))
                return role._replace(fails=fails, taken=taken if is_alone else None)
    if steers and (_makes_more(node) or isinstance(_flows(node, parents, set(), _Kind.WHOLE), Use | Branch)):
        return Decision(_text(node), True, taken=taken)
    return None


def _is_remembered(call: ast.Call) -> bool:
    """Whether a call gives one of the numbers that it compares, which remembers that it is assumed."""
    return _is_of(call, CHOICES) and not any(each.arg == "key" for each in call.keywords)


def _is_real(node: ast.expr) -> bool:
    node = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(node, ast.Constant) and isinstance(node.value, float)


def _makes_more(test: ast.AST) -> bool:
    """Whether a test has a second part that may take memory, and that is left out by the first one."""
    more = test.values[1:] if isinstance(test, ast.BoolOp) else []
    return any(isinstance(each, ast.Call) and not _is_of(each, HARMLESS) for part in more for each in ast.walk(part))


def _is_handled(statement: ast.AST, parents: Parents) -> bool:
    """Whether the function goes on after an exception that a statement raises."""
    node = statement
    while (parent := parents.get(node)) is not None and not isinstance(parent, SCOPES):
        if isinstance(parent, ast.Try) and node in parent.body and parent.handlers:
            return True
        node = parent
    return False


def _text(node: ast.AST) -> str:
    text = ast.unparse(node)
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 3] + "..."


def _may_allocate(statement: ast.stmt) -> bool:
    """Whether a statement may take memory, keep it or free it: it calls something, or gives a name to something."""
    if isinstance(statement, ast.Raise):
        return False
    for node in ast.walk(statement):
        if isinstance(node, ast.Delete) or (isinstance(node, ast.Call) and not _is_of(node, HARMLESS)):
            return True
        if isinstance(node, ast.Call) and _is_of(node, ADDING) and any(map(_may_be_tensor, node.args)):
            return True
        if isinstance(node, ast.Assign) and not isinstance(node.value, (ast.Call, ast.Constant)):
            return True
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and node.value.value is None:
            return True
    return False


def _may_be_tensor(node: ast.expr) -> bool:
    """Whether a list that keeps this may keep memory: it is no constant, and no number or text that a call makes."""
    if isinstance(node, (ast.Tuple, ast.List)):
        return any(map(_may_be_tensor, node.elts))
    return isinstance(node, (ast.Name, ast.Attribute, ast.Subscript, ast.BinOp))


def _steers(node: ast.AST, parents: Parents) -> bool:
    """Whether a constant or a counter that a statement sets decides a size, another branch or the end of a loop."""
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
        is_float = isinstance(node.value.value, float)
    elif isinstance(node, ast.AugAssign):
        is_float = isinstance(node.op, ast.Div) or isinstance(getattr(node.value, "value", None), float)
    else:
        return False
    kind = _Kind.FLOAT if is_float else _Kind.WHOLE
    found: list[_Found] = []
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        if isinstance(target, ast.Attribute):
            loads = [
                each
                for each in ast.walk(_root(node, parents))
                if isinstance(each, ast.Attribute) and each.attr == target.attr and isinstance(each.ctx, ast.Load)
            ]
            found += [_flows(each, parents, set(), kind) for each in loads]
        elif names := _names(target):
            found.append(_flows_of_names(names, node, parents, set(), kind))
    return any(isinstance(each, (Use, Branch)) for each in found)


def _root(node: ast.AST, parents: Parents) -> ast.AST:
    while node in parents:
        node = parents[node]
    return node


def _fails(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assert):
        return _is_false(statement.test)
    if isinstance(statement, ast.Expr) and isinstance(call := statement.value, ast.Call):
        return _is_of(call, ENDS) or (_is_of(call, ASSERTS) and bool(call.args) and _is_false(call.args[0]))
    return isinstance(statement, ast.Raise)


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not node.value


def _name_of(call: ast.Call) -> str:
    function = call.func
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def _is_of(call: ast.Call, names: frozenset[str]) -> bool:
    return _name_of(call) in names


def _scope(node: ast.AST, parents: Parents) -> ast.AST:
    while (parent := parents.get(node)) is not None:
        node = parent
        if isinstance(node, SCOPES) and not isinstance(node, ast.ClassDef):
            break
    return node


def _loads(targets: list[Any], node: ast.AST, parents: Parents) -> list[ast.Name]:
    """Where the one name that a statement binds is read in its function, or in its module."""
    if len(targets) != 1 or not isinstance(targets[0], ast.Name):
        return []
    return _reads(frozenset({targets[0].id}), _scope(node, parents))


def _reads(names: frozenset[str], scope: ast.AST) -> list[ast.Name]:
    """Where names of a scope are read: not in a function within it that has a variable of the same name."""
    found, waiting = [], deque([(scope, names)])
    while waiting:
        node, left = waiting.popleft()
        if isinstance(node, ast.Name) and node.id in left and isinstance(node.ctx, ast.Load):
            found.append(node)
        inside = left
        if isinstance(node, FUNCTIONS) and node is not scope:
            inside = left - _variables(node)
        waiting += [(each, left if isinstance(each, ast.arguments) else inside) for each in ast.iter_child_nodes(node)]
    return found


def _variables(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> set[str]:
    """The names of a function's own variables and arguments."""
    found = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
    others: set[str] = set()
    waiting: list[ast.AST] = list(function.body) if isinstance(function.body, list) else [function.body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            others.update(node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif not isinstance(node, FUNCTIONS):
            waiting += ast.iter_child_nodes(node)
    return found - others


# --- what becomes of a number that C has taken ------------------------------------------------------------------------


class Use(NamedTuple):
    """Code that a number may decide more in than which branch is taken."""

    code: str
    is_loop: bool  # it decides when a loop ends, and otherwise a size, as far as that is seen


class Branch(NamedTuple):
    """A test that a plain number decides, of which one way may take other memory."""

    code: str


class _Returned(NamedTuple):
    """A function returns the number, and its caller has it."""

    function: str
    kind: _Kind


class _Kind(Enum):
    FLOAT = auto()  # decides no size unless it is made whole
    WHOLE = auto()
    WITHIN = auto()  # a container of numbers, or one of its elements


_Found = Use | Branch | _Returned | None
SEVERITY = (None, Branch, _Returned, Use)


def becomes(frame: FrameType, is_float: bool = False) -> Use | Branch | None:
    """The use of a number that an instruction of the frame takes; None if it is only shown, compared or a position.

    A number that a function returns is followed to the callers that wait for it now. What the workload returns is
    only reported.
    """
    found = _becomes(frame.f_code, frame.f_lasti, frame.f_lineno, is_float)
    caller: FrameType | None = frame
    while isinstance(found, _Returned):
        while caller is not None and caller.f_code.co_name != found.function:  # out of its comprehensions
            caller = caller.f_back
        if caller is None:
            return None if found.kind is _Kind.FLOAT else Use(f"return of {found.function}", False)
        caller = caller.f_back
        if caller is None or caller.f_code.co_filename.startswith(OWN):
            return None
        found = _received(caller.f_code, caller.f_lasti, caller.f_lineno, found.kind)
    return found


@lru_cache(4096)
def _becomes(code: CodeType, last: int, line: int, is_float: bool) -> _Found:
    if any(code.co_filename.startswith(folder) for folder in SHOWING):
        return None
    module = _parsed(code.co_filename)
    node = None if module is None else _expression(module[0], code, last, line)
    if module is None or node is None or not hasattr(code, "co_positions"):
        return None if is_float else Use(f"line {line}", False)
    if is_float:  # no size, unless it is made whole
        return _flows(node, module[1], set(), _Kind.FLOAT) if isinstance(node, ast.Call) else None
    if isinstance(node, ast.Subscript):
        if isinstance(node.slice, (ast.Slice, ast.Tuple)):
            return _size(node)
        # Which element is chosen decides what that element decides.
        chosen = _flows(node, module[1], set(), _Kind.WITHIN) if isinstance(node.ctx, ast.Load) else None
        return Branch(_text(node)) if isinstance(chosen, Use | Branch) else None
    if isinstance(node, ast.BinOp):
        return None if isinstance(node.op, ast.Mod) else _size(node)  # text % number
    if not isinstance(node, ast.Call):
        return _size(node)
    if _is_of(node, SHOWN | OF_DATA):
        return None
    return _flows(node, module[1], set(), _Kind.WHOLE) if _is_of(node, CONVERSIONS) else _size(node)


@lru_cache(4096)
def _received(code: CodeType, last: int, line: int, kind: _Kind) -> _Found:
    """What becomes of the result of the call that a frame waits for."""
    module = _parsed(code.co_filename)
    node = None if module is None else _expression(module[0], code, last, line)
    if module is None or not isinstance(node, ast.Call):
        return None if kind is _Kind.FLOAT else Use(f"line {line}", False)
    return _flows(node, module[1], set(), kind)


def _worst(found: Iterable[_Found]) -> _Found:
    return max(found, key=lambda each: SEVERITY.index(None if each is None else type(each)), default=None)


def _flows(node: ast.AST, parents: Parents, seen: set[ast.AST], kind: _Kind) -> _Found:
    """Where an expression's number may decide a size; None if nowhere."""
    if node in seen:
        return None
    seen.add(node)
    parent = parents.get(node)
    is_float = kind is _Kind.FLOAT
    if isinstance(parent, ast.BinOp):
        is_ratio = kind is _Kind.WHOLE and isinstance(parent.op, ast.Div)
        return _flows(parent, parents, seen, _Kind.FLOAT if is_ratio else kind)
    if isinstance(parent, (ast.UnaryOp, ast.BoolOp, ast.Starred)):
        return _flows(parent, parents, seen, kind)
    if isinstance(parent, ast.IfExp):
        return None if node is parent.test else _flows(parent, parents, seen, kind)
    if isinstance(parent, (ast.FormattedValue, ast.Expr)):
        return None
    if isinstance(parent, ast.Dict) and node in parent.values and _is_of_metrics(parent, parents):
        return None
    if isinstance(parent, ast.Compare):
        role = _role(parent, parents)
        if isinstance(role, LoopTest):
            return Use(_text(parent), True)
        return Branch(role.statement) if isinstance(role, Decision) and role.may_allocate else None
    if isinstance(parent, ast.Subscript):
        return None if node is parent.slice else _flows(parent, parents, seen, kind)
    if isinstance(parent, (ast.List, ast.Tuple, ast.ListComp, ast.GeneratorExp)):
        return _flows(parent, parents, seen, kind if is_float else _Kind.WITHIN)
    if isinstance(parent, (ast.Dict, ast.DictComp)) and not _is_key(node, parent):
        return _flows(parent, parents, seen, kind if is_float else _Kind.WITHIN)
    if isinstance(parent, (ast.For, ast.comprehension)) and node is parent.iter:
        inside = parent if isinstance(parent, ast.For) else parents[parent]
        return _flows_of_names(_names(parent.target), inside, parents, seen, kind)
    if isinstance(parent, ast.Return) or (isinstance(parent, ast.Lambda) and node is parent.body):
        scope = _scope(parent, parents) if isinstance(parent, ast.Return) else parent
        return _Returned(getattr(scope, "name", "<lambda>"), kind)
    if isinstance(parent, ast.Attribute) and kind is _Kind.WITHIN:
        if parent.attr in ADDING:
            return None
        call = parents.get(parent)
        if parent.attr in TAKING and isinstance(call, ast.Call):
            return _flows(call, parents, seen, kind)
    if isinstance(parent, (ast.Call, ast.keyword)):
        return _flows_into(node, parent, parents, seen, kind)
    if isinstance(parent, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
        if node is not parent.value:
            return None
        targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
        if len(targets) == 1 and isinstance(targets[0], ast.Subscript) and isinstance(targets[0].value, ast.Name):
            return None if is_float else _flows_of_names([targets[0].value.id], parent, parents, seen, _Kind.WITHIN)
        if len(targets) == 1 and (names := _names(targets[0])):
            if isinstance(parent, ast.AugAssign) and isinstance(parent.op, ast.Div) and kind is _Kind.WHOLE:
                kind = _Kind.FLOAT
            found = _flows_of_names(names, parent, parents, seen, kind)
            itself = _flows(parent, parents, seen, kind) if isinstance(parent, ast.NamedExpr) else None
            return _worst((found, itself))
    role = _role(node, parents)
    if isinstance(role, LoopTest):
        return Use(_text(node), True)
    if isinstance(role, Decision) and role.may_allocate:
        return Branch(role.statement)
    if is_float or isinstance(role, Decision):
        return None
    return _size(parent if isinstance(parent, ast.expr) else node)


def _flows_into(node: ast.AST, parent: ast.AST, parents: Parents, seen: set[ast.AST], kind: _Kind) -> _Found:
    """What a call does with an argument."""
    name = parent.arg if isinstance(parent, ast.keyword) else None
    call = parents[parent] if isinstance(parent, ast.keyword) else parent
    if not isinstance(call, ast.Call) or node is call.func:
        return _size(parent if isinstance(parent, ast.expr) else node)
    if _is_of(call, SHOWN) or (kind is _Kind.WITHIN and _is_of(call, OF_DATA)):
        return None
    if isinstance(function := call.func, ast.Attribute) and function.attr in ADDING:
        if kind is _Kind.FLOAT:
            return None
        if not isinstance(function.value, ast.Name):
            return _size(call)
        return _flows_of_names([function.value.id], call, parents, seen, _Kind.WITHIN)
    if kind is _Kind.WITHIN and _is_of(call, OF_CONTAINERS):
        return _flows(call, parents, seen, kind)
    if _is_of(call, CONVERSIONS | ROUNDING):
        is_made_float = _is_of(call, FLOATS)
        return _flows(call, parents, seen, _Kind.FLOAT if is_made_float else _Kind.WHOLE)
    if kind is _Kind.FLOAT:
        return None
    return _flows_through(node, call, name, parents, seen, kind)


def _flows_through(
    node: ast.AST, call: ast.Call, name: str | None, parents: Parents, seen: set[ast.AST], kind: _Kind
) -> _Found:
    """What functions of the same file that have the called name do with an argument."""
    functions = [
        each
        for each in ast.walk(_root(call, parents))
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)) and each.name == _name_of(call)
    ]
    if not functions or any(isinstance(each, ast.Starred) for each in call.args):
        return _size(call)
    found: list[_Found] = []
    for function in functions:
        parameters = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        if isinstance(parents.get(function), ast.ClassDef):
            parameters = parameters[1:]
        if name is None:
            place = next((number for number, each in enumerate(call.args) if each is node), len(parameters))
            parameter = parameters[place] if place < len(parameters) else None
        else:
            parameter = name if name in (*parameters, *(each.arg for each in function.args.kwonlyargs)) else None
        if parameter is None or any(isinstance(each, (ast.Yield, ast.YieldFrom)) for each in ast.walk(function)):
            return _size(call)
        inside = _flows_of_names([parameter], function.body[0], parents, seen, kind)
        if isinstance(inside, _Returned) and inside.function == function.name:
            found.append(_flows(call, parents, seen, inside.kind))
        else:
            found.append(inside)
    return _worst(found)


def _flows_of_names(names: list[str], place: ast.AST, parents: Parents, seen: set[ast.AST], kind: _Kind) -> _Found:
    """What becomes of a number or a container where the names that are bound at a place are read."""
    scope = place
    while not isinstance(scope, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        scope = parents[scope]
    for each in ast.walk(scope):
        if isinstance(each, (ast.Global, ast.Nonlocal)) and set(names) & set(each.names):
            scope = _root(scope, parents)
            break
    return _worst([_flows(each, parents, seen, kind) for each in _reads(frozenset(names), scope)])


def _names(target: ast.AST) -> list[str]:
    """The names that a target binds; none if it binds anything else."""
    if isinstance(target, ast.Name):
        return [target.id]
    if isinstance(target, (ast.Tuple, ast.List)):
        found = [_names(each) for each in target.elts]
        return [name for names in found for name in names] if all(found) else []
    return []


def _is_key(node: ast.AST, parent: ast.Dict | ast.DictComp) -> bool:
    return node in parent.keys if isinstance(parent, ast.Dict) else node is parent.key


def grouping(frame: FrameType) -> Branch | None:
    """The code that groups by a number, or counts different ones; None if it looks something up."""
    return _grouping(frame.f_code, frame.f_lasti, frame.f_lineno)


@lru_cache(4096)
def _grouping(code: CodeType, last: int, line: int) -> Branch | None:
    module = _parsed(code.co_filename)
    node = None if module is None else _expression(module[0], code, last, line)
    if node is None:
        return None
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        return None  # a name for a number
    if isinstance(node, ast.Call) and (_is_of(node, SHOWN) or _name_of(node) == "get"):
        return None
    return None if isinstance(node, ast.Compare) else Branch(_text(node))


def _is_of_metrics(node: ast.AST, parents: Parents) -> bool:
    """Whether the expression is what a function of METRICS returns."""
    if not isinstance(parents.get(node), ast.Return):
        return False
    while (parent := parents.get(node)) is not None and not isinstance(parent, SCOPES):
        node = parent
    return isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)) and parent.name in METRICS


def is_data(frame: FrameType) -> bool:
    """Whether the frame's instruction makes a tensor of the elements of a list."""
    found = expression_at(frame)
    return found is not None and isinstance(found[0], ast.Call) and _is_of(found[0], OF_DATA)


def _size(node: ast.AST) -> Use:
    return Use(_text(node), False)


def _loop_around(node: ast.AST, parents: Parents) -> ast.For | ast.AsyncFor | ast.While | None:
    while (parent := parents.get(node)) is not None and not isinstance(parent, SCOPES):
        if isinstance(parent, LOOPS):
            return parent
        node = parent
    return None


def _ends_without(loop: ast.For | ast.AsyncFor | ast.While, this: ast.AST) -> bool:
    if not isinstance(loop, ast.While) or not isinstance(loop.test, ast.Constant):
        return True
    return _leaves(loop.body, this)


def _leaves(body: list[ast.stmt], besides: ast.AST | None = None) -> bool:
    """Whether a statement in the body of a loop leaves the loop."""
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, EXITS) and node is not besides:
            return True
        if not isinstance(node, SCOPES):
            waiting += ast.iter_child_nodes(node)
    return False


@lru_cache(256)
def _parsed(file: str) -> tuple[ast.Module, Parents] | None:
    """None if there is no source."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None
    if not tree.body:
        return None
    return tree, {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}


def expression_at(frame: FrameType) -> tuple[ast.expr, Parents] | None:
    """The expression that the frame is at."""
    module = _parsed(frame.f_code.co_filename)
    if module is None:
        return None
    node = _expression(module[0], frame.f_code, frame.f_lasti, frame.f_lineno)
    return None if node is None else (node, module[1])


def _expression(tree: ast.Module, code: CodeType, last: int, line: int) -> ast.expr | None:
    """The smallest expression around an instruction. Python 3.10 knows its line only: then the whole test there."""
    if not hasattr(code, "co_positions"):
        tests = [node.test for node in ast.walk(tree) if isinstance(node, (ast.If, ast.While, ast.Assert))]
        return next((test for test in tests if test.lineno <= line <= (test.end_lineno or line)), None)
    places = list(code.co_positions())
    place = last // 2
    if dis.opname[code.co_code[last]].startswith(JUMPS):  # its own place is the statement: take the value before it
        place -= 1
        while place > 0 and dis.opname[code.co_code[2 * place]] in WITHOUT_VALUE:
            place -= 1
    start, end, column, end_column = places[place]
    if start is None or end is None or column is None or end_column is None:
        return None
    found: ast.expr | None = None
    for node in ast.walk(tree):  # outer expressions come first
        if isinstance(node, ast.expr) and node.end_lineno is not None and node.end_col_offset is not None:
            begins, ends = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
            if begins <= (start, column) and (end, end_column) <= ends:
                found = node
    return found
