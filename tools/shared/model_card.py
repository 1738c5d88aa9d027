"""The model card of an exported folder: README.md, whose first lines the Hugging Face hub reads."""

import json
import math
import re

from engine.weights import checkpoint

SIZES = "batch_size", "gradient_accumulation_steps", "block_size"
SETTINGS = """
seed batch_size gradient_accumulation_steps max_iters optimizer learning_rate embedding_lr head_lr
vector_lr momentum muon_steps weight_decay beta1 beta2 grad_clip decay_lr lr_schedule warmup_iters
hold lr_decay_iters min_lr dtype mask_documents
""".split()
LORA = "lora_rank", "lora_alpha", "lora_targets"
OURS = """\
What lookback's train.py recorded. Losses are in nats per token; val_loss is that of the validation
split, seconds the time of the run. If the run was resumed, began_from is "resume", and the settings
and the product tokens_seen are those of its last part."""
OTHERS = """\
These weights were not trained by lookback, which only wrote them in this layout. For their data,
their training and their license see the model that they come from."""
CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
tags:
- lookback
- {about[model_type]}
# license: yours to fill in: what the training text and the first weights allow, not lookback's own
---

# {about[architectures][0]}, {parameters:,} parameters

Weights in {about[torch_dtype]}, a context of {context:,} tokens, a tokenizer of the kind `{kind}`
with {tokenizer.vocab_size:,} of them.

## Training

{training}

```json
{facts}
```

## Use

```python
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

tokenizer = PreTrainedTokenizerFast.from_pretrained("FOLDER")
model = AutoModelForCausalLM.from_pretrained("FOLDER")
inputs = tokenizer("Once upon", return_tensors="pt").input_ids
print(tokenizer.decode(model.generate(inputs, max_new_tokens=50)[0]))
```

With lookback: `python sample.py --init_from=FOLDER --start="Once upon"`
{notes}"""


def read_facts(folder, name):
    """Return what is known of a model's training, as a dict, from the folder of its weights.

    name: what the user called it. No path is in it: it would tell strangers about this machine.
    """
    if not checkpoint.is_ours(folder):
        return {"converted_from": without_path(name)}
    config = checkpoint.load_config(folder)
    training = config["training"]
    sizes = [training.get(name) for name in SIZES]
    names = [*SETTINGS, *(LORA if config["lora"] else ())]
    facts = {
        "dataset": without_path(training.get("dataset", "")),
        "dataset_sha256": config["data"],
        "began_from": without_path(training.get("init_from", "")),
        "steps": config["step"],
        "tokens_seen": None if None in sizes else config["step"] * math.prod(sizes),
        **losses(folder, config),
        "settings": {name: training[name] for name in names if name in training},
    }
    return {name: value for name, value in facts.items() if value is not None}


def without_path(name):
    """Return a name as it is, such as gpt2 or owner/name, but of a path only its last part."""
    published = re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", str(name))
    return name if published else re.split(r"[/\\]", str(name))[-1]


def losses(folder, config):
    """Return the losses of a checkpoint, and the seconds of its run, as far as they are known."""
    record = config["record"]
    if record:
        line = checkpoint.read_metrics(folder.parent / "metrics.jsonl").get(config["step"], {})
        if line.items() >= record.items():  # it is this run's: a checkpoint may have been moved
            record = line
    names = {"train_loss": "train_loss", "val_loss": "val_loss", "wall_s": "seconds"}
    return {ours: record.get(name) for name, ours in names.items()}


def card(model, tokenizer, about, facts, notes):
    """Return the text. about: config.json's content, a dict. notes: sentences for its readers."""
    return CARD.format(
        about=about,
        parameters=model.num_params(),
        context=model.config.block_size,
        kind=tokenizer.spec()["kind"],
        tokenizer=tokenizer,
        training=OTHERS if "converted_from" in facts else OURS,
        facts=json.dumps(facts, indent=1),  # one line each, whatever a name has in it
        notes="".join(f"\n- {note}" for note in notes) + "\n" if notes else "",
    )
