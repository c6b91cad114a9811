"""The names of PopRT 1.5.0's passes, which scripts may use."""

import pytest

from stoker.compiler.passes import get_all_pass_names
from stoker.compiler.passes.registry import pass_class


def _names(text: str, prefix: str = "", suffix: str = "") -> list[str]:
    return [f"{prefix}{each}{suffix}" for each in text.split()]


#: As its documentation lists them, by group.
POPRT_PASSES = [
    *_names("const_batch_size const_input_shape shape_inference fill_squeeze_axes trace_folding constant_folding"),
    *_names("float_to_half float_to_fp8 float_to_int8 float_to_mixed double_to_float int64_to_int32 layer_precision_compare"),
    *_names("deadend duplicate_initializer duplicate_nodes identity unused_initializer", "eliminate_"),
    *_names("arithmetic cast expand flatten if pad reshape transpose", "eliminate_nop_"),
    *_names("arithmetic cast reshape squeeze transpose unsqueeze", "fuse_consecutive_"),
    *_names("extract_constant_to_initializer fuse_bn_into_conv replace_einsum_with_matmul move_subgraph_initializer"),
    *_names("remove_duplicated_initializer remove_initializer_from_input unique_name_for_nodes sort_graph"),
    *_names("fuse_bn_into_gemm fuse_cast_into_onehot fuse_mul_into_matmul fused_attention matmul_rotary_embedding"),
    *_names("gelu erf_gelu layer_norm compress", suffix="_pattern"),
    *_names("multi_slice matmul matmul_add moe if_with_same_cond variant_if", "merge_"),
    *_names("expand_if pre_scale post_expand"),
    *_names("bn_with_mul_add castlike clip_empty_inputs consecutive_cast_with_notzero div_with_mul erf_with_erfv2", "replace_"),
    *_names("gemm_with_matmul greater_or_equal less_or_equal groupnorm_with_fast_norm half_reducemean hardswish", "replace_"),
    *_names("isinf nonzero pow round softmax where_mask where_with_mul_add where_with_wherev2", "replace_"),
    *_names("insert_attention_mask remove_input_cast"),
    *_names("serialize_matmul serialize_matmul_add auto_insert_remap attention_padding fold_periodic_initializer manual_sharding"),
    *_names("overlap_io packed_transformer eight_bits_io apply_host_concat_split"),
    *_names("batchnorm cumsum float_ops indices onehot topk", suffix="_workaround"),
    *_names("remove_empty_concat_inputs"),
    *_names(
        "model_overview model_io_info_stat check_unsupported_attribute check_with_fake_data add_checkpoints remove_outputs final_check"
    ),
]


@pytest.mark.parametrize("name", POPRT_PASSES)
def test_every_pass_of_poprt_exists_and_has_a_description(name: str) -> None:
    assert name in get_all_pass_names()
    assert pass_class(name).description().endswith((".", ":"))


def test_no_name_is_listed_twice() -> None:
    assert len(set(POPRT_PASSES)) == len(POPRT_PASSES) == 104


def test_no_other_pass_is_built_in() -> None:
    built_in = [name for name in get_all_pass_names() if pass_class(name).__module__.startswith("stoker.compiler.passes.")]
    assert built_in == sorted(POPRT_PASSES)
