import torch
from nvfuser_direct import FusionDefinition, DataType
def nvfuser_fusion(fd : FusionDefinition) -> None :
    logits = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float, is_cpu=False)
    labels = fd.define_tensor(shape=[-1], contiguity=[True], dtype=DataType.Int, is_cpu=False)
    peak = fd.ops.max(logits, dims=[1], keepdim=True, dtype=DataType.Null)
    moved = fd.ops.sub(logits, peak)
    total = fd.ops.sum(fd.ops.exp(moved), dims=[1], keepdim=True, dtype=DataType.Null)
    log_p = fd.ops.sub(moved, fd.ops.log(total))
    index = fd.ops.broadcast_in_dim(labels, shape=[24, 1], broadcast_dims=[0])
    picked = fd.ops.take_along_axis(log_p, index, dim=1)
    loss = fd.ops.neg(fd.ops.squeeze(picked, dims=[1], squeeze_expanded=False))
    ignored = fd.define_scalar(-100, dtype=DataType.Int)
    zero = fd.define_scalar(0.0, dtype=DataType.Double)
    kept = fd.ops.where(fd.ops.ne(labels, ignored), loss, zero)
    count = fd.define_scalar(24.0, dtype=DataType.Double)
    fd.add_output(fd.ops.div(fd.ops.sum(kept, dims=[0], keepdim=False, dtype=DataType.Null), count))
    fd.add_output(log_p)
with FusionDefinition() as fd:
    nvfuser_fusion(fd)

inputs = [
    torch.randn(24, 50, dtype=torch.float32, device='cuda:0'),
    torch.randint(0, 50, (24,), dtype=torch.int64, device='cuda:0'),
]
fd.execute(inputs)
