"""What Inductor compiles with on this machine. To ask takes no import of Inductor itself, which a process that only plans never needs."""

from __future__ import annotations

from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.cpu_vec_isa import pick_vec_isa
from torch._inductor.exc import InvalidCxxCompiler
from torch.utils._triton import has_triton


def missing(device_type: str) -> str | None:
    """What Inductor lacks to compile for such a device, in one line, or None."""
    if device_type != "cpu":
        return None if has_triton() else "no Triton that works here: pip install triton"
    try:
        get_cpp_compiler()
    except (InvalidCxxCompiler, RuntimeError):
        return "no C++ compiler: install g++, or name one in the environment variable CXX"
    return None


def missing_for_flex() -> str | None:
    """What flex_attention lacks on this machine's CPU, though Inductor compiles for it, or None."""
    try:
        from torch._inductor.kernel.flex.flex_cpu import check_cpu_supported
    except ImportError as error:
        return f"this torch has no flex attention for the CPU: {error}"
    return None if check_cpu_supported() else "flex attention needs a processor with AVX2, on Linux"


def cpp_compiler() -> str:
    """The C++ compiler that Inductor calls; only where `missing("cpu")` is None."""
    return str(get_cpp_compiler())


def instruction_set() -> str:
    """The vector instructions that Inductor compiles C++ for here. The first call may compile a line to try them."""
    return str(pick_vec_isa())
