"""Published models compute here what transformers computes: random weights, every family, every field of its config.json."""

import json
import random

import pytest
import safetensors.torch
import torch
from conftest import complaint, run_here  # noqa: E402

transformers = pytest.importorskip("transformers")


from engine.decoding.generation import stream  # noqa: E402
from engine.decoding.quantization import prepare_for_inference  # noqa: E402
from engine.decoding.sampling import RandomStream, Sampling  # noqa: E402
from engine.decoding.session import Session  # noqa: E402
from engine.decoding.speculation import ngram  # noqa: E402
from engine.text import (
    dataset,  # noqa: E402
    tokenizer,  # noqa: E402
)
from engine.weights import families, pretrained  # noqa: E402
from engine.weights.families import FAMILIES  # noqa: E402
from model import GPT, GPTConfig  # noqa: E402

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def config_class(kind):
    """transformers' class of a family's config.json."""
    return getattr(
        transformers,
        FAMILIES[kind].hf_class.removesuffix("ForCausalLM").removesuffix("LMHeadModel") + "Config",
    )


def random_config(kind, seed):
    """A small config of a family: shared key heads, odd sizes, tied or not, windows shorter than a text, RoPE as it may be."""
    rng = random.Random(f"{kind} {seed}")
    H, D, odd = rng.choice([2, 4, 6]), rng.choice([8, 12, 16]), rng.choice([10, 14])
    ids = dict(bos_token_id=1, eos_token_id=None, pad_token_id=None)
    if kind == "gpt2":
        return transformers.GPT2Config(
            vocab_size=97,
            n_positions=256,
            n_embd=H * D,
            n_layer=3,
            n_head=H,
            n_inner=rng.choice([None, 50]),
            activation_function=rng.choice(["gelu_new", "gelu"]),
            layer_norm_epsilon=rng.choice([1e-5, 1e-6]),
            **ids,
        )
    rope = {"rope_theta": rng.choice([1e4, 5e5])} | (
        {"rope_type": "default"} if kind != "llama" or seed % 2 else LLAMA3
    )
    more = {
        "llama": {"head_dim": rng.choice([None, odd])},
        "olmo2": {},
        "smollm3": {"no_rope_layer_interval": rng.choice([2, 4])},
        "mistral": {"head_dim": rng.choice([None, odd]), "sliding_window": [None, 7, 20][seed % 3]},
        "qwen2": {"max_window_layers": rng.choice([0, 1])},
        "qwen3": {"max_window_layers": 1, "head_dim": odd},
    }[kind]
    if kind in ("smollm3", "qwen2", "qwen3"):
        more |= {"sliding_window": 9, "use_sliding_window": seed % 2 == 0}
    return config_class(kind)(
        vocab_size=97,
        hidden_size=H * D,
        intermediate_size=rng.choice([40, 88]),
        num_hidden_layers=rng.choice([2, 5]),
        num_attention_heads=H,
        num_key_value_heads=rng.choice([1, 2, H]),
        max_position_embeddings=256,
        tie_word_embeddings=rng.random() < 0.5,
        rms_norm_eps=rng.choice([1e-5, 1e-6]),
        rope_parameters=rope,
        **ids,
        **more,
    )


def theirs(config, seed=0):
    """A model of transformers with weights of which each matters."""
    torch.manual_seed(seed)
    model = getattr(transformers, FAMILIES[config.model_type].hf_class)(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * (0.3 if p.dim() == 1 else 0.1))
    return model


