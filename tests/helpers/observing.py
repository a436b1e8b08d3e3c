"""That an observation leaves no trace, shown of one observer and one module."""

import pandas as pd
import torch


def assert_leaves_alone(observer, module):
    """Weights, gradients, modes and the global generator are as before, in inference mode too, and it is repeatable."""
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    modes = {name: m.training for name, m in module.named_modules()}
    before, state = {k: v.clone() for k, v in module.state_dict().items()}, torch.get_rng_state()
    tables = [observer.observe(module, 5) for _ in range(2)]
    pd.testing.assert_frame_equal(*tables, check_exact=True)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
    assert {name: m.training for name, m in module.named_modules()} == modes
    assert all(p.requires_grad and (p.grad == 1).all() for p in module.parameters())
    with torch.inference_mode():
        pd.testing.assert_frame_equal(observer.observe(module, 5), tables[0], check_exact=True)
    return tables[0]
