"""What the program does with a truth value at the instruction that asked for it, read from its source."""

from __future__ import annotations

import ast
import dis
import linecache
from functools import lru_cache
from types import CodeType, FrameType
from typing import NamedTuple

LOOPS = (ast.For, ast.AsyncFor, ast.While)
EXITS = (ast.Break, ast.Return, ast.Raise)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
COMPARES = frozenset({"COMPARE_OP"})

Parents = dict[ast.AST, ast.AST]


class LoopTest(NamedTuple):
    """A truth value that decides whether a loop goes on."""

    goes_on: bool  # the value with which it does
    ends: bool  # whether the loop has another way to its end
    statement: str  # while, break or return


def loop_test(frame: FrameType, comparing: bool) -> LoopTest | None:
    """The loop that the truth value asked for by this frame decides; None if it decides none.

    `comparing`: a comparison asked, and not a statement for the value of an object.
    """
    return _loop_test(frame.f_code, frame.f_lasti, frame.f_lineno, comparing)


@lru_cache(4096)
def _loop_test(code: CodeType, last: int, line: int, comparing: bool) -> LoopTest | None:
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


def _role(node: ast.AST, parents: Parents) -> LoopTest | None:
    value, has_other = True, False  # of the test, where the expression is true
    while True:
        parent = parents.get(node)
        if isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not):
            value = not value
        elif isinstance(parent, ast.BoolOp):
            has_other = has_other or isinstance(parent.op, ast.And) == value
        elif not (isinstance(parent, ast.NamedExpr) or (isinstance(parent, ast.Call) and _is_bool(parent))):
            break
        node = parent
    if isinstance(parent, ast.While) and node is parent.test:
        return LoopTest(value, has_other or _leaves(parent.body), "while")
    if isinstance(parent, ast.If) and node is parent.test:
        for body, goes_on in ((parent.body, not value), (parent.orelse, value)):
            exits = [each for each in body if isinstance(each, (ast.Break, ast.Return))]
            if exits and (loop := _loop_around(parent, parents)) is not None:
                statement = "break" if isinstance(exits[0], ast.Break) else "return"
                return LoopTest(goes_on, _ends_without(loop, exits[0]), statement)
    return None


def _is_bool(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "bool"


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
    start, end, column, end_column = list(code.co_positions())[last // 2]
    if start is None or end is None or column is None or end_column is None:
        return None
    found: ast.expr | None = None
    for node in ast.walk(tree):  # outer expressions come first
        if isinstance(node, ast.expr) and node.end_lineno is not None and node.end_col_offset is not None:
            begins, ends = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
            if begins <= (start, column) and (end, end_column) <= ends:
                found = node
    return found
