"""Follows the statements of a fusion, one by one, through the branches, loops and functions that it has."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fuseplan.capture.nvfuser_script.definition import Definition
from fuseplan.capture.nvfuser_script.expressions import MAX_DEPTH, Expressions
from fuseplan.capture.nvfuser_script.scope import Scope
from fuseplan.capture.nvfuser_script.words import NodeValue, Number, fail

_CALL_DEPTH = 5
"""How many levels of expressions a call of one of the script's functions counts for."""


class Interpreter(Expressions):
    """Follows statements, and what they say of the definition."""

    def __init__(
        self, scope: Scope | None, definition: Definition | None = None, loaded: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(scope, definition)
        self._loaded = loaded
        """Names that are read anywhere: results that are not read are not computed."""

    def run(self, body: Sequence[ast.stmt]) -> None:
        """Follow statements; a GraphError names the first that is not understood."""
        for statement in body:
            self.step(statement)
            run = _STATEMENTS.get(type(statement))
            if run is None:
                fail(statement, f"{_word(statement)} is not understood in a fusion")
            run(self, statement)

    def _assign(self, statement: ast.Assign) -> None:
        targets = statement.targets[0]
        if isinstance(targets, (ast.Tuple, ast.List)) and isinstance(statement.value, ast.Call):
            read = [name in self._loaded for name in (_target_name(part) for part in targets.elts)]
            value = self.called(statement.value, only_first=not any(read[1:]))
        else:
            value = self.value(statement.value)
        for target in statement.targets:
            self.bind(target, value)

    def _annotated(self, statement: ast.AnnAssign) -> None:
        if statement.value is not None:
            self.bind(statement.target, self.value(statement.value))

    def _expression(self, statement: ast.Expr) -> None:
        if isinstance(statement.value, ast.Constant) or _is_print(statement.value):
            return
        self.value(statement.value)

    def _if(self, statement: ast.If) -> None:
        test = self.value(statement.test)
        if isinstance(test, NodeValue):
            fail(statement.test, "a condition on a tensor")
        self.run(statement.body if (test.value if isinstance(test, Number) else test) else statement.orelse)

    def _for(self, statement: ast.For) -> None:
        items = self.value(statement.iter)
        if not isinstance(items, (list, tuple, range)) or statement.orelse:
            fail(statement, "a loop over something that is no list")
        for item in items:
            self.step(statement)
            self.bind(statement.target, item)
            self.run(statement.body)

    def follow(self, node: ast.Call, function: ast.FunctionDef, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A function of the script's own, followed where it is called."""
        outer, names = self.names, parameters(self, node, function, args, kwargs)
        self.depth += _CALL_DEPTH
        if self.depth > MAX_DEPTH:
            fail(node, f"calls nested deeper than {MAX_DEPTH // _CALL_DEPTH}")
        self.names = names
        try:
            last = function.body[-1]
            ends = isinstance(last, ast.Return)
            self.run(function.body[:-1] if ends else function.body)
            return self.value(last.value) if isinstance(last, ast.Return) and last.value is not None else None
        finally:
            self.names = outer
            self.depth -= _CALL_DEPTH


def parameters(
    interpreter: Interpreter, node: ast.AST, function: ast.FunctionDef, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The names that a call of a function gives values to; what it leaves out has its default, or is asked for later."""
    places = [*function.args.posonlyargs, *function.args.args]
    if len(args) > len(places) or function.args.vararg or function.args.kwarg:
        fail(node, f"{function.name} is called with arguments that it does not name")
    names = {place.arg: value for place, value in zip(places, args, strict=False)}
    defaults = dict(zip([place.arg for place in reversed(places)], reversed(function.args.defaults), strict=False))
    kept = {place.arg: value for place, value in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)}
    for name, default in {**defaults, **kept}.items():
        if name not in names and name not in kwargs and default is not None:
            names[name] = interpreter.value(default)
    return {**names, **kwargs}


def _target_name(target: ast.expr) -> str:
    inner = target.value if isinstance(target, ast.Starred) else target
    return inner.id if isinstance(inner, ast.Name) else ""


def _is_print(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"


def _word(statement: ast.stmt) -> str:
    words = {
        ast.FunctionDef: "a function",
        ast.While: "`while`",
        ast.With: "`with`",
        ast.Try: "`try`",
        ast.Import: "`import`",
    }
    return words.get(type(statement), f"`{ast.unparse(statement).split()[0]}`")


_STATEMENTS: Mapping[type[ast.stmt], Callable[[Any, Any], None]] = {
    ast.Assign: Interpreter._assign,
    ast.AnnAssign: Interpreter._annotated,
    ast.Expr: Interpreter._expression,
    ast.If: Interpreter._if,
    ast.For: Interpreter._for,
    ast.Pass: lambda _, __: None,
    ast.Assert: lambda _, __: None,
    ast.Return: lambda _, __: None,
}
