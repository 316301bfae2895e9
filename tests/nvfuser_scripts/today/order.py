import torch
from nvfuser_direct import FusionDefinition, DataType
def nvfuser_fusion(fd : FusionDefinition) -> None :
    x = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float, is_cpu=False)
    k = fd.define_scalar(3, dtype=DataType.Int)
    values, indices = fd.ops.topk(x, k, dim=-1, largest=True, sorted=True)
    fd.add_output(values)
    fd.add_output(indices)
    fd.add_output(fd.ops.argsort(x, dim=1, descending=True, stable=True))
    fd.add_output(fd.ops.cumsum(x, 1))
with FusionDefinition() as fd:
    nvfuser_fusion(fd)

inputs = [torch.randn(5, 11, device='cuda:0')]
fd.execute(inputs)
