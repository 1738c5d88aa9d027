"""Exported models compute in transformers what they compute here, and come back bit for bit."""

import pytest
import torch
from conftest import LLAMA, POEM, parametrize, randomized, refused, same_ids, save, tiny
from mechanisms import mechanisms

from engine import published
from engine.chat import ChatTemplate, chat_tokenizer
from engine.files import read_json
from engine.published import WithoutInit
from engine.tokenizer import create_tokenizer
from model import GPT, MODERN, GPTConfig
from tools.export import ExportConfig, export, standard

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("here")
LETTERS = [*map(chr, range(32, 96))]
SMALL = dict(block_size=64, vocab_size=64, n_layer=3, n_head=4, n_embd=32)
LONG = dict(rope_stretch=4.0, rope_trained=16)
EXPORTABLE = {
    "gpt2": dict(bias=True, mlp="gelu_tanh"),
    "gpt2 of nanoGPT": dict(bias=False, mlp="gelu", tie_weights=False),
    "llama": LLAMA | dict(tie_weights=False),
    "llama 3": LLAMA | LONG | dict(n_kv_head=2, head_size=10),
    "gpt2, silu": dict(mlp="silu", bias=False, qkv_bias=True),
    "mistral": LLAMA | dict(window=7),
    "qwen2": LLAMA | dict(qkv_bias=True),
    "qwen3": LLAMA | dict(qk_norm="head", n_kv_head=2),
    "qwen3, as modern": MODERN | dict(mlp="swiglu"),
}


def saved(encoding=None, **settings):
    """Save a model in which each weight matters to out; return it."""
    model = tiny(**SMALL | settings)
    save("out", model, encoding=encoding or create_tokenizer("char", LETTERS))
    return model


def exported(to="to", **settings):
    """Export out; return the folder."""
    return export(ExportConfig(to=to, **settings))


@torch.no_grad()
@parametrize("name", EXPORTABLE)
def test_transformers(name):
    """Catches a family, a name, a matrix or a default that is not the model's, there or here."""
    model = saved(**EXPORTABLE[name])
    folder = exported()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    idx = torch.randint(64, (2, 64))
    expected = model(idx, idx)[0]
    assert (theirs(idx).logits - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert torch.equal(GPT.from_pretrained(folder).eval()(idx, idx)[0], expected)


def test_a_chat_template():
    """Catches a template, a special token or an end of turn that transformers does not find: its
    answer would be another one, or go on as a user's turn.
    """
    encoding = chat_tokenizer("byte")
    saved(encoding, **LLAMA, vocab_size=encoding.vocab_size)
    folder = exported()
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    end = encoding.special_tokens["<|im_end|>"]
    special = [*encoding.special_tokens.values()]
    assert theirs.eos_token_id == end and theirs.decode(special, skip_special_tokens=True) == ""
    messages = [{"role": "user", "content": "Who are you?"}]
    ids = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
    assert ids["input_ids"] == ChatTemplate(encoding).encode_prompt(messages, 99)
    ends = transformers.GenerationConfig.from_model_config(
        transformers.AutoConfig.from_pretrained(folder)
    )
    assert ends.eos_token_id == [encoding.end_of_text, end]


ALL_HAVE = [{}, dict(norm_eps=1e-3), dict(rope_base=100.0)]  # or it changes nothing


@torch.no_grad()
@parametrize("name", EXPORTABLE)
def test_any_settings(name):
    """Catches a model that is exported as one that computes something else, or refused for what
    its family has.
    """
    start = SMALL | dict(attention="masked_fill", rope_trained=32, norm_eps=1e-5, n_layer=2)
    for changes in [*mechanisms(), *ALL_HAVE, dict(window=5), dict(n_kv_head=2)]:
        try:
            with WithoutInit():
                model = GPT(GPTConfig(**start | EXPORTABLE[name] | changes)).eval()
                _, config = standard(model)
                again = GPT(config).eval()
        except ValueError:
            assert changes not in ALL_HAVE
            continue
        for part, p in again.named_parameters():
            p.fill_(part.endswith("weight") and p.dim() == 1)
        again.load_state_dict(randomized(model).state_dict(), strict=False)
        idx = torch.randint(64, (2, 16))
        expected = model.double()(idx, idx)[0]
        error = (again.double()(idx, idx)[0] - expected).abs().max()
        assert error <= 1e-12 * expected.abs().max(), changes


def test_half_precision():
    """Catches another dtype than config.json says, weights that become infinite without a word, and
    a folder that is half written.
    """
    model = saved(**LLAMA)
    model.transformer.wte.weight.data[0, 0] = 1e5
    save("out", model, 2, create_tokenizer("char", LETTERS))
    with refused("too large for float16: choose --dtype=bfloat16"):
        exported(dtype="float16")
    folder = exported(dtype="bfloat16")
    assert transformers.AutoModelForCausalLM.from_pretrained(folder).dtype == torch.bfloat16
    for p, q in zip(GPT.from_pretrained(folder).parameters(), model.parameters()):
        assert torch.equal(p, q.bfloat16().float())


@parametrize("kind", ["char", "bpe:300"])
def test_the_end_of_text(kind):
    """Catches other tokens, a model whose readers do not know where a text ends, and ids that pad
    a vocabulary, which they could draw.
    """
    encoding = create_tokenizer(kind, [POEM])
    model = saved(encoding, vocab_size=320)
    folder = exported()
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    config = read_json(folder / "config.json")
    assert theirs.eos_token_id == config["eos_token_id"] == encoding.end_of_text
    assert theirs(POEM).input_ids == encoding.encode(POEM).tolist()
    assert same_ids(published.load_tokenizer(folder, 320), encoding)
    idx = torch.randint(encoding.vocab_size, (1, 9))
    expected = model(idx, idx)[0][..., : encoding.vocab_size]
    found = GPT.from_pretrained(folder)(idx, idx)[0]
    assert found.shape == expected.shape and torch.allclose(found, expected, atol=1e-5)
