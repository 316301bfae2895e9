"""What operators do, by name: which compute cheaply, which dearly, which reduce, gather, or do nothing at all."""

from __future__ import annotations

from fuseplan.graph import Op


def name_of(op: Op) -> str:
    """The operator without namespace and overload.

    >>> name_of(Op("aten.add_.Tensor", (), (), ()))
    'add'
    """
    namespace, _, rest = op.target.partition(".")
    name = rest.partition(".")[0] or namespace
    return name.rstrip("_") or name


SPECIAL = {
    **dict.fromkeys(
        "exp exp2 expm1 log log10 log1p log2 sin cos tan sinh cosh tanh asin acos atan atan2 erf erfc erfinv lgamma "
        "digamma sigmoid logit silu gelu mish softplus elu selu celu hardswish pow sigmoid_backward tanh_backward "
        "silu_backward elu_backward softplus_backward log_sigmoid_forward log_sigmoid_backward mish_backward "
        "bernoulli rand rand_like randn randn_like uniform normal native_dropout dropout multinomial logsumexp "
        "_softmax softmax _log_softmax log_softmax cumprod binary_cross_entropy "
        "binary_cross_entropy_with_logits".split(),
        1,
    ),
    **dict.fromkeys("gelu_backward logcumsumexp _log_softmax_backward_data lerp".split(), 2),
}
"""How many exponentials or the like an element takes."""

REDUCTIONS = {
    **dict.fromkeys(
        "sum mean prod amax amin max min any all argmax argmin nansum norm linalg_vector_norm logsumexp count_nonzero "
        "aminmax cumsum cumprod logcumsumexp cummax cummin mse_loss l1_loss "
        "smooth_l1_loss huber_loss _softmax_backward_data _log_softmax_backward_data rms_norm "
        "avg_pool2d max_pool2d_with_indices _adaptive_avg_pool2d binary_cross_entropy".split(),
        1,
    ),
    **dict.fromkeys(
        "var std var_mean std_mean _softmax softmax _log_softmax log_softmax native_layer_norm layer_norm "
        "native_group_norm group_norm native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional "
        "batch_norm_with_update cudnn_batch_norm rms_norm_backward".split(),
        2,
    ),
    **dict.fromkeys(
        "native_layer_norm_backward native_group_norm_backward native_batch_norm_backward batch_norm_backward "
        "cudnn_batch_norm_backward".split(),
        4,
    ),
}
"""How often an operator goes through the elements of its largest operand to sum them up or the like."""

KERNELS_ALONE = {
    # More than one kernel where the operator's own sums do not fit into one pass.
    **dict.fromkeys("native_layer_norm_backward native_group_norm_backward native_batch_norm_backward".split(), 2),
    **dict.fromkeys("batch_norm_backward cudnn_batch_norm_backward embedding_dense_backward index_put".split(), 2),
    # Operators of ours that stand for several of PyTorch's, where there is no kernel of its own.
    "rms_norm": 5,
    "rms_norm_backward": 12,
    **dict.fromkeys("sort topk argsort unique nonzero multinomial".split(), 4),
}
"""How many kernels PyTorch runs for one operator, if more than one."""

PASSES_ALONE = {"rms_norm": 4, "rms_norm_backward": 7, "sort": 6, "topk": 4}
"""How often those move all their operands, if more than once."""

GATHERS = {
    "embedding": 0,
    "gather": 0,
    "index_select": 0,
    "index": 0,
    "take": 0,
    "_unsafe_index": 0,
    "embedding_bag": 0,
    "nll_loss_forward": 0,
}
"""Operators that touch only as much of one operand, by its position, as they give."""

PICKS = {"gather": 2, "take": 1, "nll_loss_forward": 1}
"""Those of them that pick element by element, and where they are told which."""

IDLE = frozenset(
    "empty empty_like new_empty empty_strided new_empty_strided empty_permuted detach alias lift_fresh item sym_size "
    "sym_stride sym_numel sym_storage_offset _assert_async _assert_scalar _local_scalar_dense".split()
)
"""Operators that launch nothing."""

MATMULS = frozenset(
    "mm bmm addmm baddbmm addbmm addmv mv dot linear matmul _scaled_mm _int_mm grouped_mm _grouped_mm".split()
)
SECOND_FIRST = frozenset({"addmm", "baddbmm", "addbmm", "addmv"})
"""Matmuls whose first matrix is the second argument."""

MOVES = frozenset(
    "clone _to_copy to copy cat constant_pad_nd full full_like zeros zeros_like ones ones_like arange fill zero new_full "
    "new_zeros new_ones scalar_tensor expand_copy view_copy permute_copy repeat stack flip roll select_scatter "
    "slice_scatter diagonal_copy eye contiguous reshape".split()
)
"""Operators that compute nothing."""

DEAR = {"sort": 40, "topk": 20, "argsort": 40, "native_dropout": 8, "rand": 8, "rand_like": 8, "bernoulli": 8}
"""How many cheap operations an element takes, if more than one."""

TWO_AXES = frozenset({"native_layer_norm_backward", "native_group_norm_backward", "rms_norm_backward"})
"""Operators that sum along rows for one result and along columns for another."""
