"""Sizes of a dynamic region as nvFuser sees them: ints, or values computed from the sizes of its inputs."""

from __future__ import annotations

import ast
from typing import Any

from fuseplan.errors import UnsupportedError
from fuseplan.graph import Dim

_CALLS = {"FloorDiv": "div", "CleanDiv": "div", "Mod": "mod", "PythonMod": "mod", "Max": "maximum", "Min": "minimum"}
_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.FloorDiv: "div",  # sizes are not negative, so that rounding to zero is rounding down
    ast.Mod: "mod",
}


class Sizes:
    """Gives the extent for each written size of a region."""

    def __init__(self, ops: Any) -> None:
        self._ops = ops
        self._known: dict[str, Any] = {}

    def learn(self, written: str, value: Any) -> None:
        """Note that nvFuser's `value` is the size written so; the first one stays."""
        self._known.setdefault(written, value)

    def __call__(self, dim: Dim) -> Any:
        if isinstance(dim, int):
            return dim
        if dim not in self._known:
            self._known[dim] = self._evaluate(ast.parse(dim, mode="eval").body)
        return self._known[dim]

    def _evaluate(self, node: ast.expr) -> Any:
        written = ast.unparse(node)
        if written in self._known:
            return self._known[written]
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            return self._apply(_BINARY[type(node.op)], node.left, node.right)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return self._ops.neg(self._evaluate(node.operand))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 2:
            if node.func.id not in _CALLS:
                raise UnsupportedError(f"nvfuser cannot compute {node.func.id} of sizes")
            return self._apply(_CALLS[node.func.id], *node.args)
        raise UnsupportedError(f"nvfuser cannot compute the size {written} from the inputs of the region")

    def _apply(self, name: str, left: ast.expr, right: ast.expr) -> Any:
        return getattr(self._ops, name)(self._evaluate(left), self._evaluate(right))
