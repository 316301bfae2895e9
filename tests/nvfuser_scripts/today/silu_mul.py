import torch
from nvfuser_direct import FusionDefinition, DataType
with FusionDefinition() as fd:
    gate = fd.define_tensor([-1, -1], contiguity=[True, True], dtype=DataType.BFloat16)
    up = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.BFloat16)
    wide = fd.ops.cast(gate, dtype=DataType.Float)
    one = fd.define_scalar(1.0)
    sigmoid = fd.ops.reciprocal(fd.ops.add(one, fd.ops.exp(fd.ops.neg(wide))))
    product = fd.ops.mul(fd.ops.mul(wide, sigmoid), fd.ops.cast(up, dtype=DataType.Float))
    fd.add_output(fd.ops.cast(product, dtype=DataType.BFloat16))

inputs = [torch.randn(64, 96, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
fd.execute(inputs)
