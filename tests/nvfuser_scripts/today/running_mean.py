import torch
from nvfuser_direct import FusionDefinition, DataType
def nvfuser_fusion(fd : FusionDefinition) -> None :
    tv0 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float, is_cpu=False)
    tv1 = fd.define_tensor(shape=[-1], contiguity=[True], dtype=DataType.Float, is_cpu=False)
    tv2, tv3 = fd.ops.var_mean(tv0, dims=[0], correction=1, keepdim=False)
    keep = fd.define_scalar(0.9, dtype=DataType.Double)
    take = fd.define_scalar(0.1, dtype=DataType.Double)
    tv4 = fd.ops.add(fd.ops.mul(tv1, keep), fd.ops.mul(tv3, take))
    tv5 = fd.ops.sub(tv0, fd.ops.broadcast_in_dim(tv1, shape=[16, 8], broadcast_dims=[1]))
    fd.add_output(tv4, tv1)
    fd.add_output(tv5)
    fd.add_output(tv2)
with FusionDefinition() as fd:
    nvfuser_fusion(fd)

inputs = [
    torch.randn(16, 8, dtype=torch.float32, device='cuda:0'),
    torch.randn(8, dtype=torch.float32, device='cuda:0'),
]
fd.execute(inputs)
