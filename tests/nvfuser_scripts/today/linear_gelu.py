import torch
from nvfuser_direct import FusionDefinition, DataType
def nvfuser_fusion(fd : FusionDefinition) -> None :
    x = fd.define_tensor(shape=[-1, -1, -1], contiguity=[True, True, True], dtype=DataType.BFloat16, is_cpu=False)
    w = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.BFloat16, is_cpu=False)
    b = fd.define_tensor(shape=[-1], contiguity=[True], dtype=DataType.BFloat16, is_cpu=False)
    v = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.BFloat16, is_cpu=False, stride_order=[0, 1])
    h = fd.ops.cast(fd.ops.linear(x, w, b), dtype=DataType.Float)
    cube = fd.ops.mul(fd.ops.mul(h, h), h)
    inner = fd.ops.add(h, fd.ops.mul(fd.define_scalar(0.044715), cube))
    t = fd.ops.tanh(fd.ops.mul(fd.define_scalar(0.797885), inner))
    y = fd.ops.mul(fd.ops.mul(fd.define_scalar(0.5), h), fd.ops.add(fd.define_scalar(1.0), t))
    fd.add_output(fd.ops.matmul(fd.ops.cast(y, dtype=DataType.BFloat16), v))
with FusionDefinition() as fd:
    nvfuser_fusion(fd)

inputs = [
    torch.randn(2, 16, 32, dtype=torch.bfloat16, device='cuda:0'),
    torch.randn(64, 32, dtype=torch.bfloat16, device='cuda:0'),
    torch.randn(64, dtype=torch.bfloat16, device='cuda:0'),
    torch.randn(1536, dtype=torch.bfloat16, device='cuda:0').as_strided((64, 24), (1, 64)),
]
fd.execute(inputs)
