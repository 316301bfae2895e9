# CUDA devices:
#  0: NVIDIA H100 80GB HBM3
# torch version: 2.10.0
# cuda version: 13.0
import torch
from nvfuser_direct import FusionDefinition, DataType
def nvfuser_fusion(fd : FusionDefinition) -> None :
    tv0 = fd.define_tensor(shape=[-1, -1, -1], contiguity=[True, True, True], dtype=DataType.BFloat16, is_cpu=False, stride_order=[2, 1, 0])
    tv1 = fd.define_tensor(shape=[-1], contiguity=[True], dtype=DataType.BFloat16, is_cpu=False)
    tv2 = fd.define_tensor(shape=[-1], contiguity=[True], dtype=DataType.BFloat16, is_cpu=False)
    tv3 = fd.ops.cast(tv0, dtype=DataType.Float)
    tv4, tv5 = fd.ops.var_mean(tv3, dims=[2], correction=0, keepdim=False)
    tv6 = fd.ops.broadcast_in_dim(tv4, shape=[4, 16, 1], broadcast_dims=[0, 1])
    tv7 = fd.ops.broadcast_in_dim(tv5, shape=[4, 16, 1], broadcast_dims=[0, 1])
    c0 = fd.define_scalar(1.00000e-05, dtype=DataType.Double)
    tv8 = fd.ops.add(tv6, c0)
    tv9 = fd.ops.rsqrt(tv8)
    tv10 = fd.ops.broadcast_in_dim(tv7, shape=[4, 16, 64], broadcast_dims=[0, 1, 2])
    tv11 = fd.ops.sub(tv3, tv10)
    tv12 = fd.ops.broadcast_in_dim(tv9, shape=[4, 16, 64], broadcast_dims=[0, 1, 2])
    tv13 = fd.ops.mul(tv11, tv12)
    tv14 = fd.ops.broadcast_in_dim(tv1, shape=[4, 16, 64], broadcast_dims=[2])
    tv15 = fd.ops.cast(tv14, dtype=DataType.Float)
    tv16 = fd.ops.mul(tv13, tv15)
    tv17 = fd.ops.broadcast_in_dim(tv2, shape=[4, 16, 64], broadcast_dims=[2])
    tv18 = fd.ops.cast(tv17, dtype=DataType.Float)
    tv19 = fd.ops.add(tv16, tv18)
    tv20 = fd.ops.cast(tv19, dtype=DataType.BFloat16)
    fd.add_output(tv5)
    fd.add_output(tv9)
    fd.add_output(tv20)
with FusionDefinition() as fd:
    nvfuser_fusion(fd)

inputs = [
    torch.testing.make_tensor((4, 16, 64), dtype=torch.bfloat16, device='cuda:0'),
    torch.testing.make_tensor((64,), dtype=torch.bfloat16, device='cuda:0'),
    torch.testing.make_tensor((64,), dtype=torch.bfloat16, device='cuda:0'),
]
fd.execute(inputs)
