import torch
from nvfuser_direct import FusionDefinition, DataType
def nvfuser_fusion(fd : FusionDefinition) -> None :
    base = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float, is_cpu=False, stride_order=[1, 0])
    index = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Int, is_cpu=False, stride_order=[1, 0])
    source = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float, is_cpu=False, stride_order=[1, 0])
    fd.add_output(fd.ops.sigmoid(fd.ops.scatter(base, index, source, 1)))
with FusionDefinition() as fd:
    nvfuser_fusion(fd)

inputs = [
    torch.randn(4, 10, device="cuda"),
    torch.arange(10, device="cuda").expand(4, 10).contiguous(),
    torch.randn(4, 10, device="cuda"),
]
fd.execute(inputs)
