# no inputs: every size follows from the views
def nvfuser_fusion_id3(fd : FusionDefinition) -> None :
    T0 = fd.define_tensor(symbolic_sizes=[-1, -1, -1], contiguous=[True, True, True], dtype=DataType.Float)
    T1 = fd.define_tensor(symbolic_sizes=[-1, -1], contiguous=[True, True], dtype=DataType.Float)
    T2 = fd.define_tensor(symbolic_sizes=[-1, -1, -1], contiguous=[True, True, True], dtype=DataType.Float)
    T3 = fd.ops.view(T0, original_shape=[64, 128, 3072], new_shape=[8192, 3072])
    T4 = fd.ops.add(T3, T1)
    T5 = fd.ops.view(T4, original_shape=[8192, 3072], new_shape=[64, 128, 3072])
    T6 = fd.ops.mul(T5, T2)
    T7 = fd.ops.view(T6, original_shape=[64, 128, 3072], new_shape=[8192, 3072])
    fd.add_output(T7)
