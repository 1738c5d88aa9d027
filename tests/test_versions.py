"""What is called of PyTorch exists in every version that pyproject.toml allows."""

import ast
import inspect
import pkgutil
import re
import tomllib

from conftest import ROOT
from packaging.requirements import Requirement

ROOMS = "", "engine/**/", "data/*/", "tools/**/", "benchmarks/", "experiments/**/", "exercises/**/"
# Parts of PyTorch that change from version to version.
WATCHED = (
    "torch.accelerator torch.amp torch.compiler torch.distributed torch.nn.attention "
    "torch.nn.utils torch.optim torch.utils torch._dynamo torch._inductor"
).split()
BOTH = {  # what is called of them -> the parameters that PyTorch 2.11.0 and 2.14.1 both have
    "torch._dynamo.mark_static_address": "t guard",
    "torch.accelerator.synchronize": "device",
    "torch.amp.GradScaler": "device init_scale growth_factor growth_interval enabled",
    "torch.compiler.is_compiling": "",
    "torch.compiler.nested_compile_region": "fn",
    "torch.compiler.reset": "",
    "torch.distributed.all_reduce": "tensor op group async_op",
    "torch.distributed.all_gather_object": "object_list obj group",
    "torch.distributed.broadcast": "tensor src group async_op group_src",
    "torch.distributed.destroy_process_group": "group",
    "torch.distributed.device_mesh.init_device_mesh": "device_type mesh_shape mesh_dim_names",
    "torch.distributed.fsdp.fully_shard": "module mesh reshard_after_forward mp_policy",
    "torch.distributed.rendezvous.rendezvous": "url",
    "torch.distributed.init_process_group": "backend store rank world_size timeout",
    "torch.nn.attention.sdpa_kernel": "backends set_priority",
    "torch.nn.attention.varlen.varlen_attn": (
        "query key value cu_seq_q cu_seq_k max_q max_k return_aux scale window_size"
    ),
    "torch.nn.utils.clip_grad_norm_": "parameters max_norm norm_type",
    "torch.nn.utils.clip_grads_with_norm_": "parameters max_norm total_norm",
    "torch.nn.utils.get_total_norm": "tensors norm_type",
    "torch.nn.utils.rnn.pack_padded_sequence": "input lengths batch_first enforce_sorted",
    "torch.nn.utils.rnn.pad_packed_sequence": "sequence batch_first padding_value total_length",
    "torch.nn.utils.rnn.pad_sequence": "sequences batch_first padding_value padding_side",
    "torch.optim.AdamW": "params lr betas eps weight_decay fused",
    "torch.optim.adamw.adamw": (
        "params grads exp_avgs exp_avg_sqs max_exp_avg_sqs state_steps foreach fused grad_scale "
        "found_inf amsgrad beta1 beta2 lr weight_decay eps maximize"
    ),
    "torch.optim.lr_scheduler.LambdaLR": "optimizer lr_lambda last_epoch",
    "torch.utils.checkpoint.checkpoint": "function args use_reentrant",
    "torch.utils.flop_counter.FlopCounterMode": "display depth",
}


def calls(tree):
    """Yield (dotted name, keywords) of each call of what is watched."""
    names = {"torch": "torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname: alias.name for alias in node.names if alias.asname}
        if isinstance(node, ast.ImportFrom):
            names |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            first, *rest = ast.unparse(node.func).split(".")
            name = ".".join([names.get(first, first), *rest])
            if name.startswith(tuple(f"{part}." for part in WATCHED)):
                yield name, [keyword.arg for keyword in node.keywords if keyword.arg]


def test_what_is_called_exists_in_all_versions():
    """Catches an argument that a GPU's PyTorch lacks, as varlen_attn's enable_gqa in 2.11; and a
    version that has renamed it.
    """
    paths = [path for room in ROOMS for path in ROOT.glob(f"{room}*.py")]
    found = [call for path in paths for call in calls(ast.parse(path.read_text("utf-8")))]
    without = {"TCPStore", "PrefixStore", "SummaryWriter"}  # no signature, or another package's
    found = [call for call in found if call[0].rpartition(".")[2] not in without]
    assert {name for name, _ in found} == BOTH.keys()  # add what is new, from both versions
    for name, keywords in found:
        known = set(BOTH[name].split())
        parameters = inspect.signature(pkgutil.resolve_name(name)).parameters
        assert set(keywords) <= known <= parameters.keys(), name


def test_options_of_the_compiler():
    """Catches an option that this PyTorch lacks: it would be an error on a GPU only."""
    import torch._inductor  # takes a second

    wanted = {"triton.cudagraphs", "triton.cudagraph_or_error", "coordinate_descent_tuning"}
    assert wanted <= set(torch._inductor.list_options())


def test_pinned_versions():
    """Catches a package without a lower bound or a pin, and a pin outside of its range."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = "".join(path.read_text() for path in ROOT.glob("requirements*.txt"))
    pins = dict(re.findall("^(.+)==(.+)$", text, re.MULTILINE))
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    wanted = {r.name: r.specifier for group in groups for r in map(Requirement, group)}
    del wanted["lookback"]
    assert wanted.keys() == pins.keys()
    for name, specifier in wanted.items():
        assert [bound.operator for bound in specifier] == [">="], name
        assert pins[name] in specifier
    assert str(wanted["torch"]) == ">=2.11"  # the table's first version
