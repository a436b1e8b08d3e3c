"""The pictures of the observers' pages, from the records: ``python docs/observers/pictures.py`` (seconds).

Thin lines are seeds, thick ones their mean; dashed or dotted lines are floors. Each picture is
``docs/images/observers/<observer>.png``.
"""

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter
from PIL import Image

from lmdyn.analysis import word_acquisition
from lmdyn.callbacks.observing.drawing import style

DOCS = Path(__file__).resolve().parents[1]
RECORDS, IMAGES = DOCS / "records", DOCS / "images" / "observers"
COLOURS = [style.COLOURS[name] for name in ("blue", "vermilion", "green", "purple", "orange", "sky")]
UPDATES = "optimizer updates"
Panels = Sequence[Axes]
PICTURES: dict[str, Callable[[Panels], None]] = {}


def picture(draw: Callable[[Panels], None]) -> Callable[[Panels], None]:
    """Enters a picture under the name of its function."""
    PICTURES[draw.__name__.removeprefix("_")] = draw
    return draw


def records(name: str, query: str = "", **equal: object) -> pd.DataFrame:
    """Rows of a file of records; ``query`` chooses runs."""
    table = pd.read_parquet(RECORDS / f"{name}.parquet")
    for column, value in equal.items():
        table = (
            table[table[column].fillna("") == value]
            if isinstance(value, str)
            else table[table[column] == value]
        )
    return table.query(query) if query else table


def of_albert(name: str, **equal: object) -> pd.DataFrame:
    """Rows of the embryology's runs of ALBERT, which shares one layer; BERT and ELECTRA have other sites."""
    return records(f"chiang2020_embryology/organism/{name}", "run.str.startswith('albert')", **equal)


def lines(
    panel: Axes,
    table: pd.DataFrame,
    by: str,
    of: dict[object, str],
    x: str = "step",
    first: int = 0,
    style: str = "-",
) -> None:
    """A line for each value of a column: the mean over runs, and each run."""
    for i, (value, label) in enumerate(of.items(), first):
        rows = table[table[by] == value]
        assert len(rows), (by, value)
        for _, run in rows.groupby("run"):
            one = run.groupby(x)["value"].mean()
            panel.plot(one.index, one, color=COLOURS[i], lw=0.5, alpha=0.4, ls=style)
        mean = rows.groupby(x)["value"].mean()
        panel.plot(mean.index, mean, color=COLOURS[i], lw=1.8, ls=style, label=label)


def floor(panel: Axes, table: pd.DataFrame, label: str, colour: str = "0.35", x: str = "step") -> None:
    """A dotted line: what is scored without what is meant."""
    mean = table.groupby(x)["value"].mean()
    panel.plot(mean.index, mean, color=colour, lw=1.2, ls=":", label=label)


def steps(*panels: Axes, origin: int = 10) -> None:
    """Updates on an axis that is linear up to some number and logarithmic beyond."""
    for panel in panels:
        panel.set_xscale("symlog", linthresh=origin, linscale=0.4)
        panel.set_xlim(left=0)
        panel.set_xlabel(UPDATES)


def said(panel: Axes, title: str, label: str, columns: int = 1) -> None:
    """What a panel shows: its title, its axis and its lines."""
    panel.set_title(title, fontsize=9)
    panel.set_ylabel(label)
    panel.legend(
        fontsize=7, ncols=columns, facecolor="white", framealpha=0.85, edgecolor="none", borderpad=0.1
    )


@picture
def _learning_curves(p: Panels) -> None:
    found = "saphra2019_sparsity/organism/learning_curves"
    tags = {t: t for t in ("PUNCT", "DET", "ADP", "VERB", "NOUN", "PROPN")}
    lines(p[0], records(found, quantity="loss", by="upos"), "group", tags)
    bands = {b: f"ranks {b}" for b in ("1-9", "10-99", "100-999", "1000+")}
    lines(p[1], records(found, quantity="accuracy", by="rank"), "group", bands)
    steps(*p)
    said(p[0], "loss by part of speech", "nats", 2)
    said(p[1], "accuracy by frequency of the word", "share")


