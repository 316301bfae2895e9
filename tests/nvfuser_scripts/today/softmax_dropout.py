import torch
from nvfuser_direct import FusionDefinition, DataType
def nvfuser_fusion(fd : FusionDefinition) -> None :
    tv0 = fd.define_tensor(shape=[-1, -1, -1, -1], contiguity=[True, True, True, True], dtype=DataType.Float, is_cpu=False)
    tv1 = fd.define_tensor(shape=[-1, 1, 1, -1], contiguity=[True, None, None, True], dtype=DataType.Float, is_cpu=False)
    tv2 = fd.ops.add(tv0, tv1)
    tv3 = fd.ops.max(tv2, dims=[3], keepdim=False, dtype=DataType.Null)
    tv4 = fd.ops.broadcast_in_dim(tv3, shape=[2, 4, 16, 1], broadcast_dims=[0, 1, 2])
    tv5 = fd.ops.broadcast_in_dim(tv4, shape=[2, 4, 16, 32], broadcast_dims=[0, 1, 2, 3])
    tv6 = fd.ops.exp(fd.ops.sub(tv2, tv5))
    tv7 = fd.ops.sum(tv6, dims=[-1], keepdim=True, dtype=DataType.Null)
    tv8 = fd.ops.mul(tv6, fd.ops.reciprocal(tv7))
    c0 = fd.define_scalar(0.00000, dtype=DataType.Double)
    c1 = fd.define_scalar(1.00000, dtype=DataType.Double)
    tv9 = fd.ops.uniform(c0, c1, shape=[2, 4, 16, 32], dtype=DataType.Float)
    c2 = fd.define_scalar(0.900000, dtype=DataType.Double)
    tv10 = fd.ops.lt(tv9, c2)
    tv11 = fd.ops.cast(tv10, dtype=DataType.Float)
    c3 = fd.define_scalar(1.11111, dtype=DataType.Double)
    tv12 = fd.ops.mul(fd.ops.mul(tv8, tv11), c3)
    fd.add_output(tv12)
    fd.add_output(tv10)
with FusionDefinition() as fd:
    nvfuser_fusion(fd)

inputs = [
    torch.randn(2, 4, 16, 32, dtype=torch.float32, device='cuda:0'),
    torch.randn(2, 1, 1, 32, dtype=torch.float32, device='cuda:0'),
]
fd.execute(inputs)
