import torch
from nvfuser_direct import FusionDefinition, DataType
def nvfuser_fusion(fd : FusionDefinition) -> None :
    scores = fd.define_tensor(shape=[-1, -1, -1], contiguity=[True, True, True], dtype=DataType.Float, is_cpu=False)
    length = fd.define_scalar(16, dtype=DataType.Int)
    zero = fd.define_scalar(0, dtype=DataType.Int)
    one = fd.define_scalar(1, dtype=DataType.Int)
    steps = fd.ops.iota(length, zero, one, DataType.Int)
    rows = fd.ops.broadcast_in_dim(steps, shape=[16, 16], broadcast_dims=[0])
    columns = fd.ops.broadcast_in_dim(steps, shape=[16, 16], broadcast_dims=[1])
    later = fd.ops.gt(columns, rows)
    masked = fd.define_scalar(float("-inf"), dtype=DataType.Double)
    full = fd.ops.full(shape=[3, 16, 16], fill_value=masked, dtype=DataType.Float)
    mask = fd.ops.broadcast_in_dim(later, shape=[3, 16, 16], broadcast_dims=[1, 2])
    fd.add_output(fd.ops.where(mask, full, scores))
    fd.add_output(fd.ops.triu(scores, 1))
with FusionDefinition() as fd:
    nvfuser_fusion(fd)

inputs = [torch.randn(3, 16, 16, device='cuda:0')]
fd.execute(inputs)
