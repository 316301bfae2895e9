"""Values of the expressions of a script: a closed set of Python, in which nothing but ops and sizes is computed."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fuseplan.capture.nvfuser_script.calls import Method, OpName, attribute, call
from fuseplan.capture.nvfuser_script.definition import Definition
from fuseplan.capture.nvfuser_script.numbers import OPERATORS, check_size, computed, is_plain
from fuseplan.capture.nvfuser_script.scope import Scope
from fuseplan.capture.nvfuser_script.words import Example, Name, fail, source_of, whole

MAX_STEPS = 100_000
MAX_DEPTH = 60

_BUILT_IN = ("complex", "float", "int", "bool", "len", "range", "list", "tuple", "min", "max", "abs", "sum", "round")
_ROOTS = ("torch", "nvfuser", "nvfuser_direct", "DataType", "math")


class Expressions:
    """Finds the values of expressions, in the names of one scope; in a fusion, its own names come first."""

    def __init__(self, scope: Scope | None, definition: Definition | None = None) -> None:
        self.scope = scope
        self.definition = definition
        self.names: dict[str, Any] = {}
        self.depth = 0
        self._steps = 0
        self._asked: list[ast.Assign] = []

    def follow(self, node: ast.Call, function: ast.FunctionDef, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What a function of the script's own returns."""
        raise NotImplementedError

    def step(self, node: ast.AST) -> None:
        """Count what is done: a script may loop."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            fail(node, f"a fusion of more than {MAX_STEPS:,} steps")

    def value(self, node: ast.expr) -> Any:
        """What an expression stands for; a GraphError names what is not understood."""
        self.step(node)
        find = _EXPRESSIONS.get(type(node))
        if find is None:
            fail(node, f"{source_of(node)} is not understood")
        self.depth += 1
        if self.depth > MAX_DEPTH:
            fail(node, f"expressions nested deeper than {MAX_DEPTH}")
        try:
            return find(self, node)
        except _WRONG as error:
            fail(node, f"{source_of(node)}: {_reason(error)}")
        finally:
            self.depth -= 1

    def _name(self, node: ast.Name) -> Any:
        name = node.id
        if name in self.names:
            return self.names[name]
        scope = self.scope
        while scope is not None:
            statement = scope.assignment(name, node.lineno)
            if statement is not None:
                return self._assigned(statement, name, scope)
            if name in scope.functions:
                return scope.functions[name]
            if name in scope.modules:
                return Name(scope.modules[name])
            scope = scope.parent
        if name not in _BUILT_IN and name not in _ROOTS:
            fail(node, f"the name {name!r} is not known")
        return Name(name)

    def _assigned(self, statement: ast.Assign, name: str, scope: Scope) -> Any:
        if name in scope.changed:
            fail(statement, f"{name!r} is changed after it is made, which is not followed outside a fusion")
        if statement in self._asked:
            fail(statement, f"{name!r} stands for itself")
        # names of the fusion mean nothing to what stands outside it
        self._asked.append(statement)
        inner = type(self)(scope)
        inner._asked, inner.depth, inner._steps = self._asked, self.depth, self._steps
        try:
            value = inner.value(statement.value)
            for target in statement.targets:
                inner.bind(target, value)
            return inner.names[name]
        finally:
            self._asked.pop()
            self._steps = inner._steps

    def _attribute(self, node: ast.Attribute) -> Any:
        dotted = ast.unparse(node)
        return self.names[dotted] if dotted in self.names else attribute(self.value(node.value), node.attr)

    def _subscript(self, node: ast.Subscript) -> Any:
        items = self.value(node.value)
        if not isinstance(items, (list, tuple)):
            fail(node, f"{source_of(node)} takes a part of something that is no list")
        if isinstance(node.slice, ast.Slice):
            parts = (node.slice.lower, node.slice.upper, node.slice.step)
            return items[slice(*(None if part is None else self.value(part) for part in parts))]
        index = self.value(node.slice)
        return items[whole(index)]

    def _list(self, node: ast.List | ast.Tuple) -> Any:
        items: list[Any] = []
        for part in node.elts:
            if isinstance(part, ast.Starred):
                items.extend(self.value(part.value))
            else:
                items.append(self.value(part))
        return items if isinstance(node, ast.List) else tuple(items)

    def _computed(self, node: ast.BinOp | ast.UnaryOp | ast.Compare) -> Any:
        kinds: list[type[ast.AST]] = [type(kind) for kind in (node.ops if isinstance(node, ast.Compare) else [node.op])]
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        else:
            parts = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.operand]
        values = [self.value(part) for part in parts]
        if len(kinds) != 1 or kinds[0] not in OPERATORS:
            fail(node, f"{source_of(node)} is not understood")
        if all(is_plain(value) for value in values):
            return computed(kinds[0], values)
        op = OPERATORS[kinds[0]].op
        if self.definition is None or op is None or any(isinstance(value, Example) for value in values):
            fail(node, f"{source_of(node)} is not understood")
        return call(self.definition, OpName(op), values, {})

    def _either(self, node: ast.BoolOp) -> Any:
        value: Any = None
        for part in node.values:
            value = self.value(part)
            if bool(value) != isinstance(node.op, ast.And):
                break
        return value

    def _chosen(self, node: ast.IfExp) -> Any:
        return self.value(node.body if self.value(node.test) else node.orelse)

    def _named(self, node: ast.NamedExpr) -> Any:
        value = self.value(node.value)
        self.bind(node.target, value)
        return value

    def _each(self, node: ast.ListComp) -> list[Any]:
        """A list made by one loop, such as `[torch.randn(4) for _ in range(2)]`."""
        loop = node.generators[0]
        items = self.value(loop.iter)
        if len(node.generators) != 1 or loop.ifs or not isinstance(items, (list, tuple, range)):
            fail(node, f"{source_of(node)} is not understood")
        made = []
        for item in items:
            self.bind(loop.target, item)
            made.append(self.value(node.elt))
        return made

    def called(self, node: ast.Call, only_first: bool = False) -> Any:
        """The result of a call; with `only_first`, of several results none but the first is wanted."""
        self.step(node)
        function = self.value(node.func)
        args: list[Any] = []
        for arg in node.args:
            args.extend(self.value(arg.value)) if isinstance(arg, ast.Starred) else args.append(self.value(arg))
        if any(keyword.arg is None for keyword in node.keywords):
            fail(node, "**keywords are not understood")
        kwargs = {str(keyword.arg): self.value(keyword.value) for keyword in node.keywords}
        check_size([*args, *kwargs.values()])
        if isinstance(function, ast.FunctionDef):
            return self.follow(node, function, args, kwargs)
        if only_first and isinstance(function, (OpName, Method)) and function.name == "sdpfa_fwd":
            kwargs["only_result"] = True
        try:
            return call(self.definition, function, args, kwargs)
        except _WRONG as error:
            fail(node, f"{source_of(node.func)}: {_reason(error)}")

    # names

    def bind(self, target: ast.expr, value: Any) -> None:
        """Give a value its name, or its names."""
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, ast.Subscript) and isinstance(items := self.value(target.value), list):
            items[whole(self.value(target.slice))] = value
        elif isinstance(target, ast.Attribute):
            self.names[ast.unparse(target)] = value
        elif isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (list, tuple)):
            self._unpack(target, value)
        else:
            fail(target, f"{source_of(target)} is not understood as a target")

    def _unpack(self, target: ast.Tuple | ast.List, value: Sequence[Any]) -> None:
        parts = target.elts
        starred = [i for i, part in enumerate(parts) if isinstance(part, ast.Starred)]
        if len(value) < len(parts) - len(starred) or (not starred and len(value) != len(parts)):
            fail(target, f"{len(value)} values for {len(parts)} names")
        for i, part in enumerate(parts):
            if isinstance(part, ast.Starred):
                self.bind(part.value, list(value[i : len(value) - (len(parts) - i - 1)]))
            else:
                self.bind(part, value[i if not starred or i < starred[0] else i - len(parts)])


_WRONG = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError, RuntimeError)
"""What torch and Python raise at arguments that do not fit; NotImplementedError is one of them."""


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


_EXPRESSIONS: Mapping[type[ast.expr], Callable[[Any, Any], Any]] = {
    ast.Constant: lambda _, node: node.value,
    ast.Name: Expressions._name,
    ast.Attribute: Expressions._attribute,
    ast.Subscript: Expressions._subscript,
    ast.List: Expressions._list,
    ast.Tuple: Expressions._list,
    ast.Set: lambda self, node: self._list(ast.Tuple(node.elts, ast.Load())),
    ast.BinOp: Expressions._computed,
    ast.UnaryOp: Expressions._computed,
    ast.Compare: Expressions._computed,
    ast.BoolOp: Expressions._either,
    ast.IfExp: Expressions._chosen,
    ast.NamedExpr: Expressions._named,
    ast.ListComp: Expressions._each,
    ast.Call: Expressions.called,
}
