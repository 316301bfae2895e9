import torch
from nvfuser import FusionDefinition, DataType

inputs = [
    torch.randn(4, 3, 8, 8, device='cuda'),
    torch.randn(3, device='cuda'),
    torch.randn(3, device='cuda'),
    torch.randn(3, device='cuda'),
    torch.rand(3, device='cuda'),
    0.1,
    1e-5,
]

with FusionDefinition() as fd:
    a = fd.from_pytorch(inputs[0])
    w = fd.from_pytorch(inputs[1])
    b = fd.from_pytorch(inputs[2])
    running_mean = fd.from_pytorch(inputs[3])
    running_var = fd.from_pytorch(inputs[4])
    momentum = fd.define_scalar(dtype=DataType.Double)
    eps = fd.define_scalar(dtype=DataType.Double)
    a_norm, new_mean, new_invstd = fd.ops.batch_norm(a, w, b, running_mean, running_var, momentum, eps, False)
    fd.add_output(fd.ops.relu(a_norm))
fd.execute(inputs)
