"""What the program does with a truth value at the instruction that asked for it, read from its source."""

from __future__ import annotations

import ast
import dis
import inspect
import json
import linecache
import logging
import os
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, NamedTuple

LOOPS = (ast.For, ast.AsyncFor, ast.While)
EXITS = (ast.Break, ast.Return, ast.Raise)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
COMPARES = frozenset({"COMPARE_OP"})
JUMPS = ("POP_JUMP", "JUMP_IF", "TO_BOOL")
WITHOUT_VALUE = frozenset({"CACHE", "EXTENDED_ARG", "COPY", "NOP", "TO_BOOL"})
LONGEST_TEXT = 60

TRUTHS = frozenset({"bool", "any", "all"})  # that are true where what they are given is
CONVERSIONS = frozenset({"int", "float", "abs", "int64", "int32", "float32", "float64"})
ROUNDING = frozenset({"round", "ceil", "floor", "min", "max", "sum", "trunc", "sqrt"})
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
    if comparing and name not in COMPARES:
        return None  # min(), sorted() and the like compare too
    node = _expression(tree, code, last, line)
    if node is None:
        return None
    if name == "UNARY_NOT" and isinstance(node, ast.UnaryOp):
        node = node.operand
    return _role(node, parents)


def _role(node: ast.AST, parents: Parents, through_names: bool = True) -> LoopTest | Decision | None:
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
        may_allocate = any(map(_may_allocate, (*parent.body, *parent.orelse)))
        fails = value if any(map(_fails, parent.body)) else not value if any(map(_fails, parent.orelse)) else None
        return Decision(f"if {_text(node)}", may_allocate, skips, fails, taken)
    if isinstance(parent, ast.Assert) and node is parent.test:
        return Decision(f"assert {_text(node)}", False, False, not value, taken)
    if isinstance(parent, ast.IfExp) and node is parent.test:
        makes = any(isinstance(each, ast.Call) for way in (parent.body, parent.orelse) for each in ast.walk(way))
        return Decision(f"if {_text(node)}", makes, taken=taken)
    if through_names and isinstance(parent, ast.Assign) and node is parent.value:
        roles = [_role(each, parents, False) for each in _loads(parent.targets, parent, parents)]
        for role in roles:
            if isinstance(role, LoopTest):
                return role._replace(goes_on=role.goes_on == value)
        for role in roles:
            if isinstance(role, Decision):
                fails, taken = (each if each is None else each == value for each in (role.fails, role.taken))
                return role._replace(fails=fails, taken=taken if is_alone else None)
    return None


def _text(node: ast.AST) -> str:
    text = ast.unparse(node)
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 3] + "..."


def _may_allocate(statement: ast.stmt) -> bool:
    """Whether a statement may take memory or keep it: it calls something, or gives a name to something."""
    if isinstance(statement, ast.Raise):
        return False
    for node in ast.walk(statement):
        if isinstance(node, ast.Call) and not _is_of(node, HARMLESS):
            return True
        if isinstance(node, ast.Assign) and not isinstance(node.value, (ast.Constant, ast.Call)):
            return True
    return False


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
    name = targets[0].id
    return [
        each
        for each in ast.walk(_scope(node, parents))
        if isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Load)
    ]


# --- what becomes of a number that C has taken ------------------------------------------------------------------------


class Use(NamedTuple):
    """Code that a number may decide more in than which branch is taken."""

    code: str
    is_loop: bool  # it decides when a loop ends, and otherwise a size, as far as that is seen


def becomes(frame: FrameType, is_float: bool = False) -> Use | None:
    """The use of a number that an instruction of the frame takes; None if it is only shown, compared or a position."""
    return _becomes(frame.f_code, frame.f_lasti, frame.f_lineno, is_float)


