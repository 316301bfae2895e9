import torch
from nvfuser_direct import FusionDefinition, DataType
def nvfuser_fusion(fd : FusionDefinition) -> None :
    x = fd.define_tensor(shape=[-1], contiguity=[True], dtype=DataType.ComplexFloat, is_cpu=False)
    c = fd.define_scalar(3.0 + 0.5j, dtype=DataType.ComplexDouble)
    y = fd.ops.mul(x, c)
    fd.add_output(fd.ops.abs(y))
    fd.add_output(fd.ops.add(fd.ops.real(y), fd.ops.imag(y)))
with FusionDefinition() as fd:
    nvfuser_fusion(fd)

inputs = [torch.randn(10, dtype=torch.complex64, device='cuda:0')]
fd.execute(inputs)
