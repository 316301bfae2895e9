"""The Graph: fuseplan's one intermediate representation. Imports no torch."""

from fuseplan.graph.graph import Graph
from fuseplan.graph.ir import (
    Alias,
    Arg,
    Constant,
    Dim,
    Enum,
    NoneType,
    Op,
    OpaqueType,
    Ref,
    ScalarType,
    Symbol,
    TensorType,
    Type,
    Value,
)

__all__ = [
    "Alias",
    "Arg",
    "Constant",
    "Dim",
    "Enum",
    "Graph",
    "NoneType",
    "Op",
    "OpaqueType",
    "Ref",
    "ScalarType",
    "Symbol",
    "TensorType",
    "Type",
    "Value",
]
