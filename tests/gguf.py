"""A tiny llama-architecture GGUF that llama-server really runs, and that always says the same.

Every token is one of a few states: state 0 is anything outside the reply, state ``i`` its
``i``-th word. The embedding of a token is the unit vector of its state, and the output
row of a word is the unit vector of the state before it, scaled so far above all others
that no sampler setting can choose another. The layers between hold zeros: they cost real
time (``pad_mb`` makes them as heavy as wanted) and add nothing. Zeros are left out of the
file as a hole, so a heavy model is written in no time.

    python -m tests.gguf OUT [--reply TEXT] [--loop] [--pad-mb N] [--context N]
"""

import argparse
import struct
from collections.abc import Iterable
from pathlib import Path

REPLY = "Hello! I am a tiny model made for tests, so every answer reads the same."

_F32, _Q8_0 = 0, 8
_ALIGN = 32
_UNKNOWN, _CONTROL, _NORMAL, _BYTE = 2, 3, 1, 6
_BOS, _EOS = 1, 2
_TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _entry(key: str, value: str | int | float) -> bytes:
    """One metadata pair: text, a 32-bit unsigned number, or a 32-bit float."""
    if isinstance(value, str):
        return _string(key) + struct.pack("<I", 8) + _string(value)
    kind, form = (6, "<f") if isinstance(value, float) else (4, "<I")
    return _string(key) + struct.pack("<I", kind) + struct.pack(form, value)


def _array(key: str, kind: int, items: Iterable[bytes]) -> bytes:
    packed = list(items)
    return _string(key) + struct.pack("<IIQ", 9, kind, len(packed)) + b"".join(packed)


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _unit(width: int, places: Iterable[int], value: float) -> bytes:
    row = [0.0] * width
    for place in places:
        row[place] = value
    return struct.pack(f"<{width}f", *row)


def write_gguf(
    file: Path, reply: str = REPLY, *, loop: bool = False, pad_mb: int = 0, context: int = 131072, layers: int = 2
) -> Path:
    """Write the model to ``file`` and return it.

    ``reply`` is said one word a token, each answer starting with a space; its words must
    differ. ``loop`` repeats it without end instead of ending the answer. ``pad_mb``
    is about how many megabytes of weights each token has to pass through.
    """
    words = ["\u2581" + word for word in reply.split()]
    if not words or len(set(words)) != len(words):
        raise ValueError("the reply needs at least one word, and no word twice")
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    kinds = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256, *[_NORMAL] * len(words)]
    first = len(tokens) - len(words)

    width = _aligned(len(words) + 1)
    hidden = max(32, _aligned(int(pad_mb * 1e6 / (layers * 3 * width * 34 / 32))))
    embedding = b"".join(_unit(width, [max(0, token - first + 1)], 1.0) for token in range(len(tokens)))
    told_by: dict[int, list[int]] = {first + state: [state] for state in range(len(words))}
    told_by.setdefault(first if loop else _EOS, []).append(len(words))
    output = b"".join(_unit(width, told_by.get(token, []), 16.0) for token in range(len(tokens)))
    ones = struct.pack(f"<{width}f", *[1.0] * width)

    # Name, type, dimensions (fastest first), and the data: a size stands for that many zeros.
    tensors: list[tuple[str, int, tuple[int, ...], bytes | int]] = [
        ("token_embd.weight", _F32, (width, len(tokens)), embedding),
        ("output_norm.weight", _F32, (width,), ones),
        ("output.weight", _F32, (width, len(tokens)), output),
    ]
    for layer in range(layers):
        tensors += [(f"blk.{layer}.{name}_norm.weight", _F32, (width,), ones) for name in ("attn", "ffn")]
        shapes = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (width, width))
        shapes |= {"ffn_gate": (width, hidden), "ffn_up": (width, hidden), "ffn_down": (hidden, width)}
        tensors += [
            (f"blk.{layer}.{name}.weight", _Q8_0, shape, shape[0] * shape[1] // 32 * 34)
            for name, shape in shapes.items()
        ]

    metadata = [
        _entry("general.architecture", "llama"),
        _entry("general.name", "tiny-test"),
        _entry("llama.context_length", context),
        _entry("llama.embedding_length", width),
        _entry("llama.block_count", layers),
        _entry("llama.feed_forward_length", hidden),
        _entry("llama.attention.head_count", 1),
        _entry("llama.attention.layer_norm_rms_epsilon", 1e-5),
        _entry("tokenizer.ggml.model", "llama"),
        _array("tokenizer.ggml.tokens", 8, map(_string, tokens)),
        _array("tokenizer.ggml.scores", 6, (struct.pack("<f", 0.0 if kind == _NORMAL else -1.0) for kind in kinds)),
        _array("tokenizer.ggml.token_type", 5, (struct.pack("<i", kind) for kind in kinds)),
        _entry("tokenizer.ggml.bos_token_id", _BOS),
        _entry("tokenizer.ggml.eos_token_id", _EOS),
        _entry("tokenizer.chat_template", _TEMPLATE),
    ]
    head = bytearray(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata)) + b"".join(metadata))
    offset = 0
    for name, kind, shape, data in tensors:
        head += _string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
        offset += _aligned(data if isinstance(data, int) else len(data))
    with file.open("wb") as stream:
        stream.write(head.ljust(_aligned(len(head)), b"\0"))
        for *_, data in tensors:
            if isinstance(data, int):
                stream.seek(_aligned(data), 1)
            else:
                stream.write(data.ljust(_aligned(len(data)), b"\0"))
        stream.truncate()
    return file


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Write a tiny GGUF that llama-server can serve.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--reply", default=REPLY)
    parser.add_argument("--loop", action="store_true", help="never end the answer")
    parser.add_argument("--pad-mb", type=int, default=0, help="megabytes of weights to pass through per token")
    parser.add_argument("--context", type=int, default=131072, help="tokens the model was made for")
    options = parser.parse_args()
    write_gguf(options.out, options.reply, loop=options.loop, pad_mb=options.pad_mb, context=options.context)


if __name__ == "__main__":
    main()
