import torch
from nvfuser_direct import FusionDefinition, DataType
def nvfuser_fusion(fd : FusionDefinition) -> None :
    T0 = fd.define_tensor(shape=[2, 4, 32, 16], contiguity=[True, True, True, True], dtype=DataType.BFloat16, is_cpu=False, stride_order=[3, 1, 2, 0])
    T1 = fd.define_tensor(shape=[1, -1, -1], contiguity=[None, True, True], dtype=DataType.Float, is_cpu=False)
    T2 = fd.define_tensor(shape=[32, 16], contiguity=[True, True], dtype=DataType.Float, is_cpu=False)
    T3 = fd.ops.slice(T0, start_indices=[0, 0, 0, 0], end_indices=[2, 4, 32, 8], strides=[1, 1, 1, 1], manual_normalization=0)
    T4 = fd.ops.slice(T0, start_indices=[0, 0, 0, 8], end_indices=[2, 4, 32, 16], strides=[1, 1, 1, 1], manual_normalization=0)
    T5 = fd.ops.cast(T4, dtype=DataType.Float)
    T6 = fd.ops.cast(fd.ops.neg(T5), dtype=DataType.BFloat16)
    T7 = fd.ops.cat([T6, T3], dim=-1, manual_padding=0)
    T8 = fd.ops.broadcast_in_dim(T1, shape=[1, 1, 32, 16], broadcast_dims=[0, 2, 3])
    T9 = fd.ops.broadcast_in_dim(T8, shape=[2, 4, 32, 16], broadcast_dims=[0, 1, 2, 3])
    T10 = fd.ops.broadcast_in_dim(T2, shape=[2, 4, 32, 16], broadcast_dims=[2, 3])
    T11 = fd.ops.mul(fd.ops.cast(T0, dtype=DataType.Float), T9)
    T12 = fd.ops.mul(fd.ops.cast(T7, dtype=DataType.Float), T10)
    T13 = fd.ops.cast(fd.ops.add(T11, T12), dtype=DataType.BFloat16)
    fd.add_output(T13)
with FusionDefinition() as fd:
    nvfuser_fusion(fd)

inputs = [
    torch.randn(4096, dtype=torch.bfloat16, device='cuda:0').as_strided((2, 4, 32, 16), (2048, 16, 64, 1)),
    torch.testing.make_tensor((1, 32, 16), dtype=torch.float32, device='cuda:0'),
    torch.testing.make_tensor((32, 16), dtype=torch.float32, device='cuda:0'),
]
fd.execute(inputs)
