"""Written by a person: sizes, a helper, a loop and signs for ops."""
import torch
from nvfuser_direct import FusionDefinition, DataType

batch, heads, width = 4, 2, 16
eps = 1e-6
dtype = DataType.Float

def rms(fd, x, size, eps=1e-5):
    mean = fd.ops.div(fd.ops.sum(fd.ops.mul(x, x), dims=[-1], keepdim=True), fd.define_scalar(float(size)))
    return fd.ops.mul(x, fd.ops.rsqrt(fd.ops.add(mean, fd.define_scalar(eps))))

with FusionDefinition() as fd:
    tensors = []
    for shape in [[batch, heads * width], [batch, heads * width]]:
        tensors.append(fd.define_tensor(shape, contiguity=True, dtype=dtype))
    normed = rms(fd, tensors[0], heads * width, eps=eps)
    result = fd.ops.add(normed, tensors[1])
    if dtype in (DataType.Half, DataType.BFloat16):
        result = fd.ops.cast(result, dtype)
    fd.add_output(result)

inputs = [torch.randn(batch, heads * width, device="cuda"), torch.randn(batch, heads * width, device="cuda")]
fd.execute(inputs)
