"""Small graphs written by hand, so that their bytes can be counted by hand: for the tests of cost models."""

from __future__ import annotations

from fuseplan.graph import Alias, Arg, Dim, Graph, Op, Ref, Symbol, TensorType, Value

Shape = tuple[Dim, ...]


def tensor(*shape: Dim, dtype: str = "float32", stride: Shape | None = None, device: str = "cuda:0") -> TensorType:
    """A tensor, dense unless its strides say otherwise."""
    dense: list[Dim] = [1]
    for size in reversed(shape[1:]):
        last = dense[-1]
        dense.append(size * last if isinstance(size, int) and isinstance(last, int) else f"{size}*{last}")
    return TensorType(dtype, shape, tuple(reversed(dense)) if stride is None else stride, device)


def op(
    target: str, args: tuple[Arg, ...], *outputs: tuple[str, TensorType], view: bool = False, writes: str = ""
) -> Op:
    """One op; words in `args` that begin with % are values."""
    refs = tuple(Ref(arg[1:]) if isinstance(arg, str) and arg.startswith("%") else arg for arg in args)
    values = tuple(Value(name, kind) for name, kind in outputs)
    source = next((ref.name for ref in refs if isinstance(ref, Ref)), "")
    aliases = tuple(Alias(i, source) for i in range(len(values))) if view or writes else ()
    return Op(f"aten.{target}", refs, (), values, aliases, (writes,) if writes else ())


def graph(inputs: dict[str, TensorType], *ops: Op, out: str, symbols: tuple[Symbol, ...] = ()) -> Graph:
    """A valid graph that gives out the values named in `out`."""
    made = Graph(
        tuple(Value(name, kind) for name, kind in inputs.items()),
        ops,
        tuple(Ref(name) for name in out.split()),
        symbols=symbols,
    )
    made.validate()
    return made
