import torch
from nvfuser_direct import FusionDefinition, DataType
def nvfuser_fusion(fd : FusionDefinition) -> None :
    x = fd.define_tensor(shape=[-1, -1, -1, -1], contiguity=[True, True, True, True], dtype=DataType.Half, is_cpu=False, stride_order=[3, 0, 2, 1])
    scale = fd.define_tensor(shape=[-1], contiguity=[True], dtype=DataType.Float, is_cpu=False)
    bias = fd.define_tensor(shape=[-1], contiguity=[True], dtype=DataType.Float, is_cpu=False)
    wide = fd.ops.cast(x, dtype=DataType.Float)
    shape = [4, 6, 5, 5]
    scaled = fd.ops.mul(wide, fd.ops.broadcast_in_dim(scale, shape=shape, broadcast_dims=[1]))
    moved = fd.ops.add(scaled, fd.ops.broadcast_in_dim(bias, shape=shape, broadcast_dims=[1]))
    fd.add_output(fd.ops.cast(fd.ops.relu(moved), dtype=DataType.Half))
    fd.add_output(fd.ops.sum(wide, dims=[0, 2, 3]))
with FusionDefinition() as fd:
    nvfuser_fusion(fd)

inputs = [
    torch.randn(600, dtype=torch.float16, device='cuda:0').as_strided((4, 6, 5, 5), (150, 1, 30, 6)),
    torch.testing.make_tensor((6,), dtype=torch.float32, device='cuda:0'),
    torch.testing.make_tensor((6,), dtype=torch.float32, device='cuda:0'),
]
fd.execute(inputs)
