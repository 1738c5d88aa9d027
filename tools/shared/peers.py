"""Other implementations of GPT-2 to compare with: nanoGPT, transformers and CTranslate2."""

import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

SAMPLING = dict(temperature=0.8, top_k=200)  # nanoGPT's own


def nanogpt(folder):
    """Return the classes GPT and GPTConfig of a clone of nanoGPT."""
    return SimpleNamespace(**runpy.run_path(str(Path(folder, "model.py"))))


def save_for_transformers(model, folder):
    """Save the same weights as transformers' GPT-2, with numbers for words."""
    from tokenizers import Tokenizer, models
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    config = model.config
    names = ("vocab_size", "n_layer", "n_head", "n_embd")
    shape = {name: getattr(config, name) for name in names}
    theirs = GPT2LMHeadModel(
        GPT2Config(**shape, n_positions=config.block_size, activation_function="gelu")
    )
    weights = model.state_dict()
    for name, p in weights.items():
        if ".h." in name and p.dim() == 2:
            weights[name] = p.mT  # its Conv1D is a transposed Linear
    theirs.load_state_dict(weights)
    theirs.save_pretrained(folder)

    vocabulary = {str(n): n for n in range(config.vocab_size)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="0"))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="0", bos_token="0", eos_token="0"
    )
    tokenizer.save_pretrained(folder)


def transformers_writer(folder, dtype, prompt, tokens):
    """Return a function that continues prompt (1, T) by transformers' generate."""
    from transformers import GPT2LMHeadModel

    model = GPT2LMHeadModel.from_pretrained(folder).to(prompt.device, dtype).eval()
    settings = dict(
        **SAMPLING,
        do_sample=True,
        pad_token_id=0,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=tokens,
        min_new_tokens=tokens,
    )
    return lambda: model.generate(prompt, **settings)


def ctranslate2_code(folder, dtype, prompts, tokens, vocab_size):
    """Return Python code that loads CTranslate2's model, and code that continues prompts.

    prompts: lists of ids. CTranslate2's converter reads what save_for_transformers wrote to folder.
    """
    from ctranslate2.converters import TransformersConverter

    target = Path(folder, f"ctranslate2-{dtype}")
    if not target.exists():
        TransformersConverter(str(folder)).convert(str(target), quantization=dtype)
    model = dict(
        model_path=str(target),
        device="cpu",
        compute_type=dtype,
        intra_threads=torch.get_num_threads(),
    )
    settings = dict(
        start_tokens=[[str(token) for token in prompt] for prompt in prompts],
        max_batch_size=len(prompts),
        max_length=tokens,
        min_length=tokens,
        include_prompt_in_result=False,  # or max_length would count the prompt
        sampling_topk=min(SAMPLING["top_k"], vocab_size),
        sampling_temperature=SAMPLING["temperature"],
    )
    load = f"import ctranslate2; generator = ctranslate2.Generator(**{model})"
    return load, f"generator.generate_batch(**{settings})"


def in_another_process(load, step):
    """Return a function that runs `step` in a process that has run `load`.

    Two OpenMP libraries in one process would slow each other down.
    """
    code = f"import sys; {load}\nfor line in sys.stdin:\n    {step}; print(flush=True)"
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    process = subprocess.Popen([sys.executable, "-c", code], **pipes)

    def run():
        process.stdin.write("\n")
        if not process.stdout.readline():
            raise ValueError("CTranslate2's process has ended: see its message above")

    return run