@picture
def _sparsity(p: Panels) -> None:
    found = "saphra2019_sparsity/organism/sparsity"
    sites = {"h2": "h2", "h1": "h1", "embedding": "embedding", "logits": "logits"}
    lines(p[0], records(found, quantity="rho_gradient", role="target", pos_class="no_top20"), "site", sites)
    bands = {b: f"{b} occurrences" for b in ("10-99", "100-999", "1000+")}
    lines(p[1], records(found, quantity="chi_gradient_types", role="target", site="h2"), "pos_class", bands)
    floor(p[1], records(found, quantity="chi_gaussian", site="h2"), "Gaussian vectors")
    floor(p[1], records(found, quantity="chi_uniform", site="h2"), "uniform vectors", "0.65")
    steps(*p)
    said(p[0], "ρ← of the gradient, without the 20 most frequent words", "correlation", 2)
    said(p[1], "χ of the gradient at h2", "‖v‖₂ / ‖v‖₁")


@picture
def _similarity(p: Panels) -> None:
    pairs = records("saphra2019_svcca/organism/layers", quantity="svcca", reference="itself")
    pairs = pairs.assign(pair=pairs["site"] + "–" + pairs["reference_site"])
    lines(p[0], pairs, "pair", {k: k for k in ("embedding–h1", "h1–h2", "embedding–h2")})
    seeds = records(
        "saphra2019_svcca/organism/other_seed", site="h2", reference="partner", reference_site="h2"
    )
    measures = {
        "svcca": "SVCCA",
        "svcca_30": "SVCCA, 30 directions",
        "cca": "CCA",
        "linear_cka": "linear CKA",
    }
    lines(p[1], seeds, "quantity", measures)
    steps(*p, origin=100)
    said(p[0], "layers of one model, SVCCA", "similarity")
    said(p[1], "h2 and that of another seed, by measure", "similarity")


@picture
def _diagnostic_probe(p: Panels) -> None:
    found = "saphra2019_svcca/organism/probes_text"
    for panel, target, title in zip(p, ("current", "next"), ("the word read", "the next word"), strict=True):
        sites = {s: s for s in ("embedding", "h1", "h2")}
        lines(panel, records(found, quantity="accuracy", task="upos", target=target), "site", sites)
        control = records(found, quantity="control_accuracy", task="upos", target=target, site="h2")
        floor(panel, control, "control task, h2", COLOURS[2])
        floor(panel, records(found, quantity="majority", task="upos", target=target), "most frequent tag")
        steps(panel, origin=100)
        said(panel, f"part of speech of {title}", "accuracy", 2)
        panel.set_ylim(0, 1.05 if target == "next" else 1.4)
        panel.set_yticks([0, 0.25, 0.5, 0.75, 1])


@picture
def _interdependence(p: Panels) -> None:
    found = "saphra2020_di/organism/interdependence"
    independent = "run in ['lm_2_2', 'lm_3_3', 'lm_4_4', 'lm_5_5', 'lm_6_6']"
    whole = records(found, f"{independent} and syntactic.isna() and pos_class.isna()", site="hidden")
    times = {0: "untrained", 100: "100 updates", 1248: "at the end"}
    lines(p[0], whole[whole["quantity"] == "di"], "step", times, x="distance")
    p[0].set_yscale("log")
    trees = {
        "syntactic_correlation": "the sentence's tree",
        "shuffled_syntactic_correlation": "another sentence's tree",
    }
    lines(p[1], whole[whole["step"] == 1248], "quantity", trees, x="distance")
    p[1].axhline(0, color="0.7", lw=0.8)
    for panel in p:
        panel.set_xlabel("distance of the words")
    said(p[0], "interdependence of two words", "DI")
    said(p[1], "correlation of DI with syntactic distance", "Spearman's ρ")


