"""What a leaf module of transformers takes: experts, whose products stand in an operator of that library."""

import importlib

import pytest
import torch
from outside import Logits, need
from zoo import per_token

from cutset.partition.capture.export import capture
from cutset.partition.operators.leaf_module import LEAF_MODULE

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 40,
}


@pytest.mark.light
@pytest.mark.parametrize("implementation", ["grouped_mm", "batched_mm", "eager"])
def test_mixtrals_experts_count_the_products_of_the_tokens_sent_to_them(implementation: str) -> None:
    need("transformers")
    transformers = importlib.import_module("transformers")
    configuration = transformers.MixtralConfig(
        **SIZES,
        num_local_experts=4,
        num_experts_per_tok=2,
        use_cache=False,
        experts_implementation=implementation,
    )
    model = Logits(transformers.MixtralForCausalLM(configuration), "input_ids")
    tokens = torch.randint(0, 40, (4, 16))
    graph, _ = capture(model, per_token, [tokens], [tokens], leaf_modules=["*.mlp.experts"])
    (experts,) = [op for op in graph.ops if op.target == LEAF_MODULE]
    products = tokens.numel() * 2 * 2 * (3 * 32 * 64)
    assert products <= experts.flops <= 1.3 * products
