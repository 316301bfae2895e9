import torch
from nvfuser_direct import FusionDefinition, DataType
def nvfuser_fusion(fd : FusionDefinition) -> None :
    ids = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Int, is_cpu=False)
    table = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.BFloat16, is_cpu=False)
    rows = fd.ops.embedding_fwd(ids, table, padding_idx=None, max_norm=None, norm_type=None, scale_grad_by_freq=None, sparse=None)
    wide = fd.ops.cast(rows, dtype=DataType.Float)
    squares = fd.ops.sum(fd.ops.mul(wide, wide), dims=[2], keepdim=True)
    fd.add_output(fd.ops.mul(wide, fd.ops.rsqrt(fd.ops.add(squares, fd.define_scalar(1e-6)))))
with FusionDefinition() as fd:
    nvfuser_fusion(fd)

inputs = [
    torch.testing.make_tensor((3, 7), dtype=torch.int64, device='cuda:0', low=0, high=40),
    torch.testing.make_tensor((40, 16), dtype=torch.bfloat16, device='cuda:0'),
]
fd.execute(inputs)
