"""Makes a configuration of transformers small by the names of its fields, those of its parts included."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Size:
    """Sizes of a small model; heads * head_size = hidden."""

    hidden: int
    heads: int
    layers: int = 2

    @property
    def head_size(self) -> int:
        """Return the width of a head."""
        return self.hidden // self.heads


VOCABULARY, POSITIONS, IMAGE, PATCH, EXPERTS = 100, 128, 32, 8, 4
SIZES = (Size(32, 4), Size(64, 4), Size(128, 8), Size(128, 2), Size(256, 2))

# What a field holds, by its name: the first that matches
KINDS = {
    "pattern": r".*layer_types|block_types|layers_block_type|no_rope_layers",
    "drop": r"hybrid_override_pattern|attn_layer_indices"
    r"|auto_map|_name_or_path|transformers_version|architectures|dtype|torch_dtype"
    r"|full_attn_idxs|attention_types|per_layer_config|num_attention_chunk|output_hidden_states|return_dict",
    "sections": r"mrope_section",
    "rank": r".*lora_rank|.*_rank",
    "head_size": r".*head_dim|d_kv|.*head_size|attention_key_size|.*head_width|kv_channels",
    "kv_heads": r".*(key_value|kv)_heads?|num_kv|multi_query_group_num",
    "heads": r".*(num|n)_?.*heads?|.*attention_heads|.*_heads|n_head|heads",
    "experts": r"(num|n)_.*experts|num_experts",
    "top": r"(num_)?experts_per_tok|.*top_?k|num_experts_per_tok|num_selected_experts",
    "groups": r"n_group|topk_group|num_expert_group|topk_groups",
    "token": r".*(token|pad|bos|eos|sep|cls|mask|unk)_?(id|index|idx|ids)|.*_token_index|image_token.*|.*token_ids?",
    "vocabulary": r".*vocab.*size.*|n_vocab|vocab",
    "layers": r".*(layers|n_layer|layer_num|depth|depths|num_blocks|n_blocks|num_stages_layers|num_hidden_groups)",
    "wide": r".*(intermediate|ffn|d_ff|mlp_dim|inner_dim|n_inner|feed_?forward|d_inner|mlp_hidden|hidden_dim_mlp).*"
    r"|.*conv_dim.*|dim_ff|encoder_dim_feed.*|feedforward.*",
    "hidden": r".*hidden_size|.*d_model|n_embd|.*embed_dim|dim|.*embedding_size|emb_dim|.*hidden_dim|.*hidden_channels"
    r"|.*projection_dim|.*proj_dim|model_dim|d_embed|rnn_hidden|.*_width|width|.*embed_size|hidden|.*hidden_features"
    r"|out_hidden_size|.*embedding_dim|encoder_dim|decoder_dim|attention_dim|d_latents|qk_channels|v_channels|lru_width"
    r"|.*(feature|fusion|mask|model|query)_?(size|dim)",
    "sizes": r"hidden_sizes|.*embed_dims|.*hidden_channels_list|neck_hidden_sizes|out_channels_list|backbone_channels",
    "positions": r"max_(position|sequence|seq|target|source|text|decoder|encoder).*|n_positions|n_ctx|seq_length"
    r"|.*max_length|context_length",
    "image": r".*image_size|img_size|input_resolution|.*resolution",
    "patch": r".*patch_size",
    "queries": r"num_queries|num_.*queries|num_latents|num_.*latents|query_length",
    "frames": r"num_frames",
}
TABLES = ("id2label", "label2id", "task_specific_params")  # whose keys are no fields
PATTERNS = {kind: re.compile(pattern) for kind, pattern in KINDS.items()}


def shrink(fields: Mapping[str, Any], size: Size) -> dict[str, Any]:
    """Return the fields of a configuration made small; what its class works out by itself is left out."""
    small = {}
    for name, value in fields.items():
        kind = next((kind for kind, pattern in PATTERNS.items() if pattern.fullmatch(name)), "")
        if kind == "drop":
            continue
        if isinstance(value, Mapping):
            small[name] = dict(value) if name in TABLES else shrink(value, size)
        else:
            small[name] = _shrink_value(kind, value, size)
    return small


def _shrink_value(kind: str, value: Any, size: Size) -> Any:
    if isinstance(value, bool) or value is None or not kind:
        return value
    if kind == "sections":
        return [2, 1, 1] if size.head_size == 8 else [size.head_size // 4, size.head_size // 8, size.head_size // 8]
    if isinstance(value, list | tuple):
        if kind == "pattern":
            return list(value[: size.layers])
        return _shrink_list(kind, list(value), size)
    return _shrink_number(kind, value, size) if isinstance(value, int) else value


def _shrink_list(kind: str, values: list[Any], size: Size) -> list[Any]:
    if not values or not all(isinstance(v, int) and not isinstance(v, bool) for v in values):
        return values
    if kind in ("sizes", "hidden", "wide"):
        least = min(values) or 1
        return [max(8, v * size.hidden // (2 * least) // 8 * 8) if v else v for v in values]
    return [_shrink_number(kind, v, size) for v in values]


def _shrink_number(kind: str, value: int, size: Size) -> int:
    limits = {
        "rank": size.hidden // 2,
        "head_size": size.head_size,
        "kv_heads": size.heads // 2,
        "heads": size.heads,
        "experts": EXPERTS,
        "top": 2,
        "groups": 1,
        "vocabulary": VOCABULARY,
        "layers": size.layers,
        "wide": 2 * size.hidden,
        "hidden": size.hidden,
        "sizes": size.hidden,
        "positions": POSITIONS,
        "image": IMAGE,
        "patch": PATCH,
        "queries": 8,
        "frames": 4,
    }
    if kind == "token":
        return value if value < VOCABULARY else VOCABULARY - 1 - value % 10
    return min(value, limits.get(kind, value))
