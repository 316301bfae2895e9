import torch
from nvfuser_direct import FusionDefinition, DataType
def nvfuser_fusion(fd : FusionDefinition) -> None :
    S0 = fd.define_scalar(None, dtype=DataType.Double)
    T1 = fd.define_tensor(shape=[-1, -1, -1, -1], contiguity=[None, None, True, True], dtype=DataType.Float, is_cpu=False)
    T2 = fd.define_tensor(shape=[-1, -1, -1, -1], contiguity=[True, True, True, True], dtype=DataType.Float, is_cpu=False)
    T3 = fd.ops.mul(T2, S0)
    T4 = fd.ops.slice(T3, start_indices=[0, 0, 0, 0], end_indices=[5, 4, 5, 4], strides=[1, 1, 1, 1])
    T5 = fd.ops.slice(T3, start_indices=[0, 0, 0, 4], end_indices=[5, 4, 5, 16], strides=[1, 1, 1, 1])
    S6 = fd.define_scalar(0.00000, dtype=DataType.Double)
    T7 = fd.ops.pad(T5, [4, 0, 0, 0, 0, 0, 0, 0], S6)
    T8 = fd.ops.mul(T4, T1)
    T9 = fd.ops.neg(fd.ops.slice(T8, start_indices=[0, 0, 0, 0], end_indices=[5, 4, 5, 2], strides=[1, 1, 1, 1]))
    T10 = fd.ops.pad(T9, [2, 0], S6)
    T11 = fd.ops.pad(fd.ops.add(T8, T10), [0, 12, 0, 0, 0, 0, 0, 0])
    fd.add_output(fd.ops.add(T7, T11))
    fd.add_output(fd.ops.permute(T3, dims=[0, 1, 3, 2]))
with FusionDefinition() as fd:
    nvfuser_fusion(fd)

inputs = [
    0.5,
    torch.randn(20, dtype=torch.float32, device='cuda:0').as_strided((5, 4, 5, 4), (0, 0, 4, 1)),
    torch.randn((1600,), dtype=torch.float32, device='cuda:0').as_strided((5, 4, 5, 16), (320, 80, 16, 1)),
]
fd.execute(inputs)
