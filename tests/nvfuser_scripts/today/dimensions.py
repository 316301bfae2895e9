import torch
from nvfuser_direct import FusionDefinition, DataType
def nvfuser_fusion(fd : FusionDefinition) -> None :
    x = fd.define_tensor(shape=[1, -1, 1, -1], contiguity=[None, True, None, True], dtype=DataType.Float, is_cpu=False)
    y = fd.define_tensor(shape=[-1], contiguity=[True], dtype=DataType.Float, is_cpu=False)
    squeezed = fd.ops.squeeze(x, dims=[0, 2], squeeze_expanded=True)
    wide = fd.ops.broadcast(y, is_broadcast_dim=[True, False])
    both = fd.ops.add(squeezed, wide)
    expanded = fd.ops.expand(fd.ops.broadcast_in_dim(both, shape=[6, 1, 9], broadcast_dims=[0, 2]), shape=[6, 4, 9])
    fd.add_output(fd.ops.mul(expanded, expanded))
    sizes = fd.ops.shape(both)
    fd.add_output(fd.ops.reshape(both, new_shape=[sizes[1], fd.ops.size(both, 0)]))
    fd.add_output(fd.ops.permute(both, dims=[1, 0]))
    fd.add_output(fd.ops.set(both))
with FusionDefinition() as fd:
    nvfuser_fusion(fd)

inputs = [
    torch.testing.make_tensor((1, 6, 1, 9), dtype=torch.float32, device='cuda:0'),
    torch.testing.make_tensor((9,), dtype=torch.float32, device='cuda:0'),
]
fd.execute(inputs)