@lru_cache(4096)
def _becomes(code: CodeType, last: int, line: int, is_float: bool) -> Use | None:
    if any(code.co_filename.startswith(folder) for folder in SHOWING):
        return None
    module = _parsed(code.co_filename)
    node = None if module is None else _expression(module[0], code, last, line)
    if module is None or node is None or not hasattr(code, "co_positions"):
        return None if is_float else Use(f"line {line}", False)
    if is_float:  # no size, unless it is made whole
        return _flows(node, module[1], set(), True) if isinstance(node, ast.Call) else None
    if isinstance(node, ast.Subscript):
        return _size(node) if isinstance(node.slice, (ast.Slice, ast.Tuple)) else None
    if isinstance(node, ast.BinOp):
        return None if isinstance(node.op, ast.Mod) else _size(node)  # text % number
    if not isinstance(node, ast.Call):
        return _size(node)
    if _is_of(node, SHOWN | OF_DATA):
        return None
    return _flows(node, module[1], set(), False) if _is_of(node, CONVERSIONS) else _size(node)


def _flows(node: ast.AST, parents: Parents, seen: set[ast.AST], is_float: bool) -> Use | None:
    """Where an expression's number may decide a size; None if nowhere. A floating-point number does not decide one."""
    if node in seen:
        return None
    seen.add(node)
    parent = parents.get(node)
    if isinstance(parent, ast.BinOp):
        return _flows(parent, parents, seen, is_float or isinstance(parent.op, ast.Div))
    if isinstance(parent, (ast.UnaryOp, ast.BoolOp, ast.Starred, ast.keyword)):
        return _flows(parent, parents, seen, is_float)
    if isinstance(parent, ast.IfExp):
        return None if node is parent.test else _flows(parent, parents, seen, is_float)
    if isinstance(parent, (ast.FormattedValue, ast.Expr)):
        return None
    if isinstance(parent, ast.Dict) and node in parent.values and _is_of_metrics(parent, parents):
        return None
    if isinstance(parent, ast.Compare):
        return Use(_text(parent), True) if isinstance(_role(parent, parents), LoopTest) else None
    if isinstance(parent, ast.Subscript) and node is parent.slice:
        return None
    if isinstance(parent, ast.Call):
        if _is_of(parent, SHOWN):
            return None
        if isinstance(function := parent.func, ast.Attribute) and function.attr == "append":
            return None if is_float else _flows_of_list(function.value, parent, parents, seen)
        if _is_of(parent, CONVERSIONS | ROUNDING):
            return _flows(parent, parents, seen, _is_of(parent, FLOATS))
        return None if is_float else _size(parent)
    if isinstance(parent, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
        targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
        if len(targets) == 1 and isinstance(targets[0], ast.Name):
            is_float = is_float or (isinstance(parent, ast.AugAssign) and isinstance(parent.op, ast.Div))
            read = [*_loads(targets, parent, parents), *([parent] if isinstance(parent, ast.NamedExpr) else [])]
            found = (_flows(each, parents, seen, is_float) for each in read)
            return next((each for each in found if each is not None), None)
    if isinstance(role := _role(node, parents), LoopTest):
        return Use(_text(node), True)
    if is_float or isinstance(role, Decision):
        return None
    return _size(parent if isinstance(parent, ast.expr) else node)


def _flows_of_list(target: ast.expr, call: ast.Call, parents: Parents, seen: set[ast.AST]) -> Use | None:
    """Where the numbers of a list may decide a size, to which the call adds one."""
    if not isinstance(target, ast.Name):
        return _size(call)
    for each in _loads([target], call, parents):
        parent = parents.get(each)
        found: Use | None = _size(parent if isinstance(parent, ast.expr) else call)
        if isinstance(parent, ast.Attribute) and parent.attr in ("append", "extend", "clear"):
            found = None
        elif isinstance(parent, ast.Subscript) and each is parent.value:
            found = _flows(parent, parents, seen, False)
        else:
            while isinstance(parent, (ast.List, ast.Tuple)):
                parent = parents.get(parent)
            if isinstance(parent, ast.Call) and _is_of(parent, SHOWN | OF_DATA):
                found = None
        if found is not None:
            return found
    return None


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