@picture
def _scaffold_rule(p: Panels) -> None:
    runs = [f"{kind}_4_{seed}" for kind in ("familiar", "unfamiliar") for seed in (2, 3, 4)]
    rows = records("saphra2020_di/scaffold_small/scaffold_rule")
    rows = rows[rows["run"].isin(runs)]
    own = rows[(rows["quantity"] == "probability") & (rows["focus"] == "")]
    own = own.assign(kind=own["scaffold"] + ", " + own["site"])
    kinds = {"familiar, in": "familiar, in domain", "familiar, out": "familiar, out of domain"}
    lines(p[0], own, "kind", {**kinds, "unfamiliar, out": "unfamiliar, out of domain"})
    di = rows[(rows["quantity"] == "di") & (rows["site"] == "in")]
    lines(p[1], di, "scaffold", {"familiar": "familiar scaffold", "unfamiliar": "unfamiliar scaffold"})
    steps(*p, origin=100)
    said(p[0], "probability of ω, four words after α", "probability")
    said(p[1], "interdependence of α and the scaffold", "DI")


@picture
def _token_learning(p: Panels) -> None:
    found = "token_learning"
    groups = ("determiner", "conjunction", "preposition", "verb", "adjective", "noun")
    lines(p[0], of_albert(found, quantity="reconstruction", by="pos"), "group", {g: g for g in groups})
    lines(
        p[1],
        of_albert(found, by=""),
        "quantity",
        {"reconstruction": "reconstructed", "prediction": "predicted, masked"},
    )
    steps(*p, origin=100)
    said(p[0], "reconstruction by part of speech", "share of words")
    said(p[1], "all words", "share of words")


@picture
def _edge_probe(p: Panels) -> None:
    found = "edge_probe"
    tasks = ("pos", "constituents", "roles", "coreference")
    lines(p[0], of_albert(found, quantity="f1", site="layer@7"), "task", {t: t for t in tasks})
    for i, task in enumerate(tasks):
        floor(p[0], of_albert(found, quantity="majority", task=task), "", COLOURS[i])
    layers = of_albert(found, quantity="f1", task="pos")
    layers = layers.assign(layer=layers["site"].str.removeprefix("layer@").astype(int) + 1)
    lines(p[1], layers, "step", {0: "untrained", 450: "450 updates", 3000: "3,000 updates"}, x="layer")
    steps(p[0], origin=100)
    p[1].set_xlabel("layer")
    said(p[0], "layer 8; dotted: the most frequent label", "micro-F1", 2)
    said(p[1], "tags, by layer", "micro-F1")
    p[0].set_ylim(0, 1.2)  # room for the legend
    p[0].set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1])


@picture
def _world_knowledge(p: Panels) -> None:
    found = "world_knowledge"
    whole = of_albert(found, relation="", kind="")
    kinds = {"p_at_1": "of the whole vocabulary", "p_at_1_candidates": "of the candidates"}
    lines(p[0], whole, "quantity", kinds)
    floor(p[0], whole[whole["quantity"] == "majority"], "most frequent object")
    lines(p[1], of_albert(found, quantity="p_at_1"), "relation", {r: r.replace("_", " ") for r in (
        "capital_of", "born_in", "works_for", "founded_by")})  # fmt: skip
    steps(*p, origin=100)
    p[0].set_ylim(top=0.34)  # room for the legend above the lines
    said(p[0], "P@1, mean over relations", "share of facts")
    said(p[1], "P@1 by relation", "share of facts")


@picture
def _minimal_pairs(p: Panels) -> None:
    table = records("../observers/minimal_pairs")  # of docs/gallery/words/plot_minimal_pairs.py
    rules = {
        rule: rule.replace("_", " ") for rule in ("word_order", "verb_agreement", "control", "finite_verb")
    }
    for panel, quantity in zip(p, ("accuracy", "accuracy_by_token"), strict=True):
        lines(panel, table[table["quantity"] == quantity], "group", rules)
        panel.axhline(0.5, color="0.35", lw=1.2, ls=":", label="chance")
        panel.set_ylim(0, 1.05)
    steps(*p)
    said(p[0], "by the sum of log-probabilities", "accuracy")
    said(p[1], "by their mean", "accuracy")


