import torch
from nvfuser_direct import FusionDefinition, DataType
def nvfuser_fusion(fd : FusionDefinition) -> None :
    tv0 = fd.define_tensor(shape=[-1, -1, -1], contiguity=[True, True, True], dtype=DataType.Float, is_cpu=False)
    tv1 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float, is_cpu=False)
    tv2 = fd.define_tensor(shape=[-1, -1, -1], contiguity=[True, True, True], dtype=DataType.Float, is_cpu=False)
    tv3 = fd.ops.reshape(tv0, new_shape=[8192, 3072])
    tv4 = fd.ops.add(tv3, tv1)
    tv5 = fd.ops.reshape(tv4, new_shape=[64, 128, 3072])
    tv6 = fd.ops.mul(tv5, tv2)
    tv7 = fd.ops.reshape(tv6, new_shape=[8192, 3072])
    fd.add_output(tv7)
with FusionDefinition() as fd:
    nvfuser_fusion(fd)

inputs = [
    torch.testing.make_tensor((64, 128, 3072), dtype=torch.float32, device='cuda:0'),
    torch.testing.make_tensor((8192, 3072), dtype=torch.float32, device='cuda:0'),
    torch.testing.make_tensor((64, 128, 3072), dtype=torch.float32, device='cuda:0'),
]
fd.execute(inputs)
