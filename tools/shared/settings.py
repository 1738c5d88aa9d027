"""Read a tool's command line, its model and its dataset."""

import sys
from dataclasses import dataclass

from engine import checkpoint, dataset, published
from engine.errors import UserError, one_line_errors
from engine.settings import parse_settings
from model import GPT


def run(main, settings, first=""):
    """Call a tool's main with the settings of its command line; bad input ends it with one line.

    first: the setting that words before all settings belong to.
    """
    with one_line_errors():
        argv = sys.argv[1:]
        if first and argv and not argv[0].startswith("-"):
            argv.insert(0, f"--{first}")
        main(parse_settings(settings, argv))


@dataclass
class ModelSettings:
    """The settings of a tool that reads a model."""

    out_dir: str = "out"
    """A folder that train.py wrote, or one checkpoint in it."""
    checkpoint: str = "latest"
    """Which checkpoint: latest, best, or a name such as step_002000."""
    init_from: str = ""
    """A published model instead: a folder, or a name such as gpt2."""
    base: str = ""
    """Folder of a LoRA adapter's base model, if it has moved."""

    def load(self):
        """Return the folder of the model, the GPT and its tokenizer; UserError without one."""
        return published.load(GPT, self)


@dataclass
class DatasetSettings(ModelSettings):
    """The settings of a tool that reads a model and a dataset."""

    dataset: str = ""
    """A prepared dataset; empty: the one that the model was trained on."""

    def load_dataset(self, folder, tokenizer, block_size=1):
        """Return the Dataset for the model in a folder.

        UserError for other tokens than the model's, and for fewer than block_size.
        """
        training = checkpoint.load_config(folder)["training"] if checkpoint.is_ours(folder) else {}
        name = self.dataset or training.get("dataset")
        if not name:
            raise UserError("which text? give --dataset=NAME")
        data = dataset.load_dataset(name, block_size)
        if not tokenizer.extends(data.tokenizer):
            raise UserError(
                f"dataset {name} has other tokens than {folder}: prepare it with "
                f"--tokenizer={folder}"
            )
        if data.val.max() >= tokenizer.known:
            raise UserError(f"dataset {name} has special tokens that the model in {folder} lacks")
        return data