@picture
def _ngram_divergence(p: Panels) -> None:
    table = records("../observers/ngram_divergence")  # of docs/gallery/words/plot_ngram_divergence.py
    for panel, quantity in zip(p, ("kl", "pearson"), strict=True):
        for smoothing, orders in {"raw": (1, 2), "kneser_ney": (3, 4)}.items():
            rows = table[(table["quantity"] == quantity) & (table["smoothing"] == smoothing)]
            names = {n: f"{n}-grams, {smoothing}".replace("_", "-") for n in orders}
            lines(panel, rows, "order", names, first=orders[0] - 1)
    steps(*p)
    said(p[0], "divergence from n-gram models", "D(n-gram ‖ model), bits")
    said(p[1], "of log-probabilities of the next word", "correlation")


@picture
def _surprisals(p: Panels) -> None:
    table = records("../observers/surprisals")  # of docs/gallery/words/plot_acquisition.py
    surprisal = table[table["quantity"] == "surprisal"]
    lines(
        p[0], surprisal, "word", {word: word or "mean of all words" for word in ("", "to", "bord", "comes")}
    )
    floor(p[0], table[(table["quantity"] == "unigram") & (table["word"] == "")], "by frequency, mean")
    steps(p[0])
    said(p[0], "surprisal of words", "bits")
    ages = word_acquisition(table)
    kinds = {"interval": "acquired", "right": "not acquired", "left": "from the start"}
    for i, (kind, label) in enumerate(kinds.items()):
        of = ages[ages["censored"] == kind]
        p[1].plot(of["unigram"], of["age"], "o^v"[i], color=COLOURS[i], ms=3, alpha=0.6, label=label)
    p[1].set_yscale("log")
    p[1].set_xlabel("surprisal by frequency, bits")
    said(p[1], "age of words", UPDATES)


@picture
def _choices(p: Panels) -> None:
    table = records("../observers/choices")  # of docs/gallery/words/plot_choices.py
    groups = {"any": "among any words", "nouns": "among nouns of the same form"}
    for panel, quantity in zip(p, ("accuracy", "accuracy_by_token"), strict=True):
        lines(panel, table[table["quantity"] == quantity], "group", groups)
        floor(panel, table[(table["quantity"] == "chance") & (table["group"] == "")], "chance")
        panel.set_ylim(0, 1.05)
    steps(*p)
    said(p[0], "by the probability of the option", "accuracy")
    said(p[1], "by the mean of its pieces", "accuracy")


@picture
def _reading(p: Panels) -> None:
    table = records("../observers/reading", baseline="word")  # of docs/gallery/words/plot_reading_times.py
    lines(p[0], table, "quantity", {"partial_r2": "surprisal of the LSTM"})
    floor(p[0], table[table["quantity"] == "chance"], "noise")
    lines(p[1], table, "quantity", {"delta_log_likelihood": "intercept for each reader"})
    steps(*p)
    said(p[0], "variance explained beyond the baseline", "partial R²")
    said(p[1], "gain in log-likelihood", "nats per time")


@picture
def _attention_patterns(p: Panels) -> None:
    found = "attention_patterns"
    layers = {f"layer@{n - 1}": f"layer {n}" for n in (1, 2, 8, 12)}
    lines(p[0], of_albert(found, quantity="diagonal"), "site", layers)
    lines(p[1], of_albert(found, quantity="entropy"), "site", layers)
    steps(*p, origin=100)
    said(p[0], "weight on the previous and the next token", "diagonal")
    said(p[1], "entropy of a query's attention", "nats")


@picture
def _downstream(p: Panels) -> None:
    found = "downstream"
    scores = {"acceptability": "accuracy", "similarity": "Spearman's correlation"}
    for panel, (task, score) in zip(p, scores.items(), strict=True):
        lines(panel, of_albert(found, task=task), "quantity", {"score": "fine-tuned copy"})
        floor(panel, of_albert(found, task=task, quantity="baseline"), "without reading the input")
        panel.set_xlabel(UPDATES)
        said(panel, task, score)


