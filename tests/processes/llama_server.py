"""llama.cpp's own server with a random model of 300 kB, as a program: a real server for tests.

    python llama_server.py --port 9000 --model FILE --alias m

Needs xllamacpp and gguf. The weights are random, so the answers are noise of the right length.
"""

from __future__ import annotations

import argparse
import threading
from pathlib import Path
from typing import Any

WIDTH, HEADS, LAYERS, INNER = 64, 2, 1, 128


def write_model(path: Path) -> None:
    """A llama of one layer whose tokens are the bytes and three words."""
    import gguf
    import numpy as np

    tokens = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)]]
    tokens += ["\u2581the", "\u2581a", "\u2581"]
    to = gguf.GGUFWriter(str(path), "llama")
    to.add_name("tiny-random")
    to.add_context_length(512)
    to.add_embedding_length(WIDTH)
    to.add_block_count(LAYERS)
    to.add_feed_forward_length(INNER)
    to.add_head_count(HEADS)
    to.add_head_count_kv(HEADS)
    to.add_layer_norm_rms_eps(1e-5)
    to.add_rope_dimension_count(WIDTH // HEADS)
    to.add_file_type(0)
    to.add_vocab_size(len(tokens))
    to.add_tokenizer_model("llama")
    to.add_token_list(tokens)
    to.add_token_scores([0.0] * len(tokens))
    to.add_token_types([2, 3, 3] + [6] * 256 + [1, 1, 1])
    to.add_bos_token_id(1)
    to.add_eos_token_id(2)
    to.add_unk_token_id(0)
    to.add_chat_template("{% for m in messages %}{{m['content']}}{% endfor %}")
    chance = np.random.default_rng(0)

    def noise(*shape: int) -> Any:
        return (chance.standard_normal(shape) * 0.02).astype(np.float32)

    ones = np.ones(WIDTH, np.float32)
    to.add_tensor("token_embd.weight", noise(len(tokens), WIDTH))
    to.add_tensor("output_norm.weight", ones)
    to.add_tensor("output.weight", noise(len(tokens), WIDTH))
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        to.add_tensor(block + "attn_norm.weight", ones)
        to.add_tensor(block + "ffn_norm.weight", ones)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            to.add_tensor(f"{block}{name}.weight", noise(WIDTH, WIDTH))
        to.add_tensor(block + "ffn_gate.weight", noise(INNER, WIDTH))
        to.add_tensor(block + "ffn_up.weight", noise(INNER, WIDTH))
        to.add_tensor(block + "ffn_down.weight", noise(WIDTH, INNER))
    to.write_header_to_file()
    to.write_kv_data_to_file()
    to.write_tensors_to_file()
    to.close()


def serve(model: Path, alias: str, port: int) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.model_alias = {alias}
    params.n_ctx, params.n_parallel, params.warmup = 512, 2, False
    params.hostnames, params.port = ["127.0.0.1"], port
    params.cpuparams.n_threads = 1
    server = xllamacpp.Server(params)
    threading.Event().wait()
    del server


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--alias", default="m")
    options = parser.parse_args()
    serve(options.model, options.alias, options.port)


if __name__ == "__main__":
    main()
