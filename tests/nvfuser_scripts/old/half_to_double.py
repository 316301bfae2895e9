import torch
from torch._C._nvfuser import Fusion, FusionDefinition, DataType

fusion = Fusion()
with FusionDefinition(fusion) as fd :
    t0 = fd.define_tensor(2, DataType.Half)
    t1 = fd.define_tensor(2, DataType.Double)
    t2 = fd.ops.add(t0, t1)
    t5 = fd.ops.relu(t2)
    fd.add_output(t5)

input1 = torch.ones(2, 4, device='cuda', dtype=torch.float16)
input2 = torch.ones(2, 4, device='cuda', dtype=torch.float64)
outputs = fusion.execute([input1, input2])
