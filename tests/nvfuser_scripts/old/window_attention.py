import torch
from torch._C._nvfuser import FusionDefinition, DataType

def nvfuser_fusion(fd : FusionDefinition) -> None :
    T0 = fd.define_tensor(symbolic_sizes=[-1, -1, -1], contiguous=[False, False, False], dtype=DataType.Float)
    T1 = fd.define_tensor(symbolic_sizes=[-1, -1, -1], contiguous=[True, False, True], dtype=DataType.Float)
    T2 = fd.ops.set(T0)
    T3 = fd.ops.set(T0)
    T4, T5 = fd.ops.var_mean(T2, axes=[2], correction=0, keepdim=False)
    T6 = fd.ops.view(T3, original_shape=[12, 16, 24], new_shape=[4, 12, 96])
    T7, T8 = fd.ops.var_mean(T6, axes=[2], correction=0, keepdim=False)
    T9 = fd.ops.broadcast_in_dim(T5, output_shape=[12, 16, 1], broadcast_dims=[0, 1])
    T10 = fd.ops.broadcast_in_dim(T9, output_shape=[12, 16, 24], broadcast_dims=[0, 1, 2])
    T11 = fd.ops.sub(T1, T10)
    fd.add_output(T4)
    fd.add_output(T7)
    fd.add_output(T8)
    fd.add_output(T11)
