import torch
from nvfuser_direct import FusionDefinition, DataType
def nvfuser_fusion(fd : FusionDefinition) -> None :
    x = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float, is_cpu=False)
    y = fd.define_tensor(shape=[-1, -1], contiguity=[False, True], dtype=DataType.Float, is_cpu=False)
    m = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Bool, is_cpu=False)
    half = fd.define_scalar(0.5, dtype=DataType.Double)
    two = fd.define_scalar(2.0, dtype=DataType.Double)
    fd.add_output(fd.ops.where(m, x, y))
    fd.add_output(fd.ops.where(m, x, half))
    fd.add_output(fd.ops.minimum(x, y))
    fd.add_output(fd.ops.maximum(x, half))
    fd.add_output(fd.ops.clamp(x, half, two))
    fd.add_output(fd.ops.threshold(x, half, two))
    fd.add_output(fd.ops.lerp(x, y, half))
    fd.add_output(fd.ops.addcmul(x, y, x, half))
    fd.add_output(fd.ops.logical_and(m, fd.ops.le(x, y)))
    fd.add_output(fd.ops.logical_or(fd.ops.logical_not(m), fd.ops.ge(x, half)))
    fd.add_output(fd.ops.eq(x, y))
    fd.add_output(fd.ops.pow(fd.ops.abs(x), half))
    fd.add_output(fd.ops.atan2(x, y))
    fd.add_output(fd.ops.fmod(x, half))
    fd.add_output(fd.ops.sub(two, x))
    fd.add_output(fd.ops.div(two, fd.ops.exp(y)))
with FusionDefinition() as fd:
    nvfuser_fusion(fd)

inputs = [
    torch.randn(8, 12, dtype=torch.float32, device='cuda:0'),
    torch.randn(8 * 20, dtype=torch.float32, device='cuda:0').as_strided((8, 12), (20, 1)),
    torch.randint(0, 2, (8, 12), dtype=torch.bool, device='cuda:0'),
]
fd.execute(inputs)
