from nvfuser import FusionDefinition, DataType
import torch

def nvfuser_fusion_id4(fd : FusionDefinition) -> None :
    T0 = fd.define_tensor(symbolic_sizes=[-1, -1], contiguous=[True, True], dtype=DataType.Float, is_cpu=False)
    T1 = fd.ops.rand_like(T0)
    S2 = fd.define_constant(0.100000)
    T3 = fd.ops.gt(T1, S2)
    T4 = fd.ops.mul(T0, T3)
    S5 = fd.define_constant(1.11111)
    T6 = fd.ops.mul(T4, S5)
    S7 = fd.define_constant(2.0)
    S8 = fd.define_constant(0.5)
    T9 = fd.ops.normal(S7, S8, shape=[32, 24], dtype=DataType.Float)
    fd.add_output(T6)
    fd.add_output(fd.ops.add(T6, T9))

with FusionDefinition() as fd:
    nvfuser_fusion_id4(fd)

inputs = [torch.randn(32, 24, device='cuda')]
fd.execute(inputs)