@picture
def _encoder_dynamics(p: Panels) -> None:
    found = "inoue2022_chaos/organism/encoder_dynamics"  # seed 11 counts in no verdict
    times = {0: "untrained", 1200: "1,200 updates", 4000: "4,000 updates"}
    lines(
        p[0], records(found, "t <= 1000 and run != 'trained_11'", quantity="deviation"), "step", times, x="t"
    )
    p[0].set_yscale("log")
    kinds = ("fixed point", "cycle", "torus", "chaotic", "undetermined")
    shares = records(found, "run != 'trained_11'", quantity="orbit_share").pivot_table(
        "value", "step", "kind"
    )
    bottom = pd.Series(0.0, index=shares.index)
    for colour, kind in zip(COLOURS, kinds, strict=False):
        p[1].bar(
            [str(s) for s in shares.index], shares[kind], bottom=bottom, color=colour, label=kind, width=0.6
        )
        bottom += shares[kind]
    p[0].set_xlabel("iterations t of the layer")
    p[1].set_xlabel(UPDATES)
    said(p[0], "deviation D(t) of the token vectors", "D")
    said(p[1], "what the orbits end on", "share of sentences", 2)
    p[1].set_ylim(0, 1.4)
    p[1].set_yticks([0, 0.5, 1])


@picture
def _depth_performance(p: Panels) -> None:
    found = "inoue2022_chaos/organism/depth_performance"
    masked = records(found, "run != 'trained_11'", step=4000, quantity="accuracy", where="mask")
    lines(p[0], masked, "how", {"fixed": "the model's decoder", "retrained": "retrained for each t"}, x="t")
    share = records(
        found, "run != 'trained_11'", step=4000, quantity="floor", how="most_frequent", where="mask"
    )["value"].mean()
    p[0].axhline(share, color="0.35", ls=":", lw=1.2, label="most frequent token")
    similar = records(found, "run != 'trained_11'", quantity="pearson", how="frozen")
    lines(p[1], similar, "step", {0: "untrained", 4000: "4,000 updates"}, x="t", first=2)
    for panel in p:
        panel.axvline(12, color="0.8", lw=0.8, zorder=0)
        panel.set_xlabel("applications t of the layer (the model has 12)")
    said(p[0], "masked tokens, 4,000 updates", "accuracy")
    said(p[1], "similarity of two sentences", "Pearson's r")


@picture
def _handwriting(p: Panels) -> None:
    found = "inoue2022_chaos/organism/handwriting"
    for panel, quantity, label in zip(p, ("best_nmse", "best_length"), ("NMSE", "steps ΔT"), strict=True):
        table = records(found, "run != 'trained_11'", quantity=quantity)
        for i, (_, rows) in enumerate(table.groupby("step")):
            at = [i + 0.03 * (j - len(rows) / 2) for j in range(len(rows))]
            panel.plot(at, rows["value"], "o", ms=4, color=COLOURS[0], alpha=0.6)
            panel.plot([i - 0.25, i + 0.25], [rows["value"].mean()] * 2, color=COLOURS[1], lw=2)
        panel.set_xticks(range(table["step"].nunique()), [str(s) for s in sorted(table["step"].unique())])
        panel.set_xlabel(UPDATES)
        panel.set_ylabel(label)
    p[0].set_title("error of the best window; 1: the pen does not move", fontsize=9)
    p[1].set_title("length of the best window", fontsize=9)


@picture
def _loop_convergence(p: Panels) -> None:
    found = "geiping2025_loops/organism/loop_convergence"
    times = {0: "untrained", 100: "100 updates", 2000: "2,000 updates"}
    lines(p[0], records(found, quantity="residual"), "step", times, x="t")
    p[0].set_yscale("log")
    lines(
        p[1],
        records(found, "step >= 100", quantity="cross_entropy"),
        "step",
        {100: "100 updates", 2000: "2,000 updates"},
        x="t",
        first=1,
    )
    for panel in p:
        panel.axvline(6, color="0.8", lw=0.8, zorder=0)
        panel.set_xlabel("iterations t of the core (trained with 6 on average)")
    said(p[0], "change of the state in the next iteration", "relative change")
    said(p[1], "cross-entropy of the prediction at t", "nats")


