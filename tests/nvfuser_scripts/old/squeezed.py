import torch
from nvfuser import FusionDefinition, DataType

inputs = [
    torch.randn(4, device='cuda'),
    torch.randn(1, 4, 1, device='cuda'),
    torch.randn(2, 1, 4, device='cuda'),
]

def fusion_func(fd : FusionDefinition) :
    t0 = fd.define_tensor(symbolic_sizes=[-1], contiguous=[True])
    t1 = fd.define_tensor(sizes=[1, 4, 1], strides=[4, 1, 1])
    t2 = fd.define_tensor(sizes=[2, 1, 4], strides=[4, 4, 1])
    t3 = fd.ops.squeeze(t1, [1, 4, 1], [0, -1])
    t4 = fd.ops.squeeze(t2, [2, 1, 4], [-2,])
    t5 = fd.ops.sum(t4, [0])
    t6 = fd.ops.mul(t0, t3)
    t7 = fd.ops.mul(t6, t5)
    t0_sizes = fd.ops.tensor_sizes(t0)
    fd.add_output(t7)
    fd.add_output(fd.ops.full(size=[t0_sizes[0], 2], arg=fd.define_constant(2.0), dtype=DataType.Float))

with FusionDefinition() as fd:
    fusion_func(fd)
fd.execute(inputs)
