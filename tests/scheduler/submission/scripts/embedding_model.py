"""A small random BERT with 768 dimensions as a GGUF file, for a real run of embeddings."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

WIDTH, HEADS, INNER, CONTEXT = 768, 4, 64, 128
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = string.ascii_lowercase + string.digits + string.punctuation


def write_embedding_model(path: Path) -> None:
    """One layer, whose words are single characters. It pools by the mean."""
    import gguf
    import numpy as np

    # A word begins with a bar; its other pieces do not.
    words = [*SPECIAL, *(f"\u2581{letter}" for letter in LETTERS), *LETTERS]
    to = gguf.GGUFWriter(str(path), "bert")
    to.add_name("tiny-random-bert")
    to.add_context_length(CONTEXT)
    to.add_embedding_length(WIDTH)
    to.add_block_count(1)
    to.add_feed_forward_length(INNER)
    to.add_head_count(HEADS)
    to.add_layer_norm_eps(1e-12)
    to.add_causal_attention(False)
    to.add_pooling_type(gguf.PoolingType.MEAN)
    to.add_file_type(0)
    to.add_vocab_size(len(words))
    to.add_token_type_count(1)
    to.add_tokenizer_model("bert")
    to.add_tokenizer_pre("default")
    to.add_token_list(words)
    to.add_token_types([3] * len(SPECIAL) + [1] * (len(words) - len(SPECIAL)))
    to.add_pad_token_id(0)
    to.add_unk_token_id(1)
    to.add_bos_token_id(2)
    to.add_sep_token_id(3)
    to.add_mask_token_id(4)
    chance = np.random.default_rng(0)

    def layer(name: str, rows: int, columns: int) -> None:
        noise: Any = chance.standard_normal((rows, columns)) * 0.05
        to.add_tensor(f"{name}.weight", noise.astype(np.float32))
        if name.startswith("blk."):
            to.add_tensor(f"{name}.bias", np.zeros(rows, np.float32))

    def norm(name: str) -> None:
        to.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
        to.add_tensor(f"{name}.bias", np.zeros(WIDTH, np.float32))

    layer("token_embd", len(words), WIDTH)
    layer("position_embd", CONTEXT, WIDTH)
    layer("token_types", 1, WIDTH)
    norm("token_embd_norm")
    for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
        layer(f"blk.0.{part}", WIDTH, WIDTH)
    norm("blk.0.attn_output_norm")
    layer("blk.0.ffn_up", INNER, WIDTH)
    layer("blk.0.ffn_down", WIDTH, INNER)
    norm("blk.0.layer_output_norm")
    to.write_header_to_file()
    to.write_kv_data_to_file()
    to.write_tensors_to_file()
    to.close()
