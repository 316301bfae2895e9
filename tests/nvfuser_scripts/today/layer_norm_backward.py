import torch
from nvfuser_direct import FusionDefinition, DataType
def nvfuser_fusion(fd : FusionDefinition) -> None :
    x = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Half, is_cpu=False)
    grad = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Half, is_cpu=False)
    mean = fd.define_tensor(shape=[-1], contiguity=[True], dtype=DataType.Float, is_cpu=False)
    rstd = fd.define_tensor(shape=[-1, 1], contiguity=[True, None], dtype=DataType.Float, is_cpu=False)
    weight = fd.define_tensor(shape=[-1], contiguity=[True], dtype=DataType.Half, is_cpu=False)
    x = fd.ops.cast(x, dtype=DataType.Float)
    grad = fd.ops.cast(grad, dtype=DataType.Float)
    weight = fd.ops.cast(weight, dtype=DataType.Float)
    rows = [fd.ops.size(x, dim=0), fd.ops.size(x, dim=1)]
    mean = fd.ops.broadcast_in_dim(mean, shape=rows, broadcast_dims=[0])
    rstd = fd.ops.broadcast_in_dim(rstd, shape=rows, broadcast_dims=[0, 1])
    normed = fd.ops.mul(fd.ops.sub(x, mean), rstd)
    scaled = fd.ops.mul(grad, fd.ops.broadcast_in_dim(weight, shape=rows, broadcast_dims=[1]))
    first = fd.ops.sum(scaled, dims=[1], keepdim=True, dtype=DataType.Null)
    second = fd.ops.sum(fd.ops.mul(scaled, normed), dims=[1], keepdim=True, dtype=DataType.Null)
    width = fd.ops.size(x, dim=1)
    centre = fd.ops.div(first, width)
    slope = fd.ops.mul(normed, fd.ops.div(second, width))
    dx = fd.ops.mul(fd.ops.sub(fd.ops.sub(scaled, centre), slope), rstd)
    fd.add_output(fd.ops.cast(dx, dtype=DataType.Half))
    fd.add_output(fd.ops.cast(fd.ops.sum(fd.ops.mul(grad, normed), dims=[0]), dtype=DataType.Half))
    fd.add_output(fd.ops.cast(fd.ops.sum(grad, dims=[0]), dtype=DataType.Half))
with FusionDefinition() as fd:
    nvfuser_fusion(fd)

inputs = [
    torch.randn(32, 48, dtype=torch.float16, device='cuda:0'),
    torch.randn(32, 48, dtype=torch.float16, device='cuda:0'),
    torch.randn(32, dtype=torch.float32, device='cuda:0'),
    torch.rand(32, 1, dtype=torch.float32, device='cuda:0'),
    torch.randn(48, dtype=torch.float16, device='cuda:0'),
]
fd.execute(inputs)
