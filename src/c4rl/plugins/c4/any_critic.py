"""Anyone's critic, seen from outside: which arguments it takes, its Q, and its penultimate features."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from c4rl.core.errors import InputError

CriticFunction = nn.Module | Callable[..., Tensor]


def unwrapped(critic: CriticFunction) -> CriticFunction:
    """The module within torch.compile's: its layers are called one by one, and gradients can be differentiated."""
    return getattr(critic, "_orig_mod", critic)


def _modules(critic: CriticFunction) -> list[nn.Module]:
    """Of a module, or of that whose method the critic is."""
    owner = getattr(critic, "__self__", critic)
    return list(owner.modules()) if isinstance(owner, nn.Module) else []


def uncompiled(critic: CriticFunction) -> AbstractContextManager[Any]:
    """For modules compiled in place, and those with compiled ones in them: as `unwrapped`, from PyTorch 2.6 on."""
    compiled = any(module._compiled_call_impl or "_orig_mod" in module._modules for module in _modules(critic))
    # where the whole update is being compiled, the switch must not be touched
    if not compiled or torch.compiler.is_compiling() or not hasattr(torch.compiler, "set_stance"):
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


@contextmanager
def at_rest(critic: CriticFunction) -> Iterator[None]:
    """Without dropout and without new batch statistics: looking at a critic changes neither it nor random numbers."""
    modules = [module for module in _modules(critic) if module.training]
    for module in modules:
        module.training = False
    try:
        yield
    finally:
        for module in modules:
            module.training = True


def takes_joined(critic: CriticFunction) -> bool:
    """Whether a critic takes [B, s + a], by the number of arguments it needs, or [B, s] and [B, a]."""
    function = critic.forward if isinstance(critic, nn.Module) else critic
    needed = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
    ]
    if len(needed) not in (1, 2):
        raise InputError(
            f"C4Anywhere: the critic needs {len(needed)} arguments, expected 1 or 2, or joined= to say which it takes"
        )
    if len(needed) == 2 and (needed[0].name in ("a", "u") or needed[0].name.startswith("act")):
        raise InputError(f"C4Anywhere: the critic takes ({needed[0].name}, {needed[1].name}), expected states first")
    return len(needed) == 1


def q_values(critic: CriticFunction, x: Tensor, action_dim: int | None = None) -> Tensor:
    """Q at x [B, s + a], refused unless it is one number a row. action_dim: where the critic takes s and a apart."""
    q = critic(x) if action_dim is None else critic(x[:, :-action_dim], x[:, -action_dim:])
    if not isinstance(q, Tensor):
        found = f"{len(q)} outputs" if isinstance(q, tuple | list) else f"a {type(q).__name__}"
    elif q.shape not in ((len(x),), (len(x), 1)):
        found = f"an output of shape {list(q.shape)} for {len(x)} rows"
    else:
        return q
    raise InputError(
        f"C4Anywhere: the critic gave {found}, expected Q [B] or [B, 1]; pass twins and members one by one"
    )


def plain_tensor(tensor: Tensor) -> Tensor:
    """The tensor within those of torch.vmap and torch.func's other transforms."""
    if hasattr(torch.func, "debug_unwrap"):
        return torch.func.debug_unwrap(tensor, recurse=True)
    functorch = torch._C._functorch  # of PyTorch before 2.7
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def penultimate_features(
    critic: CriticFunction, x: Tensor, head: str | None = None, action_dim: int | None = None
) -> Tensor:
    """What enters the layer that gives Q at x, [B, m]: the module's `head`, or the `nn.Linear` whose output Q is."""
    if not isinstance(critic, nn.Module):
        raise InputError("proxy features: the critic is a function, expected an nn.Module (or mode 'exact')")
    watched: list[nn.Module]
    if head is None:
        watched = [module for module in critic.modules() if isinstance(module, nn.Linear)]
    elif head in dict(critic.named_modules()):
        watched = [critic.get_submodule(head)]
    else:
        raise InputError(f"proxy features: the critic has no layer '{head}', expected `head` to be the name of one")
    calls: list[tuple[Tensor, Any, int]] = []  # of a layer: its input, its output, how often that was written to

    def record(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        features, output = plain_tensor((*args, *kwargs.values())[0]), plain_tensor(output)
        calls.append((features, output, output._version))

    handles = [module.register_forward_hook(record, with_kwargs=True) for module in watched]
    try:
        q = q_values(critic, x, action_dim)
    finally:
        for handle in handles:
            handle.remove()
    if head is None:
        # the very memory of Q, not equal numbers: the smaller of two heads may be the first one in every row; and not
        # written to since: a second head's values may have been added in place
        calls = [
            (features, output, version)
            for features, output, version in calls
            if output.data_ptr() == q.data_ptr() and output.numel() == q.numel() and output._version == version
        ]
        if not calls:
            raise InputError(
                "proxy features: Q is not the output of an nn.Linear of the critic, expected `head` naming its last "
                "layer (or mode 'exact'); pass twin critics one by one"
            )
    if len(calls) != 1 or calls[0][0].dim() != 2 or len(calls[0][0]) != len(x):
        shapes = " and ".join(str(list(features.shape)) for features, *_ in calls) or "nothing"
        raise InputError(f"proxy features: the last layer was given {shapes}, expected one [{len(x)}, m]")
    return calls[0][0]
