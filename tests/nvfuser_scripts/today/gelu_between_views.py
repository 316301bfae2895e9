# torch version: 2.10.0+cu130
# cuda version: 13.0
import torch
from nvfuser_direct import FusionDefinition, DataType
def nvfuser_fusion(fd : FusionDefinition) -> None :
    tv0 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float, is_cpu=False)
    tv1 = fd.ops.reshape(tv0, new_shape=[64, 128, 3072])
    c0 = fd.define_scalar(0.500000, dtype=DataType.Double)
    tv2 = fd.ops.mul(tv1, c0)
    c1 = fd.define_scalar(0.707107, dtype=DataType.Double)
    tv3 = fd.ops.mul(tv1, c1)
    tv4 = fd.ops.erf(tv3)
    c2 = fd.define_scalar(1.00000, dtype=DataType.Double)
    tv5 = fd.ops.add(tv4, c2)
    tv6 = fd.ops.mul(tv2, tv5)
    tv7 = fd.ops.reshape(tv6, new_shape=[8192, 3072])
    fd.add_output(tv7)
with FusionDefinition() as fd:
    nvfuser_fusion(fd)

inputs = [
    torch.testing.make_tensor((8192, 3072), dtype=torch.float32, device='cuda:0'),
]
fd.execute(inputs)
