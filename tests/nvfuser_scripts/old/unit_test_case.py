import unittest
from functools import partial
import torch
from torch.testing._internal.common_utils import TestCase
from nvfuser import FusionDefinition, DataType


class TestNvFuserFrontend(TestCase):
    def exec_nvfuser(self, fusion_func, inputs, new_fusion_expected=True):
        with FusionDefinition() as fd:
            fusion_func(fd)
        return fd.execute(inputs), fd

    def test_alias_output_to_input(self):
        inputs = [
            torch.ones(4, 4, device='cuda'),
        ]

        def fusion_func(fd: FusionDefinition):
            t0 = fd.from_pytorch(inputs[0])
            s0 = fd.define_constant(1.0)
            s1 = fd.define_constant(2.0)
            s2 = fd.define_constant(3.0)
            t1 = fd.ops.add(t0, s0)
            t2 = fd.ops.add(t0, s1)
            t3 = fd.ops.add(t2, s2)
            fd.add_output(t1)
            fd.add_output(t2, alias_input=t0)
            fd.add_output(t3)

        nvf_out, _ = self.exec_nvfuser(fusion_func, inputs)
        self.assertEqual(torch.ones(4, 4, device='cuda') + 1, nvf_out[0])
