import torch
from nvfuser_direct import FusionDefinition, DataType
def nvfuser_fusion(fd : FusionDefinition) -> None :
    qkv = fd.define_tensor(shape=[-1, -1, -1], contiguity=[True, True, True], dtype=DataType.BFloat16, is_cpu=False)
    heads = []
    q = fd.ops.slice(qkv, start_indices=[0, 0, 0], end_indices=[2, 64, 128])
    k = fd.ops.slice(qkv, start_indices=[0, 0, 128], end_indices=[2, 64, 256])
    v = fd.ops.slice(qkv, start_indices=[0, 0, 256], end_indices=[2, 64, 384])
    q = fd.ops.permute(fd.ops.reshape(q, new_shape=[2, 64, 2, 64]), dims=[0, 2, 1, 3])
    k = fd.ops.permute(fd.ops.reshape(k, new_shape=[2, 64, 2, 64]), dims=[0, 2, 1, 3])
    v = fd.ops.permute(fd.ops.reshape(v, new_shape=[2, 64, 2, 64]), dims=[0, 2, 1, 3])
    S1 = fd.define_scalar(0.00000, dtype=DataType.Double)
    S2 = fd.define_scalar(True, dtype=DataType.Bool)
    out, log_sumexp, seed, offset = fd.ops.sdpfa_fwd(q, k, v, dropout_p=S1, is_causal=S2, scale=None)
    out = fd.ops.permute(out, dims=[0, 2, 1, 3])
    out = fd.ops.stride_order(out, stride_order=[3, 2, 1, 0])
    fd.add_output(fd.ops.reshape(out, new_shape=[2, 64, 128]))
with FusionDefinition() as fd:
    nvfuser_fusion(fd)

inputs = [torch.randn(2, 64, 384, dtype=torch.bfloat16, device='cuda:0')]
fd.execute(inputs)
