import torch
from nvfuser_direct import FusionDefinition, DataType
def nvfuser_fusion(fd : FusionDefinition) -> None :
    a = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Int, is_cpu=False)
    b = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Int, is_cpu=False)
    three = fd.define_scalar(3, dtype=DataType.Int)
    fd.add_output(fd.ops.div(a, b))
    fd.add_output(fd.ops.div(a, three))
    fd.add_output(fd.ops.truediv(a, b))
    fd.add_output(fd.ops.mod(a, b))
    fd.add_output(fd.ops.remainder(a, b))
    fd.add_output(fd.ops.bitwise_and(a, b))
    fd.add_output(fd.ops.bitwise_or(a, b))
    fd.add_output(fd.ops.bitwise_xor(a, three))
    fd.add_output(fd.ops.bitwise_not(a))
    fd.add_output(fd.ops.bitwise_left_shift(b, three))
    fd.add_output(fd.ops.bitwise_right_shift(a, three))
    fd.add_output(fd.ops.gcd(a, b))
    fd.add_output(fd.ops.mul(a, fd.define_scalar(0.5)))
    fd.add_output(fd.ops.minimum(a, fd.define_scalar(2.7)))
    fd.add_output(fd.ops.where(fd.ops.gt(a, three), a, fd.define_scalar(0.1)))
    fd.add_output(fd.ops.truediv(a, fd.define_scalar(0.3, dtype=DataType.Float)))
    fd.add_output(fd.ops.sum(fd.ops.gt(a, three), dims=[0, 1], dtype=DataType.Int))
    fd.add_output(fd.ops.prod(fd.ops.cast(b, dtype=DataType.Float), dims=[1]))
    fd.add_output(fd.ops.min(a, dims=[0]))
with FusionDefinition() as fd:
    nvfuser_fusion(fd)

inputs = [
    torch.randint(-50, 50, (6, 7), dtype=torch.int64, device='cuda:0'),
    torch.randint(1, 9, (6, 7), dtype=torch.int64, device='cuda:0'),
]
fd.execute(inputs)
