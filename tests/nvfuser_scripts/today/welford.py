import torch
from nvfuser_direct import FusionDefinition, DataType

inputs = [torch.randn(12, 20, device="cuda")]

def fusion_func(fd: FusionDefinition):
    t0 = fd.from_pytorch(inputs[0])
    mean, var_sum, n = fd.ops.welford(t0, [-1])
    var = fd.ops.div(var_sum, n)
    fd.add_output(var)
    fd.add_output(mean)
    fd.add_output(fd.ops.var(t0, dims=[0], correction=1, keepdim=True))

with FusionDefinition() as fd:
    fusion_func(fd)
fd.execute(inputs)