def in_float64(model, ours):
    """Both in float64, without the parts that transformers always computes in float32: RMSNorm, and RoPE's tables."""

    def rms_norm(self, x):
        return self.weight * x * (x.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()

    def tables(x, position_ids):
        cos, sin = ours.transformer.wpe.rope(position_ids)
        return torch.cat([cos, cos], -1), torch.cat([sin, sin], -1)

    for name, module in model.named_modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = rms_norm.__get__(module)
        elif name.endswith("rotary_emb"):
            module.forward = tables
    return model.double(), ours.double()


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("seed", range(5))
def test_a_family_computes_the_same(kind, seed, tmp_path):
    """Catches a matrix, a norm, a window, an angle or a bias that is not where the family has it."""
    model = theirs(random_config(kind, seed), seed)
    model.save_pretrained(tmp_path, max_shard_size=["5GB", "30KB"][seed % 2])
    ours, idx = GPT.from_pretrained(tmp_path).eval(), torch.randint(97, (2, 64))
    with torch.no_grad():
        for tolerance in 1e-5, 1e-10:
            want, got = model(idx).logits, ours(idx, idx)[0]
            assert (got - want).abs().max() <= tolerance * want.abs().max()
            if tolerance == 1e-5:
                written = ours.generate(
                    idx[:1, :8], 200, temperature=0
                )  # with the cache; each is the likeliest there too:
                assert torch.equal(model(written).logits[:, 7:-1].argmax(-1), written[:, 8:])
            in_float64(model, ours)


# What these models' own config.json say (without what is in families.IGNORED), and what that means here.
SMOLLM2 = dict(
    model_type="llama",
    attention_bias=False,
    hidden_act="silu",
    hidden_size=576,
    intermediate_size=1536,
    is_llama_config=True,
    max_position_embeddings=8192,
    mlp_bias=False,
    num_attention_heads=9,
    num_hidden_layers=30,
    num_key_value_heads=3,
    rms_norm_eps=1e-05,
    rope_interleaved=False,
    rope_scaling=None,
    rope_theta=100000,
    tie_word_embeddings=True,
    vocab_size=49152,
)
LLAMA_32_1B = dict(
    model_type="llama",
    attention_bias=False,
    head_dim=64,
    hidden_act="silu",
    hidden_size=2048,
    intermediate_size=8192,
    max_position_embeddings=131072,
    mlp_bias=False,
    num_attention_heads=32,
    num_hidden_layers=16,
    num_key_value_heads=8,
    rms_norm_eps=1e-05,
    rope_scaling=dict(
        factor=32.0,
        high_freq_factor=4.0,
        low_freq_factor=1.0,
        original_max_position_embeddings=8192,
        rope_type="llama3",
    ),
    rope_theta=500000.0,
    tie_word_embeddings=True,
    vocab_size=128256,
)
MISTRAL_01 = dict(
    model_type="mistral",
    hidden_act="silu",
    hidden_size=4096,
    intermediate_size=14336,
    max_position_embeddings=32768,
    num_attention_heads=32,
    num_hidden_layers=32,
    num_key_value_heads=8,
    rms_norm_eps=1e-05,
    rope_theta=10000.0,
    sliding_window=4096,
    tie_word_embeddings=False,
    vocab_size=32000,
)
QWEN25 = dict(
    model_type="qwen2",
    hidden_act="silu",
    hidden_size=896,
    intermediate_size=4864,
    max_position_embeddings=32768,
    max_window_layers=24,
    num_attention_heads=14,
    num_hidden_layers=24,
    num_key_value_heads=2,
    rms_norm_eps=1e-06,
    rope_theta=1000000.0,
    sliding_window=32768,
    tie_word_embeddings=True,
    use_mrope=False,
    use_sliding_window=False,
    vocab_size=151936,
)
QWEN3 = dict(
    model_type="qwen3",
    attention_bias=False,
    head_dim=128,
    hidden_act="silu",
    hidden_size=1024,
    intermediate_size=3072,
    max_position_embeddings=40960,
    max_window_layers=28,
    num_attention_heads=16,
    num_hidden_layers=28,
    num_key_value_heads=8,
    rms_norm_eps=1e-06,
    rope_scaling=None,
    rope_theta=1000000,
    sliding_window=None,
    tie_word_embeddings=True,
    use_sliding_window=False,
    vocab_size=151936,
)
SMOLLM3 = dict(
    model_type="smollm3",
    attention_bias=False,
    hidden_act="silu",
    hidden_size=2048,
    intermediate_size=11008,
    layer_types=["full_attention"] * 36,
    max_position_embeddings=65536,
    max_window_layers=28,
    mlp_bias=False,
    no_rope_layer_interval=4,
    no_rope_layers=[1, 1, 1, 0] * 9,
    num_attention_heads=16,
    num_hidden_layers=36,
    num_key_value_heads=4,
    rms_norm_eps=1e-06,
    rope_scaling=None,
    rope_theta=5000000.0,
    sliding_window=None,
    use_sliding_window=False,
    vocab_size=128256,
)
PUBLISHED = [
    (SMOLLM2, dict(n_kv_head=3, rope_base=1e5, tie_weights=True)),
    (MISTRAL_01, dict(window=4096, window_pattern="S" * 32)),
    (LLAMA_32_1B, dict(head_size=64, rope_stretch=32.0, rope_trained=8192)),
    (QWEN25, dict(qkv_bias=True, window=0)),
    (
        MISTRAL_01 | dict(sliding_window=None, rope_theta=1000000.0, vocab_size=32768),
        dict(window=0, rope_base=1e6),
    ),
    (QWEN3, dict(head_size=128, qk_norm="head")),
    (SMOLLM3, dict(rope_pattern="RRRN" * 9, tie_weights=True)),
]


@pytest.mark.parametrize("config, ours", PUBLISHED, ids=lambda value: value.get("model_type", ""))
def test_published_configs(config, ours):
    """Catches a field of a published model that stops the load, or a meaning of it that was mistaken."""
    read = GPTConfig(**families.config_from_hugging_face(config))
    assert {name: getattr(read, name) for name in ours} == ours


FIELDS = [
    (kind, field)
    for kind, family in FAMILIES.items()
    for field in [
        *family.settings,
        *family.values,
        *family.layer_fields,
        *(["rope_theta", "rope_scaling", "rope_parameters"] if kind != "gpt2" else []),
        "unheard_of",
    ]
]


@pytest.mark.parametrize("kind, field", FIELDS)
def test_a_value_that_is_not_built_here(kind, field, tmp_path):
    """Catches a field that changes what a model computes and is ignored, or ends in a traceback."""
    model = theirs(random_config(kind, 2))
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {field: "unheard of"}))
    with pytest.raises(ValueError, match=f"{tmp_path} cannot be loaded: .*{field}='unheard of'"):
        GPT.from_pretrained(tmp_path)


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_field_has_been_thought_of(kind):
    """Catches a field of a family that the table does not know, or one that changes the model and is taken for nothing."""
    known = {field for family, field in FIELDS if family == kind}
    assert {*config_class(kind)().to_dict()} <= known | families.IGNORED
    assert not known & families.IGNORED


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "yarn", "factor": 4.0},
        {"type": "linear", "factor": 2.0},
        {"rope_type": "default", "partial_rotary_factor": 0.5},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 2.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 9,
        },
        {"rope_type": "llama3", "factor": "x", "original_max_position_embeddings": 9},
        {"mrope_section": [1, 2]},
        {"rope_type": []},
    ],
    ids=str,
)
def test_other_angles(scaling):
    """Catches a way to stretch RoPE that is taken for another one, or for none."""
    with pytest.raises((ValueError, TypeError), match="rope_scaling|factor|hashable"):
        families.config_from_hugging_face(LLAMA_32_1B | {"rope_scaling": scaling})


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_fastest_ways_to_sample(kind, tmp_path):
    """Catches int8 weights, packed layers or guesses that a family's layers do not survive."""
    model = theirs(random_config(kind, 4))
    model.save_pretrained(tmp_path)
    idx, written = torch.randint(97, (1, 20)), {}
    exact = GPT.from_pretrained(tmp_path).eval()
    for dtype, quantize in (
        (torch.float32, "none"),
        (torch.float16, "none"),
        (torch.bfloat16, "none"),
        (torch.float32, "int8"),
    ):
        ours = prepare_for_inference(GPT.from_pretrained(tmp_path), dtype, quantize)
        with torch.no_grad():
            want, got = exact(idx, idx)[0], ours(idx, idx)[0]
        size = (
            {torch.float32: 1e-5, torch.float16: 0.01, torch.bfloat16: 0.1}[dtype]
            if quantize == "none"
            else 0.1
        )
        assert (got - want).abs().max() <= size * want.abs().max()
    for guess in None, lambda session, most: ngram(session, min(most, 8)):
        session = Session(exact, list(idx), 60)
        tokens = stream(session, 60, Sampling(temperature=0), RandomStream([None]), guess=guess)
        written[guess is None] = [token.item() for token, _ in tokens]
    assert written[True] == written[False]


