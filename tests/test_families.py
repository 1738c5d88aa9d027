"""Published models compute here what transformers computes: random weights, every family, every field of its config.json."""

import random

import pytest
import torch

transformers = pytest.importorskip("transformers")

from model import GPT  # noqa: E402

CLASSES = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel"), "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "mistral": ("MistralConfig", "MistralForCausalLM"), "smollm3": ("SmolLM3Config", "SmolLM3ForCausalLM"),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"), "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM"),
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}


def random_config(kind, seed):
    """A small config of a family: shared key heads, odd sizes, tied or not, windows shorter than a text, RoPE as it may be."""
    rng = random.Random(f"{kind} {seed}")
    H, D, odd = rng.choice([2, 4, 6]), rng.choice([8, 12, 16]), rng.choice([10, 14])
    ids = dict(bos_token_id=1, eos_token_id=None, pad_token_id=None)
    if kind == "gpt2":
        return transformers.GPT2Config(
            vocab_size=97, n_positions=256, n_embd=H * D, n_layer=3, n_head=H, n_inner=rng.choice([None, 50]),
            activation_function=rng.choice(["gelu_new", "gelu"]), layer_norm_epsilon=rng.choice([1e-5, 1e-6]), **ids)
    rope = {"rope_theta": rng.choice([1e4, 5e5])} | ({"rope_type": "default"} if kind != "llama" or seed % 2 else LLAMA3)
    more = {
        "llama": {"head_dim": rng.choice([None, odd])}, "olmo2": {}, "smollm3": {"no_rope_layer_interval": rng.choice([2, 4])},
        "mistral": {"head_dim": rng.choice([None, odd]), "sliding_window": [None, 7, 20][seed % 3]},
        "qwen2": {"max_window_layers": rng.choice([0, 1])}, "qwen3": {"max_window_layers": 1, "head_dim": odd},
    }[kind]
    if kind in ("smollm3", "qwen2", "qwen3"):
        more |= {"sliding_window": 9, "use_sliding_window": seed % 2 == 0}
    return getattr(transformers, CLASSES[kind][0])(
        vocab_size=97, hidden_size=H * D, intermediate_size=rng.choice([40, 88]), num_hidden_layers=rng.choice([2, 5]),
        num_attention_heads=H, num_key_value_heads=rng.choice([1, 2, H]), max_position_embeddings=256,
        tie_word_embeddings=rng.random() < 0.5, rms_norm_eps=rng.choice([1e-5, 1e-6]), rope_parameters=rope, **ids, **more,
    )


def theirs(config, seed=0):
    """A model of transformers with weights of which each matters."""
    torch.manual_seed(seed)
    model = getattr(transformers, CLASSES[config.model_type][1])(config).eval()
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


@pytest.mark.parametrize("kind", CLASSES)
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
                written = model.generate(idx[:1, :8], max_new_tokens=200, do_sample=False, use_cache=True)
                assert torch.equal(ours.generate(idx[:1, :8], 200, temperature=0), written)
            in_float64(model, ours)
