"""The text of a script: parsed, never executed; which fusions it defines, and the inputs that it runs each on."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fuseplan.capture.nvfuser_script.scope import Scope, flat
from fuseplan.capture.nvfuser_script.words import fail
from fuseplan.errors import GraphError

MAX_TEXT = 2**20
"""Characters of a script; all fusions together that nvFuser keeps as reported have 0.2 million."""
MAX_NODES = 500_000

_IMPORTS = frozenset(
    "torch nvfuser nvfuser_direct nvfuser_next __future__ typing math functools itertools collections dataclasses copy"
    " enum time random numpy pytest unittest warnings thunder".split()
)
"""What a script may import. Nothing of it is run, but one that imports more is more than a fusion and its inputs."""

_RUNS = ("execute", "run", "exec_nvfuser", "validate")


@dataclass(eq=False)
class ScriptFusion:
    """One definition: its statements, the name of the FusionDefinition in them, and what it is run on."""

    scope: Scope
    body: Sequence[ast.stmt]
    handle: str
    line: int
    called: frozenset[str]
    """By which names the script runs it: of the FusionDefinition, of the old frontend's Fusion, of the function."""
    defaults: ast.FunctionDef | None = None


def parse(text: str) -> ast.Module:
    """The tree of a script; a GraphError where it is none, or one that does more than define fusions."""
    if len(text) > MAX_TEXT:
        raise GraphError(f"a script of {len(text):,} characters; at most {MAX_TEXT:,} are read")
    try:
        tree = ast.parse(text.removeprefix("\ufeff"))
    except SyntaxError as error:
        raise GraphError(f"line {error.lineno or 1}, column {error.offset or 1}: no Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise GraphError(
            f"no Python that can be read: {(str(error) or type(error).__name__).splitlines()[0]}"
        ) from None
    for count, node in enumerate(ast.walk(tree)):
        if count > MAX_NODES:
            raise GraphError(f"a script of more than {MAX_NODES:,} expressions")
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            _check_import(node)
    return tree


def _check_import(node: ast.Import | ast.ImportFrom) -> None:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or "."]
    for name in names:
        if name.split(".")[0] not in _IMPORTS:
            fail(
                node, f"it imports {name!r}; a script that is read may import torch, nvfuser and a few of Python's own"
            )


def fusions(tree: ast.Module) -> list[ScriptFusion]:
    """All that a script defines, in order."""
    found = list(_in_scope(Scope(tree.body)))
    return sorted(found, key=lambda fusion: fusion.line)


def _in_scope(scope: Scope) -> Iterator[ScriptFusion]:
    inlined = set()
    for statement in flat(scope.body):
        if isinstance(statement, ast.With) and (fusion := _block(scope, statement)):
            inlined |= _called_in(statement.body)
            yield fusion
    for statement in flat(scope.body):
        if isinstance(statement, ast.ClassDef):
            yield from _in_class(scope, statement)
        elif isinstance(statement, ast.FunctionDef) and statement.name not in inlined:
            handle = _handle_of(statement)
            if handle is not None:
                called = frozenset((statement.name, *_made_of(scope, statement.name)))
                yield ScriptFusion(scope, statement.body, handle, statement.lineno, called, statement)
            else:
                yield from _in_scope(Scope(statement.body, scope))
    bare = [statement for statement in scope.body if _defines(statement, "fd")]
    if bare and scope.parent is None:
        yield ScriptFusion(scope, bare, "fd", bare[0].lineno, frozenset({"fd"}))


def _in_class(scope: Scope, node: ast.ClassDef) -> Iterator[ScriptFusion]:
    """A subclass of FusionDefinition, or a class of tests."""
    methods = {method.name: method for method in node.body if isinstance(method, ast.FunctionDef)}
    if any("FusionDefinition" in ast.unparse(base) for base in node.bases) and "definition" in methods:
        handle = methods["definition"].args.args[0].arg
        yield ScriptFusion(
            scope, methods["definition"].body, handle, node.lineno, frozenset(_made_of(scope, node.name))
        )
    else:
        yield from _in_scope(Scope(node.body, scope))