def test_a_text_in_a_published_models_tokens(tmp_path):
    """Catches a published model that cannot be fine-tuned: a dataset in its tokens, and a run that goes on from its weights."""
    (tmp_path / "text.txt").write_text("first line\nsecond line\n" * 60)
    theirs(random_config("qwen3", 0)).save_pretrained(tmp_path / "model")
    content = tokenizer.create_tokenizer("char", "abcdefghijklmnopqrstuvwxyz \n").for_hub()
    (tmp_path / "model" / "tokenizer.json").write_text(json.dumps(content))
    dataset.write_dataset(
        tmp_path / "data", [(tmp_path / "text.txt").read_text()], str(tmp_path / "model"), "a text"
    )
    flags = [
        "--max_iters=2",
        "--eval_iters=1",
        "--write_tokens=5",
        "--block_size=32",
        f"--out_dir={tmp_path / 'out'}",
    ]
    command = [
        "train.py",
        f"--init_from={tmp_path / 'model'}",
        f"--dataset={tmp_path / 'data'}",
        *flags,
    ]
    result = run_here(*command)
    assert result.returncode == 0, result.stderr
    result = run_here(
        "sample.py", f"--out_dir={tmp_path / 'out'}", "--start=first ", "--max_new_tokens=5"
    )
    assert result.returncode == 0 and result.stdout.startswith("first "), result.stderr
    dataset.write_dataset(
        tmp_path / "data", [(tmp_path / "text.txt").read_text()], "byte", "a text"
    )
    assert "was trained on other tokens" in complaint(run_here(*command))


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"num_hidden_layers": 10**9}, "layers"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps=0.0"),
        ({"rms_norm_eps": None}, "rms_norm_eps"),
        ({"tie_word_embeddings": None}, "tie_word_embeddings"),
        (
            {"sliding_window": None, "layer_types": ["sliding_attention"] * 36},
            "sliding_window=None",
        ),
        ({"head_dim": 0}, "head_dim"),
        ({"no_rope_layers": [1, 2] * 18}, "no_rope_layers"),
        ({"no_rope_layers": [1]}, "no_rope_layers"),
    ],
    ids=str,
)
def test_values_that_mean_something_else(changes, named):
    """Catches a number that stands for a default here, and not there, and values that end in a traceback."""
    with pytest.raises(ValueError, match=named):
        families.config_from_hugging_face(SMOLLM3 | changes)


def test_a_head_of_its_own(tmp_path):
    """Catches a head that is dropped since config.json says that it is the embedding."""
    model = theirs(random_config("qwen3", 0))
    model.config.tie_word_embeddings = True
    model.save_pretrained(tmp_path)
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    assert GPT.from_pretrained(tmp_path).config.tie_weights
    tensors["lm_head.weight"][0, 0] += 1
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="its head is another matrix"):
        GPT.from_pretrained(tmp_path)


def test_gpt2_as_it_is_published(tmp_path, gpt2_files):
    """Catches GPT-2's own tokens that are not known as such: its tokenizer_config.json does not name the end of a text."""
    gpt2 = tokenizer.create_tokenizer("gpt2")
    transformers.GPT2Config(n_embd=8, n_layer=1, n_head=1).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps(gpt2.for_hub()))
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 1024}')
    assert pretrained.load_tokenizer(tmp_path, 50257).spec() == gpt2.spec()