@picture
def _tower_preference(p: Panels) -> None:
    found = "he2022_twotower/organism/tower_preference"
    gpt = records(
        found, "run.str.startswith('gpt_1') or run == 'gpt_20'", quantity="preference", by="upos", step=3000
    )
    order = gpt.groupby("group")["value"].mean().sort_values().index.tolist()
    for i, tag in enumerate(order):
        values = gpt.loc[gpt["group"] == tag, "value"]
        p[0].plot(values, [i] * len(values), "o", ms=3, color=COLOURS[0], alpha=0.5)
        p[0].plot([values.mean()] * 2, [i - 0.35, i + 0.35], color=COLOURS[1], lw=2)
    p[0].set_yticks(range(len(order)), order, fontsize=6)
    p[0].axvline(0, color="0.7", lw=0.8)
    p[0].set_xlabel("mean preference, nats (> 0: primary tower)")
    p[0].set_title("by part of speech: ten models, mean", fontsize=9)
    words = records(found, quantity="preference", by="token", step=3000, run="gpt_12")
    p[1].hist(words["value"].dropna(), bins=40, color=COLOURS[0])
    p[1].axvline(0, color="0.7", lw=0.8)
    p[1].set_xlabel("preference of a word, nats")
    p[1].set_ylabel("words")
    p[1].set_title("all words of one model (gpt_12)", fontsize=9)


@picture
def _word_clusters(p: Panels) -> None:
    found = "he2022_twotower/organism/word_clusters"
    gpt = records(found, "run.str.startswith('gpt_1') or run == 'gpt_20'", quantity="share_of_words")
    numbers = ["0", "1", "2", "3", "4", "5", "6", "7+"]
    mean = gpt.groupby("group")["value"].mean().reindex(numbers).fillna(0)
    p[0].bar(numbers, mean, color=COLOURS[0], width=0.6)
    for i, number in enumerate(numbers):
        values = gpt.loc[gpt["group"] == number, "value"]
        p[0].plot([i] * len(values), values, "o", ms=2.5, color="black", alpha=0.5)
    p[0].set_xlabel("clusters that a word belongs to")
    p[0].set_ylabel("share of words")
    p[0].set_title("ten models (points), mean (bars)", fontsize=9)
    p[0].yaxis.set_major_formatter(PercentFormatter(1))
    members = records(found, quantity="membership", run="gpt_12")
    sizes = members.groupby("group").size().sort_values(ascending=False)
    p[1].bar(range(len(sizes)), sizes, color=COLOURS[2])
    p[1].set_xlabel("clusters of one model (gpt_12), largest first")
    p[1].set_ylabel("words in the cluster")
    p[1].set_title("sizes of clusters", fontsize=9)


OUTLOOK = "saphra2021_outlook/organism"
LAYERS = {"embedding": "embedding", "h1": "h1", "h2": "h2", "logits": "logits"}


@picture
def _loss_change_allocation(p: Panels) -> None:
    found = f"{OUTLOOK}/loss_change_allocation"
    shares = records(found, quantity="allocation", by="", parameter="").sort_values("step")
    sums = shares.assign(value=shares.groupby(["run", "site"], observed=True)["value"].cumsum())
    lines(p[0], sums, "site", LAYERS)
    helping = records(found, quantity="helping_share", by="", parameter="")
    lines(p[1], helping, "site", LAYERS)
    p[1].axhline(0.5, color="0.35", lw=1.2, ls=":", label="by chance")
    steps(*p)
    said(p[0], "sum of the shares since the start", "nats")
    said(p[1], "entries that help, in each interval", "share", 2)


@picture
def _weight_spectra(p: Panels) -> None:
    found = f"{OUTLOOK}/weight_spectra"
    whole = records(found, matrix="weight")
    names = {name: name for name in sorted(whole["site"].dropna().unique())}
    lines(p[0], whole[whole["quantity"] == "effective_rank"], "site", names)
    lines(p[1], whole[(whole["quantity"] == "angle") & (whole["reference"] == "initial")], "site", names)
    steps(*p)
    said(p[0], "effective rank of the weights", "exp of the entropy")
    said(p[1], "angle from the initial weights", "degrees")


