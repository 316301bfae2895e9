"""Follows the statements of a fusion, one by one: a closed set of Python, in which nothing but ops and sizes is computed."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fuseplan.capture.nvfuser_script.calls import Method, Op, attribute, call
from fuseplan.capture.nvfuser_script.definition import Definition
from fuseplan.capture.nvfuser_script.numbers import OPERATORS, computed, is_plain
from fuseplan.capture.nvfuser_script.source import Scope
from fuseplan.capture.nvfuser_script.words import Example, Name, Number, Value, fail, source_of, whole
from fuseplan.errors import GraphError

MAX_STEPS = 100_000
_MAX_DEPTH = 60

_BUILT_IN = ("complex", "float", "int", "bool", "len", "range", "list", "tuple", "min", "max", "abs", "sum", "round")
_ROOTS = ("torch", "nvfuser", "nvfuser_direct", "DataType", "math")


class Interpreter:
    """Values of expressions, in the names of one scope; in a fusion, its names come first."""

    def __init__(self, scope: Scope | None, definition: Definition | None = None) -> None:
        self.scope = scope
        self.definition = definition
        self.names: dict[str, Any] = {}
        self.loaded: frozenset[str] = frozenset()
        """Names that are read anywhere: results that are not read are not computed."""
        self._steps = self._depth = 0
        self._asked: list[ast.Assign] = []

    # statements

    def run(self, body: Sequence[ast.stmt]) -> None:
        """Follow statements; a GraphError names the first that is not understood."""
        for statement in body:
            self._step(statement)
            run = _STATEMENTS.get(type(statement))
            if run is None:
                fail(statement, f"{_word(statement)} is not understood in a fusion")
            run(self, statement)

    def _step(self, node: ast.AST) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            fail(node, f"a fusion of more than {MAX_STEPS:,} steps")

    def _assign(self, statement: ast.Assign) -> None:
        targets = statement.targets[0]
        if isinstance(targets, (ast.Tuple, ast.List)) and isinstance(statement.value, ast.Call):
            read = [name in self.loaded for name in (_target_name(part) for part in targets.elts)]
            value = self._call(statement.value, only_first=not any(read[1:]))
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
        if isinstance(test, Value):
            fail(statement.test, "a condition on a tensor")
        self.run(statement.body if (test.value if isinstance(test, Number) else test) else statement.orelse)

    def _for(self, statement: ast.For) -> None:
        items = self.value(statement.iter)
        if not isinstance(items, (list, tuple, range)) or statement.orelse:
            fail(statement, "a loop over something that is no list")
        for item in items:
            self._step(statement)
            self.bind(statement.target, item)
            self.run(statement.body)

    def bind(self, target: ast.expr, value: Any) -> None:
        """Give a value its name, or its names."""
        if isinstance(target, ast.Name):
            self.names[target.id] = value
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

    # expressions

    def value(self, node: ast.expr) -> Any:
        """What an expression stands for; a GraphError names what is not understood."""
        self._step(node)
        find = _EXPRESSIONS.get(type(node))
        if find is None:
            fail(node, f"{source_of(node)} is not understood")
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            fail(node, f"expressions nested deeper than {_MAX_DEPTH}")
        try:
            return find(self, node)
        except GraphError:
            raise
        except (ArithmeticError, AttributeError, KeyError, LookupError, TypeError, ValueError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
            fail(node, f"{source_of(node)}: {reason[0][:200]}")
        finally:
            self._depth -= 1

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
        if statement in self._asked:
            fail(statement, f"{name!r} stands for itself")
        # names of the fusion mean nothing to what stands outside it
        self._asked.append(statement)
        inner = Interpreter(scope)
        inner._asked, inner._depth, inner._steps = self._asked, self._depth, self._steps
        try:
            value = inner.value(statement.value)
            for target in statement.targets:
                inner.bind(target, value)
            return inner.names[name]
        finally:
            self._asked.pop()

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
        return call(self.definition, Op(op), values, {})

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

    def _call(self, node: ast.Call, only_first: bool = False) -> Any:
        self._step(node)
        function = self.value(node.func)
        args: list[Any] = []
        for arg in node.args:
            args.extend(self.value(arg.value)) if isinstance(arg, ast.Starred) else args.append(self.value(arg))
        if any(keyword.arg is None for keyword in node.keywords):
            fail(node, "**keywords are not understood")
        kwargs = {str(keyword.arg): self.value(keyword.value) for keyword in node.keywords}
        if isinstance(function, ast.FunctionDef):
            return self._inlined(node, function, args, kwargs)
        if only_first and isinstance(function, (Op, Method)) and function.name == "sdpfa_fwd":
            kwargs["only_result"] = True
        try:
            return call(self.definition, function, args, kwargs)
        except GraphError:
            raise
        except _WRONG as error:
            reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
            fail(node, f"{source_of(node.func)}: {reason[0][:200]}")

    def _inlined(
        self, node: ast.Call, function: ast.FunctionDef, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """A function of the script's own, followed where it is called."""
        outer, names = self.names, parameters(self, node, function, args, kwargs)
        self._depth += 5
        if self._depth > _MAX_DEPTH:
            fail(node, f"calls nested deeper than {_MAX_DEPTH // 5}")
        self.names = names
        try:
            last = function.body[-1]
            ends = isinstance(last, ast.Return)
            self.run(function.body[:-1] if ends else function.body)
            return self.value(last.value) if isinstance(last, ast.Return) and last.value is not None else None
        finally:
            self.names = outer
            self._depth -= 5


_WRONG = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError, RuntimeError)
"""What torch and Python raise at arguments that do not fit; NotImplementedError is one of them."""


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
_EXPRESSIONS: Mapping[type[ast.expr], Callable[[Any, Any], Any]] = {
    ast.Constant: lambda _, node: node.value,
    ast.Name: Interpreter._name,
    ast.Attribute: Interpreter._attribute,
    ast.Subscript: Interpreter._subscript,
    ast.List: Interpreter._list,
    ast.Tuple: Interpreter._list,
    ast.Set: lambda self, node: self._list(ast.Tuple(node.elts, ast.Load())),
    ast.BinOp: Interpreter._computed,
    ast.UnaryOp: Interpreter._computed,
    ast.Compare: Interpreter._computed,
    ast.BoolOp: Interpreter._either,
    ast.IfExp: Interpreter._chosen,
    ast.NamedExpr: Interpreter._named,
    ast.ListComp: Interpreter._each,
    ast.Call: Interpreter._call,
}
