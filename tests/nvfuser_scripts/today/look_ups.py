import torch
from nvfuser_direct import FusionDefinition, DataType
def nvfuser_fusion(fd : FusionDefinition) -> None :
    T0 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Int, is_cpu=False)
    T1 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float, is_cpu=False)
    T2 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Int, is_cpu=False)
    S3 = fd.define_scalar(25, dtype=DataType.Int)
    T4 = fd.ops.reshape(T0, new_shape=[S3])
    T5 = fd.ops.index_select(T1, T4, dim=0)
    S6 = fd.define_scalar(5, dtype=DataType.Int)
    S7 = fd.define_scalar(5, dtype=DataType.Int)
    S8 = fd.define_scalar(16, dtype=DataType.Int)
    T9 = fd.ops.reshape(T5, new_shape=[S6, S7, S8])
    T10 = fd.ops.gather(T1, T2, 1)
    S11 = fd.define_scalar(2, dtype=DataType.Int)
    T12 = fd.ops.select(T1, S11, dim=0)
    fd.add_output(T9)
    fd.add_output(T10)
    fd.add_output(fd.ops.exp(T12))
with FusionDefinition() as fd:
    nvfuser_fusion(fd)

inputs = [
    torch.randint(0, 10, (25,), dtype=torch.int64, device='cuda:0').as_strided((5, 5), (5, 1)),
    torch.randn((480,), dtype=torch.float32, device='cuda:0').as_strided((30, 16), (16, 1)),
    torch.randint(0, 10, (30, 4), dtype=torch.int64, device='cuda:0'),
]
fd.execute(inputs)