@picture
def _geometry(p: Panels) -> None:
    found = f"{OUTLOOK}/geometry"
    sites = {site: site for site in ("embedding", "h1", "h2")}
    for panel, quantity, title in zip(
        p, ("rankme", "rankme_covariance"), ("RankMe, uncentred", "of the centred covariance"), strict=True
    ):
        lines(panel, records(found, quantity=quantity, over="all"), "site", sites)
        steps(panel)
        said(panel, title, "effective rank")
    floor(p[0], records(found, quantity="rankme_white_noise", over="all"), "Gaussian vectors")
    said(p[0], "RankMe, uncentred", "effective rank")


@picture
def _trajectory(p: Panels) -> None:
    found = f"{OUTLOOK}/trajectory"
    sites = {site: site for site in ("embedding", "h1", "h2")}
    for panel, level, title in zip(
        p, ("coarse", "fine"), ("between parts of speech", "between words of one"), strict=True
    ):
        lines(panel, records(found, quantity=f"{level}_share"), "site", sites)
        floor(panel, records(found, quantity=f"{level}_floor", site="h2"), "groups at random")
        steps(panel)
        said(panel, f"variance {title}", "share of the tokens' variance")


@picture
def _landscape(p: Panels) -> None:
    found = f"{OUTLOOK}/landscape"
    ends = records(found, quantity="line_loss")
    ends = ends[ends["step"] == ends["step"].max()]
    ends = ends.assign(alpha=ends["alpha"].astype(float), line=ends["reference"] + ", " + ends["units"])
    own = {"initial, own": "initial network", "partner, own": "another seed"}
    lines(p[0], ends, "line", {**own, "partner, matched": "another seed, units matched"}, x="alpha")
    p[0].set_xlabel("position on the line: 1 is the trained network")
    barriers = records(found, quantity="barrier", reference="partner")
    lines(p[1], barriers, "units", {"own": "units as they are", "matched": "units matched"}, "step", 1)
    steps(p[1])
    said(p[0], "loss on lines to the trained network", "nats")
    said(p[1], "barrier to another seed at its end", "nats")


@picture
def _curvature(p: Panels) -> None:
    found = f"{OUTLOOK}/curvature"
    largest = records(found, quantity="eigenvalue")
    lines(p[0], largest[largest["index"] == 1], "quantity", {"eigenvalue": "largest eigenvalue"})
    lines(
        p[0],
        records(found, quantity="gradient_curvature"),
        "quantity",
        {"gradient_curvature": "gᵀHg / gᵀg"},
        "step",
        1,
    )
    lines(p[1], records(found, quantity="trace"), "quantity", {"trace": "trace, by Hutchinson"})
    steps(*p)
    said(p[0], "curvature of the loss", "nats")
    said(p[1], "trace of the Hessian", "nats")


@picture
def _induction(p: Panels) -> None:
    rows = records(f"{OUTLOOK}/induction")
    kinds = {"two_layers": "two layers", "one_layer": "one layer"}
    rows = rows.assign(kind=rows["run"].str.rpartition("_")[0])
    scores = rows[rows["quantity"] == "prefix_matching"]
    best = scores.groupby(["kind", "run", "step"], observed=True)["value"].max().reset_index()
    lines(p[0], best, "kind", kinds)
    floor(p[0], rows[rows["quantity"] == "uniform_attention"], "uniform attention")
    lines(p[1], rows[rows["quantity"] == "late_minus_early"], "kind", kinds)
    steps(*p)
    said(p[0], "prefix matching, best head", "weight")
    said(p[1], "late − early loss", "nats")


def main() -> None:
    """Draw all."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    plt.rcParams |= {
        "font.size": 8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.7,
    }
    for name, draw in PICTURES.items():
        figure, panels = plt.subplots(1, 2, figsize=(7.4, 2.9), layout="constrained")
        draw(panels)
        path = IMAGES / f"{name}.png"
        drawn = io.BytesIO()
        figure.savefig(drawn, dpi=110)
        plt.close(figure)
        Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
        assert path.stat().st_size <= 60_000, f"{path} is too large: {path.stat().st_size} bytes"


if __name__ == "__main__":
    main()
