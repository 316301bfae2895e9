import torch
from nvfuser import FusionDefinition, DataType

inputs = [
    torch.randn(4, 4, 4, device='cuda'),
    torch.randn(4, 4, 4, device='cuda'),
]

class UserDefSched(FusionDefinition):
    def definition(self):
        self.t0 = self.from_pytorch(inputs[0])
        self.t1 = self.from_pytorch(inputs[1])
        self.t2 = self.ops.add(self.t0, self.t1)
        self.add_output(self.t2)

    def schedule(self):
        self.sched.split(self.t2, 1, 2)
        self.sched.merge(self.t2, -2)

fd = UserDefSched()
nvf_user_out = fd.execute(inputs)
