import torch
from nvfuser import FusionDefinition, DataType

inputs = [torch.arange(2, device="cuda").type(torch.bool)]

def fusion_func(fd: FusionDefinition):
    t0 = fd.from_pytorch(inputs[0])
    c0 = fd.define_constant(3.0)
    c1 = fd.define_constant(5.0)
    fd.add_output(fd.ops.where(t0, c0, c1))
    c0f = fd.define_constant(3.0, DataType.Float)
    c1f = fd.define_constant(5.0, DataType.Float)
    fd.add_output(fd.ops.where(t0, c0f, c1f))
    c0i = fd.define_constant(3, DataType.Int32)
    c1i = fd.define_constant(5, DataType.Int32)
    fd.add_output(fd.ops.where(t0, c0i, c1i))
    c0l = fd.define_constant(3)
    c1l = fd.define_constant(5)
    fd.add_output(fd.ops.where(t0, fd.ops.mul(c0l, c1l), fd.ops.neg(c1l)))
    c0b = fd.define_constant(True, DataType.Bool)
    c1b = fd.define_constant(False, DataType.Bool)
    fd.add_output(fd.ops.where(t0, c0b, c1b))

with FusionDefinition() as fd:
    fusion_func(fd)
fd.execute(inputs)
