"""Models of transformers, from a configuration and without their published weights."""

import importlib
from collections.abc import Callable
from typing import Any

from outside import Logits, Outside
from torch import nn
from zoo import Case, images, per_token, tokens

WORDS = 40


def built(name: str, configuration: str, argument: str, **options: Any) -> Callable[[], nn.Module]:
    """A model of transformers from a configuration."""

    def build() -> nn.Module:
        transformers = importlib.import_module("transformers")
        return Logits(getattr(transformers, name)(getattr(transformers, configuration)(**options)), argument)

    return build


GPT2 = {
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 16,
    "vocab_size": WORDS,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": WORDS,
    "max_position_embeddings": 32,
}
BERT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": WORDS,
    "max_position_embeddings": 16,
}
VIT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 16,
    "patch_size": 4,
    "num_labels": 5,
}


def language(
    name: str,
    configuration: str,
    small: dict[str, Any],
    full: dict[str, Any],
    length: int,
    *,
    double: bool = True,
    exact: bool = True,
) -> Outside:
    """A model of tokens and its loss for each."""
    return Outside(
        Case(
            built(name, configuration, "input_ids", use_cache=False, **small),
            tokens(4, 8, WORDS),
            per_token,
            exact=exact,
        ),
        built(name, configuration, "input_ids", use_cache=False, **full),
        (4, length),
        (4, length),
        package="transformers",
        double=double,
        light=True,
    )


LANGUAGE = {
    "GPT2": language("GPT2LMHeadModel", "GPT2Config", GPT2, {}, 1024),
    # Its norms compute in float32 whatever the model is. Where traced it repeats keys and values and makes a mask;
    # elsewhere it leaves both to torch's kernel, which rounds otherwise on some processors.
    "Llama": language(
        "LlamaForCausalLM", "LlamaConfig", LLAMA, {"num_hidden_layers": 4}, 2048, double=False, exact=False
    ),
    "Bert": language("BertForMaskedLM", "BertConfig", BERT, {}, 512),
    "ViT": Outside(
        Case(built("ViTForImageClassification", "ViTConfig", "pixel_values", **VIT), images(4, 3, 16, 16)),
        built("ViTForImageClassification", "ViTConfig", "pixel_values", num_labels=1000),
        (8, 3, 224, 224),
        (8,),
        package="transformers",
        light=True,
    ),
}