def _block(scope: Scope, node: ast.With) -> ScriptFusion | None:
    """`with FusionDefinition(...) as fd:`, or with a FusionDefinition that was made before."""
    context, target = node.items[0].context_expr, node.items[0].optional_vars
    made = scope.assignment(context.id, node.lineno) if isinstance(context, ast.Name) else None
    new = context if made is None else made.value
    if not isinstance(new, ast.Call) or _last(new.func) != "FusionDefinition":
        return None
    target = context if target is None else target
    if not isinstance(target, ast.Name):
        return None
    known = any(_is_known(scope, name) for name in _called_in(node.body))
    if not known and not any(_defines(statement, target.id) for statement in flat(node.body)):
        return None  # a helper, that is given the function that defines it
    owners = {arg.id for arg in new.args if isinstance(arg, ast.Name)}
    return ScriptFusion(
        scope, node.body, target.id, node.lineno, frozenset({target.id, *owners, *_called_in(node.body)})
    )


def _handle_of(function: ast.FunctionDef) -> str | None:
    """The parameter that a function defines its fusion on, if it does so."""
    for parameter in function.args.args:
        annotated = parameter.annotation is not None and "FusionDefinition" in ast.unparse(parameter.annotation)
        if (annotated or parameter.arg == "fd") and _adds_output(function, parameter.arg):
            return parameter.arg
    return None


def _adds_output(function: ast.FunctionDef, handle: str) -> bool:
    """Whether it is a whole fusion, and no helper of one."""
    names = (node for node in ast.walk(function) if isinstance(node, ast.Attribute) and node.attr == "add_output")
    return any(isinstance(name.value, ast.Name) and name.value.id == handle for name in names)


def _defines(statement: ast.stmt, handle: str) -> bool:
    """Whether it says `fd.something(...)` of this fd, other than that it be run."""
    value = statement.value if isinstance(statement, (ast.Assign, ast.Expr)) else None
    function = value.func if isinstance(value, ast.Call) else None
    if not isinstance(function, ast.Attribute) or function.attr in _RUNS:
        return False
    owner = function.value.value if isinstance(function.value, ast.Attribute) else function.value
    return isinstance(owner, ast.Name) and owner.id == handle


def run_on(fusion: ScriptFusion) -> ast.expr | None:
    """The list of inputs that the script runs a fusion on, if it says so."""
    runs = [
        (node, _argument(node))
        for statement in fusion.scope.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and _last(node.func) in _RUNS and _argument(node) is not None
    ]
    for node, argument in runs:
        named = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        if named & fusion.called and node.lineno >= fusion.line:
            return argument
    return ast.Name("inputs", ast.Load(), lineno=fusion.line, col_offset=0) if _gives_inputs(fusion.scope) else None


def _gives_inputs(scope: Scope | None) -> bool:
    return scope is not None and ("inputs" in scope.assigned or _gives_inputs(scope.parent))


def _argument(node: ast.Call) -> ast.expr | None:
    place = 1 if _last(node.func) == "exec_nvfuser" else 0
    named = [keyword.value for keyword in node.keywords if keyword.arg == "inputs"]
    return next(iter((*node.args[place : place + 1], *named)), None)


def _made_of(scope: Scope, name: str) -> set[str]:
    """The variables that hold what a function or class made."""
    return {
        variable
        for variable, statements in scope.assigned.items()
        for statement in statements
        if name in {part.id for part in ast.walk(statement.value) if isinstance(part, ast.Name)}
    }


def _is_known(scope: Scope | None, function: str) -> bool:
    return scope is not None and (function in scope.functions or _is_known(scope.parent, function))


def _called_in(body: Sequence[ast.stmt]) -> set[str]:
    calls = (node for statement in body for node in ast.walk(statement) if isinstance(node, ast.Call))
    return {call.func.id for call in calls if isinstance(call.func, ast.Name)}


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
