"""A small study and runs of it, made without a training."""

import numpy as np
import pandas as pd
import yaml

from lmdyn.claims import Above, At, Change, Claim, Condition, Part, Reaches, Rows, Study, Tested, Within
from lmdyn.claims.claim import published_correlation
from lmdyn.runs.provenance import begin_session, write_json
from lmdyn.runs.store import ObservationStore

NAME = "doe2001_word"


def rho(site="h2", **more):
    return Rows("Sparsity", "rho_gradient", site, where=(("role", "target"),), **more)


RISES = {"question": "Does ρ rise?", "says": "ρ of the gradient | rises", "where": "figure 3a"}
CLAIMS = (
    Claim("rises_h2", parts=(Part(Change(rho()), Above(0.05), "h2", "plain"),), floor="a change has none",
          variant="last layer", matters="0.05, half of what is printed", **RISES),
    Claim("rises_h1", parts=(Part(Change(rho("h1")), Above(0.05), "h1"),), floor="a change has none",
          variant="first layer", **RISES),
    Claim("strong", "ρ is strong", "figure 3a", (Part(At(rho(error="rho_gradient_error")), Above(0.1), "ρ", "fisher"),),
          floor=At(rho(), "first"), published=published_correlation(0.4, 400),
          void_unless=(Condition("the tagger is above chance", Tested("test_accuracy"), Above(0.2)),)),
    Claim("both", "ρ is strong at both layers", "section 3",
          (Part(At(rho()), Above(0.1), "last"), Part(At(rho("h1")), Within(-0.1, 0.1), "first")),
          floor=At(rho(), "first")),
    Claim("early", "it is so early", "figure 3a", (Part(Reaches(rho(), level=0.2), Within(0, 2)),), floor="none"),
    Claim("voided", "it is so", "section 4", (Part(At(rho()), Above(0.0)),), floor="none",
          void_unless=(Condition("the tagger is perfect", Tested("test_accuracy"), Above(0.99)),)),
    Claim("attention", "attention is sparse", "section 6", (Part(At(Rows("Sparsity", "entropy")), Above(0)),),
          floor="none", measured_by="lmdyn analyze RUN --config attention.yaml"),
)  # fmt: skip
STUDY = Study(
    NAME, "A study of words", "Doe 2001", CLAIMS, terms=(("last layer", "the one below the output"),)
)


def make_run(folder, seed, steps=(0, 1, 3, 10, 32, 100, 316), length=4):
    """A run of the study, whose ρ rises at the last layer and not at the first."""
    random = np.random.default_rng(seed)
    config = {
        "seed_everything": seed,
        "model": {"class_path": "lmdyn.models.LSTMLanguageModel", "init_args": {"hidden_size": 8}},
        "data": {"class_path": "lmdyn.datamodules.BPTTCorpus", "init_args": {"length": length}},
    }
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    begin_session(folder, ["lmdyn", "fit", "--config", str(folder / "in.yaml")], "cpu")
    store = ObservationStore(
        folder / "observations" / "sparsity", "lmdyn.callbacks.Sparsity", {"labels": "aligned"}
    )
    for step in steps:
        values = [0.3 * np.tanh(step / 50) + random.normal(0, 0.02), random.normal(0, 0.01), 0.015]
        store.write(step, pd.DataFrame({
            "step": step, "tokens": pd.array([step * 700] * 3, dtype="Int64"),
            "quantity": ["rho_gradient", "rho_gradient", "rho_gradient_error"], "site": ["h2", "h1", "h2"],
            "role": ["target"] * 3, "word": [None] * 3, "value": values,
        }))  # fmt: skip
    write_json(folder / "test.json", {"test_accuracy": 0.5 + seed / 100})
    return folder
