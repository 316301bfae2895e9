import torch
from nvfuser_direct import FusionDefinition, DataType
def nvfuser_fusion(fd : FusionDefinition) -> None :
    tv0 = fd.define_tensor(shape=[768, 128, 64], contiguity=[True, True, True], dtype=DataType.Float, is_cpu=False)
    tv1 = fd.ops.reshape(tv0, new_shape=[64, 12, 128, 64])
    tv2 = fd.ops.permute(tv1, dims=[0, 2, 1, 3])
    tv3 = fd.ops.stride_order(tv2, stride_order=[3, 2, 1, 0])
    tv4 = fd.ops.reshape(tv3, new_shape=[64, 128, 768])
    tv5 = fd.ops.reshape(tv4, new_shape=[8192, 768])
    fd.add_output(tv5)
with FusionDefinition() as fd:
    nvfuser_fusion(fd)

inputs = [
    torch.testing.make_tensor((768, 128, 64), dtype=torch.float32, device='cuda:0'),
]
fd.execute(inputs)
