import torch
from nvfuser_direct import FusionDefinition, DataType
def nvfuser_fusion(fd : FusionDefinition) -> None :
    q = fd.define_tensor(shape=[2, 4, 16, 32], contiguity=[True, True, True, True], dtype=DataType.BFloat16, is_cpu=False)
    k = fd.define_tensor(shape=[2, 4, 24, 32], contiguity=[True, True, True, True], dtype=DataType.BFloat16, is_cpu=False)
    v = fd.define_tensor(shape=[2, 4, 24, 32], contiguity=[True, True, True, True], dtype=DataType.BFloat16, is_cpu=False)
    s = fd.ops.cast(fd.ops.matmul(q, fd.ops.permute(k, dims=[0, 1, 3, 2])), dtype=DataType.Float)
    s = fd.ops.mul(s, fd.define_scalar(0.176777, dtype=DataType.Double))
    m = fd.ops.max(s, dims=[3], keepdim=False, dtype=DataType.Null)
    m = fd.ops.broadcast_in_dim(m, shape=[2, 4, 16, 1], broadcast_dims=[0, 1, 2])
    m = fd.ops.broadcast_in_dim(m, shape=[2, 4, 16, 24], broadcast_dims=[0, 1, 2, 3])
    e = fd.ops.exp(fd.ops.sub(s, m))
    t = fd.ops.sum(e, dims=[3], keepdim=False, dtype=DataType.Null)
    t = fd.ops.broadcast_in_dim(t, shape=[2, 4, 16, 1], broadcast_dims=[0, 1, 2])
    t = fd.ops.broadcast_in_dim(t, shape=[2, 4, 16, 24], broadcast_dims=[0, 1, 2, 3])
    p = fd.ops.cast(fd.ops.mul(e, fd.ops.reciprocal(t)), dtype=DataType.BFloat16)
    fd.add_output(fd.ops.matmul(p, v))
with FusionDefinition() as fd:
    nvfuser_fusion(fd)

inputs = [
    torch.randn(2, 4, 16, 32, dtype=torch.bfloat16, device='cuda:0'),
    torch.randn(2, 4, 24, 32, dtype=torch.bfloat16, device='cuda:0'),
    torch.randn(2, 4, 24, 32, dtype=torch.bfloat16, device='cuda:0'),
]
fd.execute(inputs)
