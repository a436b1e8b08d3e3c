"""Quantities of ``EncoderDynamics``."""

from lmdyn.callbacks.observing.schema import Quantity

__all__ = ["ENCODER_DYNAMICS"]


def _share(name: str, meaning: str, tags: tuple[str, ...] = ("",)) -> Quantity:
    return Quantity(name, meaning, "share", low=0.0, high=1.0, tags=tags)


def _steps(name: str, meaning: str, tags: tuple[str, ...] = ("",)) -> Quantity:
    return Quantity(name, meaning, "steps", low=0.0, tags=tags)


def _rate(name: str, meaning: str, tags: tuple[str, ...] = ("",)) -> Quantity:
    return Quantity(name, meaning, "nats/step", tags=tags)


_LENGTH = ("length=<n>",)
_LOGGED = (
    _steps("synchronization_offset", "Mean t at which the tokens of a sentence synchronized.", _LENGTH),
    _share("synchronized_share", "Sentences whose tokens synchronized within the short term.", _LENGTH),
    _steps(
        "restricted_offset", "Mean over all sentences of the offset, or of the horizon if they did not synchronize.",
        _LENGTH,
    ),
    Quantity("deviation_floor", "D that rounding maintains among equal tokens.", low=0.0),
    _rate("mean_exponent", "Mean λ of the windows of chaotic transients, for sentences that have one."),
    _share("chaotic_share", "Sentences with a chaotic transient, by running means of λ."),
    _share("censored_share", "Sentences whose transient had not ended at the horizon."),
    _steps(
        "transient_length", "Mean until the running mean of λ stays at or below 0, or the state recurs.",
        ("width=<windows>",),
    ),
    _steps("sign_change_length", "Mean number of steps until the most likely change of λ's sign."),
    _share("sign_change_chaotic_share", "Sentences with a transient by the change of sign."),
    _share("switched_share", "Sentences that continued with the map of one token."),
    _share("orbit_share", "Sentences by the kind of their orbit.", ("<kind>",)),
    _rate(
        "orbit_lyapunov_exponent", "Mean λ over sentences of the part of the trajectory that determines its kind; for "
        "synchronized sentences that of the map of one token.",
    ),
    _rate("full_lyapunov_exponent", "Mean λ of the full map: for equal tokens the larger of λ and λ⊥."),
    _share("transient_share", "Sentences whose λ is chaotic, initially or throughout."),
    _share("undetermined_transient_share", "Sentences for which a chaotic transient is undetermined."),
    _share("ended_share", "Sentences whose chaos ended within the horizon."),
    _steps("restricted_mean_length", "Mean length of the chaotic transient up to the horizon, 0 if there is none."),
    Quantity("attractors", "Number of different fixed points and periodic orbits.", "count", low=0.0),
    _share("largest_attractor_share", "Sentences that end on the most frequent of these."),
    _share("attractor_share", "Sentences by their attractor, with follow: 0, as in version 0.1.", ("<kind>",)),
    _rate(
        "transverse_exponent", "Mean growth of differences between tokens along synchronized trajectories; below 0 "
        "they stay synchronized.",
    ),
    _rate("full_map_exponent", "Mean λ of some sentences on the full map, once synchronized."),
    _rate("reduced_map_exponent", "Mean λ of the same windows of the same sentences on the map of one token."),
    Quantity("peak_effective_dimension", "Highest effective dimension of the sentences' states over t.", low=1.0),
)  # fmt: skip
_STORED = (
    _rate("local_exponent", "λ of the window at t, mean over sentences, of each term.", ()),
    Quantity("deviation", "D(t), mean over sentences.", low=0.0, tags=()),
    Quantity("effective_dimension", "Participation ratio of the sentences' states at t.", low=1.0, tags=()),
    _share("share_of_ceiling", "Effective dimension over the number of sentences minus one.", ()),
    _share("survival", "Sentences whose chaotic transient is longer than t.", ()),
    Quantity("escape_rate", "Transients that ended, over the total duration of all.", "1/step", low=0.0, tags=()),
    _rate("chaotic_lyapunov_exponent", "Mean λ over sentences while they are chaotic.", ()),
    Quantity("stretching", "Factor by which layer t lengthens a perturbation.", low=0.0, tags=()),
    _rate("depth_exponent", "Mean logarithm of the stretching of the first t layers.", ()),
    _rate("orbit_exponent", "In earlier files: λ of orbits, wrong for closed ones.", ()),
    Quantity("first_element", "First number of a token of the first sentence at t.", tags=()),
    Quantity("example_deviation", "D(t) of the first sentence.", low=0.0, tags=()),
    Quantity("attention", "Attention of the first sentence at t, mean over heads.", low=0.0, high=1.0, tags=()),
    Quantity("trajectory", "First number of the first sentence's token once synchronized, and perturbed.", tags=()),
    Quantity("trajectory_difference", "Distance between these two.", low=0.0, tags=()),
    Quantity("principal_component", "First sentence's token after synchronization, along a component.", tags=()),
    _steps("sentence_offset", "t at which a sentence's tokens synchronized.", ()),
    _rate("sentence_local_exponent", "λ of the window at t of a sentence.", ()),
    _steps("sentence_transient_length", "Length of a sentence's transient by running means of λ.", ()),
    Quantity("sentence_censored", "1 if it had not ended at the horizon, else 0.", low=0.0, high=1.0, tags=()),
    _rate("sentence_exponent", "Mean λ of a sentence's transient.", ()),
    _steps("sentence_switched_at", "t at which a sentence continued with the map of one token.", ()),
    _rate("sentence_orbit_exponent", "λ of the part of a trajectory that determines its kind.", ()),
    Quantity("sentence_orbit_error", "Block standard error of this λ.", "nats/step", low=0.0, tags=()),
    Quantity("sentence_orbit_resolution", "|λ| that is not distinguished from 0.", "nats/step", low=0.0, tags=()),
    _steps("sentence_orbit_steps", "Number of steps for which a trajectory was followed.", ()),
    _steps("sentence_orbit_length", "Length of its chaotic transient, by the kind of orbit.", ()),
    Quantity("sentence_orbit_censored", "1 if its end was not observed, else 0.", low=0.0, high=1.0, tags=()),
    Quantity(
        "sentence_orbit_transient_undetermined", "1 if a transient is undetermined, else 0.", low=0.0, high=1.0,
        tags=(),
    ),
    _rate("sentence_orbit_chaotic_exponent", "Mean λ while a trajectory is chaotic.", ()),
    Quantity("sentence_orbit_line_change", "Change of the lines of its spectrum.", low=0.0, tags=()),
    _rate("sentence_orbit_transverse_exponent", "λ⊥ at the orbit of a sentence of equal tokens.", ()),
    Quantity("sentence_zero_one", "K of the 0–1 test against the length T.", low=-1.0, high=1.0, tags=()),
)  # fmt: skip
ENCODER_DYNAMICS = (*_LOGGED, *_STORED)
