"""Which public names below lmdyn.analysis are no measures, and why; and all names there are."""

import importlib
import inspect
import pkgutil

import lmdyn.analysis

_WHY = {
    "find, call and describe modules: no numbers are measured": """
        boundary.takes_arrays attention.attention_scores.check_map_shape dynamics.encoder_map.EncoderMap
        geometry.rectifiers.{find_rectifiers,is_rectifier}
        dynamics.synchronized_map.{SynchronizedMap,synchronized_map} interdependence.pairwise_shapley.reading_of
        inspection.activations.* inspection.attention_weights.* inspection.attributes.* inspection.batches.*
        inspection.blocks.* inspection.forward.{Renamed,StopForward,call_module,called_module,device_of,dotted}
        inspection.forward.{limit_imports,logits_of,stand_in,uncompiled} inspection.forward_trace.*
        inspection.predictions.* inspection.sites.* inspection.transformer.* dynamics.maps.copies.*
        dynamics.maps.core.* dynamics.maps.passage.* dynamics.maps.steps.* dynamics.maps.texts.*
        probing.state_decoder.{StateDecoder,States} words.frequency_cells.* words.word_masks.*
        interdependence.lstm_layers.{LSTMLayer,lstm_layers}""",
    "measured on a whole model, with tests of their own: inspection, parameters, words, probing in tests/analysis": """
        attention.head_ablation.* attention.token_path.* parameters.at_point.* parameters.head_matrices.*
        parameters.linear_weight.* parameters.loss_gradient.* weights.matrices.* weights.spectra.head_spectra
        inspection.label_convention.* inspection.token_effects.* words.surprisal.* words.minimal_pairs.* words.reading.*
        words.choices.* words.extrema.* words.ngram_counts.* words.ngram_models.*
        words.acquisition.* words.words_in_pieces.*
        probing.depth_heads.{pooled_states,states_at}
        probing.state_decoder.{RetrainedDecoder,retrain_decoders} probing.tower_heads.*
        dynamics.horizon.ends""",
    "shares of parameters in a change of the loss, with tests of their own in tests/analysis/landscape": """
        landscape.applications.* landscape.class_slopes.* landscape.followed_path.* landscape.line_integral.*
        landscape.loss_change.*""",
    "training of probes, which has tests of its own in tests/analysis/probing": """
        probing.warmup_decay.warmup_decay_factor probing.depth_heads.ReadoutTraining probing.probes.DiagnosticClassifier
        probing.edge_probes.{EdgeClassifier,EdgeData,EdgeProbeResult,edge_probes}""",
    "readouts of windows, against solvers and closed forms in tests/analysis/dynamics": """
        dynamics.window_regressions.* dynamics.window_sums.*""",
    "of a loss at other weights, and of curves over training, against closed forms in landscape and phases": """
        landscape.barrier.* landscape.critical_step.* landscape.hessian.* landscape.plane.*
        landscape.unit_groups.* landscape.unit_matching.* parameters.exchangeable_units.* parameters.line.*
        parameters.transformer_units.* phases.change_points.* phases.smooth_course.* phases.map_controls.*
        phases.training_map.*""",
    "parts of measures that have a row": """
        geometry.effective_dimension.participation_ratio geometry.group_cells.GroupCells
        geometry.sampled_rows.SampledRows similarity.scatter.{Axes,Pair,Side}
        similarity.kernels.{structure_of,subsample} similarity.block_covariances.* similarity.block_similarity.*
        similarity.block_jackknife.values_or_nan similarity.divergence.DivergenceSums similarity.sweep.known_measures
        words.concentration.{mean_entropies,sample_correlations}
        interdependence.pair_statistics.pair_statistics
        interdependence.lstm_layers.{initial_state,run_layers,real_steps}
        orbits.followed_orbits.* orbits.lyapunov.{advanced,derivative,random_perturbation,rescaled,unit_perturbation}
        dynamics.synchronization.mean_token
        orbits.trajectories.{exact_products,finite_rows,of_states,part_of,per_row,power_at,repeat}
        preference.tower_predictions.means_of statistics.precision.* statistics.correlation.unit_values
        statistics.distributed.* statistics.hashing.splitmix64 statistics.bootstrap.draw_blocks
        statistics.mean_over_seeds.{BoundedMean,Bounds} inspection.weights_audit.{WeightsAudit,audit_weights}""",
    "checks, which raise or do nothing, and errors": """
        checked_fields.* dynamics.synchronization.check_floor statistics.correlation.check_lengths
        inspection.forward.check_labels interdependence.lstm_layers.{check_decoder,check_inputs}
        orbits.lyapunov.check_windows orbits.lyapunov_spectrum.ResolutionError
        orbits.trajectories.{check_precision,check_steps} preference.independent_components.UnusableEmbeddingsError""",
    "what a measure answers": """
        statistics.clustered.ClusteredMeans statistics.jackknife.Jackknifed
        statistics.rank_blocks.RankCorrelation statistics.variance_components.VarianceComponents
        weights.alignment.TableAlignment weights.distances.WeightDistance weights.spectra.MatrixSpectrum
        words.frequency_matching.MatchedSamples""",
    "functions of a setting, a text or a tree: nothing in them can be NaN": """
        attention.induction_scores.uniform_attention attention.repeated_tokens.repeated_tokens
        words.concentration.{expected_concentration,without_structure} statistics.multiplicity.simultaneous_confidence
        preference.clustering.cluster_name
        probing.task_metrics.{exact_match,normalized_answer,span_metrics,task_score} probing.task_metrics.token_f1
        interdependence.trees.*""",
}


def public_names() -> set[str]:
    """``module.name`` of each function and class that a module below lmdyn.analysis says is public, at its home."""
    found = set()
    for module in pkgutil.walk_packages(lmdyn.analysis.__path__, "lmdyn.analysis."):
        home = importlib.import_module(module.name)
        for name in () if module.ispkg else home.__all__:
            made = getattr(home, name)
            if (inspect.isfunction(made) or inspect.isclass(made)) and made.__module__ == module.name:
                found.add(f"{module.name.removeprefix('lmdyn.analysis.')}.{name}")
    return found


def no_measures() -> set[str]:
    """Those that are none; a star stands for all names of a module, braces for some."""
    names, found = public_names(), set()
    parts = [entry.rpartition(".") for entry in " ".join(_WHY.values()).split()]
    for entry in (f"{home}.{name}" for home, _, last in parts for name in last.strip("{}").split(",")):
        of_module = {name for name in names if name.rpartition(".")[0] == entry[:-2]}
        found |= of_module if entry.endswith(".*") else {entry}
        assert of_module or not entry.endswith(".*"), f"no longer there: {entry}"
    return found
