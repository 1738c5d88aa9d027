"""The data on which a tool measures a model."""

from engine.text import dataset
from engine.weights import checkpoint


def dataset_of(folder, name, tokenizer, block_size=1):
    """Return the name of a dataset, and the Dataset.

    name: empty for the dataset of the training. ValueError for other tokens than the model's, and
    for fewer than block_size.
    """
    training = checkpoint.load_config(folder)["training"] if checkpoint.is_ours(folder) else {}
    name = name or training.get("dataset")
    if not name:
        raise ValueError("which text? give --dataset=NAME")
    data = dataset.load_dataset(name, block_size, training.get("data_tokenizer", ""))
    if not data.tokenizer.same_ids(tokenizer):
        remedy = f"prepare it with --tokenizer={folder}"
        raise ValueError(f"dataset {name} has other tokens than {folder}: {remedy}")
    return name, data
